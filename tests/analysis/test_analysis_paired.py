"""Tests by sign flips and intervals, held against published values, scipy, statsmodels and a second implementation."""

from itertools import product

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.weightstats import DescrStatsW

from vqkit.analysis import paired
from vqkit.errors import Refused

DARWIN = np.array([49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], dtype=float)  # eighths of an inch


def brute_force(cells, scale):
    """Raw and step-down adjusted p by the definition, one pattern and one subset at a time."""
    n = cells.shape[1]

    def statistic(d, s):
        spread = d.std(ddof=1) ** 2 + s**2
        return 0.0 if not d.mean() else np.sqrt(n) * abs(d.mean()) / np.sqrt(spread) if spread else np.inf

    observed = np.array([statistic(d, s) for d, s in zip(cells, scale, strict=True)])
    flipped = np.array(
        [[statistic(d * signs, s) for d, s in zip(cells, scale, strict=True)] for signs in product((1, -1), repeat=n)]
    )
    raw = (flipped >= observed * (1 - 1e-9)).mean(0)
    adjusted, running = np.empty(len(cells)), 0.0
    left = list(np.argsort(-observed, kind="stable"))
    while left:
        running = max(running, (flipped[:, left].max(1) >= observed[left[0]] * (1 - 1e-9)).mean())
        adjusted[left.pop(0)] = running
    return raw, adjusted


def test_darwins_maize():
    found = paired.sign_flip(DARWIN[None], 0.0)
    assert found.raw[0] == 1726 / 32768
    assert found.adjusted[0] == found.raw[0]
    assert (found.method, found.patterns) == ("exact", 1 << 14)
    summary = paired.summarize(DARWIN[None], 0.05)
    assert summary.mean[0] == pytest.approx(20.9333, abs=5e-5)
    assert summary.t[0] == pytest.approx(2.14799, abs=5e-6)
    assert summary.p_t[0] == pytest.approx(0.049703, abs=5e-7)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1000.0])
def test_one_cell_does_not_depend_on_the_statistic(scale):
    assert paired.sign_flip(DARWIN[None], scale).raw[0] == 1726 / 32768


def test_holm_as_published():
    assert paired.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    p = np.random.default_rng(3).uniform(0, 0.2, 40)
    assert paired.holm(p) == pytest.approx(multipletests(p, method="holm")[1])


@pytest.mark.parametrize("p", [[0.1, np.nan], [-0.1], [1.1]])
def test_holm_refuses_what_is_no_probability(p):
    with pytest.raises(Refused) as caught:
        paired.holm(p)
    assert caught.value.codes == ("E_ANALYSIS_INPUT",)


def test_fisher_as_published():
    assert paired.fisher_greater(40, 40, 33, 40) == pytest.approx(0.005869, abs=5e-7)
    assert paired.fisher_greater(20, 20, 16, 20) == pytest.approx(0.053015, abs=5e-7)


@pytest.mark.parametrize("table", [(5, 4, 1, 4), (1, 0, 1, 4), (1.0, 4, 1, 4), (-1, 4, 1, 4), (True, 4, 1, 4)])
def test_fisher_refuses_what_is_no_table(table):
    with pytest.raises(Refused) as caught:
        paired.fisher_greater(*table)
    assert caught.value.codes == ("E_ANALYSIS_INPUT",)


@pytest.mark.parametrize("seeds", [2, 3, 5, 7])
@pytest.mark.parametrize("scale", [0.0, 0.3])
def test_joint_test_equals_its_definition(seeds, scale):
    generator = np.random.default_rng(seeds)
    cells = generator.normal(0, 1, (6, seeds)) + np.array([0, 0, 0.5, 1, 3, -2])[:, None]
    cells[1] = 0.0
    cells[2] = 0.7  # all differences equal
    cells[3] = np.round(cells[3], 1)  # ties among patterns
    found = paired.sign_flip(cells, scale)
    raw, adjusted = brute_force(cells, np.full(6, scale))
    assert found.raw == pytest.approx(raw)
    assert found.adjusted == pytest.approx(adjusted)
    assert (found.adjusted >= found.raw).all()
    assert found.adjusted[1] == 1.0


def test_raw_p_is_scipys():
    cells = np.random.default_rng(0).normal(0.4, 1, (4, 9))
    for cell, p in zip(cells, paired.sign_flip(cells, 0.1).raw, strict=True):
        found = stats.permutation_test(
            (cell,), np.mean, permutation_type="samples", n_resamples=np.inf, alternative="two-sided"
        )
        assert p == pytest.approx(found.pvalue)


def test_shape_and_order_do_not_matter():
    cells = np.random.default_rng(1).normal(0.3, 1, (7, 8))
    order, seeds = np.random.default_rng(2).permutation(7), np.random.default_rng(2).permutation(8)
    found = paired.sign_flip(cells, 0.2).adjusted
    assert paired.sign_flip(cells[order][:, seeds], 0.2).adjusted == pytest.approx(found[order])
    assert paired.sign_flip(-cells, 0.2).adjusted == pytest.approx(found)


def test_smallest_attainable_p():
    assert paired.attainable_p(5) == 0.0625
    assert [paired.attainable_p(n) for n in (1, 2, 6, 15)] == [1.0, 0.5, 1 / 32, 2**-14]
    for n in (1, 2, 5, 6):
        assert paired.sign_flip(np.full((1, n), 0.3) + np.arange(n) / 100, 0.0).raw[0] == paired.attainable_p(n)
    assert paired.attainable_p(16) == 1 / 20_001


def test_beyond_the_exact_limit_is_seeded_and_says_so():
    cells = np.random.default_rng(5).normal([[0.0], [0.35], [3.0]], 1, (3, 20))
    found, again = paired.sign_flip(cells, 0.0), paired.sign_flip(cells, 0.0)
    assert found.method == "monte_carlo"
    assert (found.raw == again.raw).all()
    assert found.raw[2] == found.attainable == 1 / 20_001
    assert found.raw[:2] == pytest.approx(stats.ttest_1samp(cells[:2], 0, axis=1).pvalue, abs=0.02)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "function",
    [
        lambda d: paired.sign_flip(d, 0.0),
        lambda d: paired.summarize(d, 0.05),
        lambda d: paired.equivalence_p(d, 1.0),
        lambda d: paired.bootstrap_interval(d, 0.05),
    ],
)
def test_not_a_number_is_refused_before_any_call(function, bad):
    cells = np.ones((2, 6))
    cells[1, 3] = bad
    with pytest.raises(Refused) as caught:
        function(cells)
    assert caught.value.codes == ("E_ANALYSIS_INPUT",)


def test_the_trap_that_is_caught_is_real():
    """scipy answers a NaN with the smallest p there can be, or with none at all: never with a refusal."""
    with np.errstate(all="ignore"):
        p = stats.permutation_test(
            (np.array([1.0, np.nan, 2.0, 3.0]),), np.mean, permutation_type="samples", n_resamples=np.inf
        ).pvalue
    assert p == 0.0 or np.isnan(p)


def test_constant_differences_have_no_t_and_no_interval():
    summary = paired.summarize(np.full((1, 8), 0.25), 0.05)
    assert summary.constant[0]
    assert (summary.mean[0], summary.sd[0], summary.positive[0]) == (0.25, 0.0, 8)
    assert all(np.isnan(getattr(summary, name)[0]) for name in ("t", "p_t", "low", "high"))
    assert np.isnan(paired.bootstrap_interval(np.full((1, 8), 0.25), 0.05)).all()
    assert paired.sign_flip(np.full((1, 8), 0.25), 0.0).adjusted[0] == 2**-7


def test_equal_but_for_rounding_is_constant():
    """Levels .1, .3, … plus .2 minus themselves: 7 different doubles near .2, and no p of 1e-100."""
    level = np.arange(1, 9) / 10 + 0.05
    cells = ((level + 0.2) - level)[None]
    assert len(set(cells[0])) > 1
    summary = paired.summarize(cells, 0.05)
    assert summary.constant[0]
    assert np.isnan([summary.t[0], summary.p_t[0]]).all()
    assert paired.sign_flip(cells, 0.0).raw[0] == 2**-7
    assert paired.equivalence_p(cells, 0.3)[0] == 2**-8


def test_one_seed_and_all_zero_claim_nothing():
    one = paired.summarize(np.array([[0.4]]), 0.05)
    assert np.isnan([one.sd[0], one.t[0], one.p_t[0], one.low[0]]).all()
    assert paired.sign_flip(np.array([[0.4]]), 0.0).raw[0] == 1.0
    zero = np.zeros((1, 8))
    assert paired.sign_flip(zero, 0.0).adjusted[0] == 1.0
    assert np.isnan(paired.summarize(zero, 0.05).p_t[0])


def test_t_and_interval_are_scipys():
    cells = np.random.default_rng(4).normal(0.2, 1, (5, 7))
    found, summary = stats.ttest_1samp(cells, 0, axis=1), paired.summarize(cells, 0.1)
    assert summary.t == pytest.approx(found.statistic)
    assert summary.p_t == pytest.approx(found.pvalue)
    interval = found.confidence_interval(0.9)
    assert (summary.low, summary.high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_equivalence_is_the_two_one_sided_tests_of_statsmodels():
    cells = np.random.default_rng(6).normal(0.02, 0.05, (6, 9))
    for cell, p in zip(cells, paired.equivalence_p(cells, 0.06), strict=True):
        assert p == pytest.approx(DescrStatsW(cell).ttost_mean(-0.06, 0.06)[0])


@pytest.mark.parametrize(("constant", "p"), [(0.0, 2**-8), (0.04, 2**-8), (0.05, 1.0), (-0.2, 1.0)])
def test_equivalence_of_constant_differences_is_exact(constant, p):
    assert paired.equivalence_p(np.full((1, 8), constant), 0.05)[0] == p


def test_equivalence_of_one_seed_is_not_shown():
    assert paired.equivalence_p(np.array([[0.0]]), 0.05)[0] >= 0.5


def test_bootstrap_interval_covers_as_often_as_it_says():
    """Plain percentile intervals of 8 seeds miss the mean about 1 time in 9 at level .95."""
    cells = np.random.default_rng(8).normal(1.0, 2.0, (600, 8))
    low, high = paired.bootstrap_interval(cells, 0.05)
    covered = ((low <= 1.0) & (high >= 1.0)).mean()
    assert 0.93 <= covered <= 0.99
    assert (low < cells.mean(1)).all()
    assert (high > cells.mean(1)).all()
