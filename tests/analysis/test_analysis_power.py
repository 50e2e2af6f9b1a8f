"""Sample sizes: the published values, statsmodels, inverses of each other, and simulation."""

import json
import math

import pytest
from scipy import stats
from statsmodels.stats.power import TTestPower

from vqkit.analysis import paired, power
from vqkit.analysis.__main__ import main
from vqkit.errors import UsageError


def test_sigma_equal_to_delta():
    assert power.seeds_normal(0.05, 0.05, 0.05, 0.8) == 8
    assert power.seeds_t(0.05, 0.05, 0.05, 0.8) == 10
    assert paired.attainable_p(5) == 0.0625
    assert power.seeds_floor(0.05) == 6
    assert power.three_ways(0.05, 0.05, 0.05, 0.8) == {"normal": 8, "t": 10, "permutation_floor": 6, "plan": 10}


@pytest.mark.parametrize(("sigma", "alpha", "goal"), [(0.05, 0.05, 0.8), (0.1, 0.01, 0.9), (0.3, 0.1, 0.5)])
def test_t_power_is_statsmodels(sigma, alpha, goal):
    n = power.seeds_t(sigma, 0.05, alpha, goal)
    reference = TTestPower().solve_power(effect_size=0.05 / sigma, alpha=alpha, power=goal)
    assert n == math.ceil(reference - 1e-6)
    for seeds in (3, 8, 20):
        expected = TTestPower().power(0.05 / sigma, seeds, alpha)
        assert power.t_power(seeds, sigma, 0.05, alpha) == pytest.approx(expected, abs=1e-9)


def test_power_of_an_overwhelming_difference_is_one():
    assert power.t_power(6, 1e-9, 1.0, 0.05) == 1.0
    assert power.t_power(1, 1e-9, 1.0, 0.05) == 0.0


def test_detectable_undoes_power():
    delta = power.detectable(10, 0.05, 0.05, 0.8)
    assert power.t_power(10, 0.05, delta, 0.05) == pytest.approx(0.8, abs=1e-9)
    assert delta < 0.05 < power.detectable(9, 0.05, 0.05, 0.8)
    assert power.detectable(1, 0.05, 0.05, 0.8) == math.inf


@pytest.mark.parametrize("alpha", [0.05, 0.01, 0.0625, 0.5])
def test_floor_is_the_first_number_of_seeds_that_reaches_alpha(alpha):
    n = power.seeds_floor(alpha)
    assert paired.attainable_p(n) <= alpha
    assert paired.attainable_p(n - 1) > alpha


def test_sigma_limits_by_hand():
    """χ² quantiles of 7 degrees of freedom: 1.689869 (.025), 16.012764 (.975), 3.822322 (.2)."""
    low, high, upper = power.sigma_limits(1.0, 7, 0.05)
    assert low == pytest.approx(math.sqrt(7 / 16.012764), rel=1e-6)
    assert high == pytest.approx(math.sqrt(7 / 1.689869), rel=1e-6)
    assert upper == pytest.approx(math.sqrt(7 / 3.822322), rel=1e-6)
    assert power.sigma_limits(1.0, 0, 0.05) == (0.0, math.inf, math.inf)


def test_pooled_sigma_by_hand():
    assert power.pooled_sigma([[0.0, 2.0], [0.0, 4.0], [7.0, 7.0]]) == pytest.approx(math.sqrt((2 + 8) / 2))
    assert power.pooled_sigma([[1.0], [2.0]]) is None
    assert power.pooled_sigma([[1.0, 1.0]]) is None


def test_simulation_under_the_null_keeps_alpha():
    found, error = power.simulate(8, 1.0, 1e-12, 0.05, simulations=4000)
    assert found <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 4000)
    assert error == pytest.approx(math.sqrt(found * (1 - found) / 4000))


def test_sign_flip_test_at_its_floor_is_the_chance_of_one_sign():
    """With 6 seeds it rejects exactly when all signs agree: Φ(δ/σ)^6 + Φ(−δ/σ)^6."""
    found, error = power.simulate(6, 1.0, 1.2, 0.05, simulations=4000)
    expected = stats.norm.cdf(1.2) ** 6 + stats.norm.cdf(-1.2) ** 6
    assert found == pytest.approx(expected, abs=4 * error)


def test_plan_makes_up_for_what_the_sign_flip_test_lacks():
    """At δ/σ = 1.43 six seeds are enough for the t-test, not for the sign-flip test."""
    ways = power.three_ways(0.035, 0.05, 0.05, 0.8)
    found, error = power.simulate(ways["plan"], 0.035, 0.05, 0.05)
    assert ways["plan"] >= max(ways["t"], ways["permutation_floor"])
    assert found + 2 * error >= 0.8
    assert power.simulate(6, 0.05, power.detectable(6, 0.05, 0.05, 0.8), 0.05)[0] < 0.75


@pytest.mark.parametrize(
    "sizes", [(0, 1, 0.05, 0.8), (1, 0, 0.05, 0.8), (1, 1, 0, 0.8), (1, 1, 0.05, 1), (math.nan, 1, 0.05, 0.8)]
)
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(UsageError) as caught:
        power.seeds_t(*sizes)
    assert caught.value.codes == ("E_USAGE",)


def test_a_difference_that_nothing_can_show_is_refused():
    with pytest.raises(UsageError):
        power.seeds_t(1.0, 1e-6, 0.05, 0.8)


def test_command_answers_both_ways(capsys):
    main(["power", "--sigma", "0.05", "--delta", "0.05"])
    assert "normal formula 8, t solution 10, permutation floor 6; plan 10 seeds" in capsys.readouterr().out
    main(["power", "--sigma", "0.05", "--seeds", "10", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["delta"] == pytest.approx(power.detectable(10, 0.05, 0.05, 0.8))
    assert found["simulated_power"] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("extra", "where"),
    [
        ([], ["power"]),
        (["--delta", "0.1", "--seeds", "6"], ["power"]),
        (["--seeds", "1"], ["seeds"]),
        (["--delta", "0.1", "--plot", "x.gif"], ["python -m vqkit.analysis power"]),
        (["--delta", "0.1", "--plot", "no/such/folder/x.svg"], ["python -m vqkit.analysis power"]),
        (["--delta", "0", "--alpha", "1", "--power", "nan"], ["delta", "alpha", "power"]),
        (["--delta", "0.1", "--alpha", "1e-300"], ["alpha"]),
        (["--sigma", "1e308", "--delta", "1e308"], ["sigma", "delta"]),
        (["--sigma", "0", "--seeds", "6"], ["sigma"]),
    ],
)
def test_command_refuses_half_a_question(extra, where):
    with pytest.raises(UsageError) as caught:
        main(["power", "--sigma", "0.05", *extra])
    assert set(caught.value.codes) == {"E_USAGE"}
    assert [problem.where for problem in caught.value.problems] == where


def test_numbers_at_the_limits_are_answered(capsys):
    for numbers in (["1e-40", "1e40"], ["1e-40", "1e-40"], ["1e40", "1e40"]):
        main(["power", "--sigma", numbers[0], "--delta", numbers[1], "--alpha", "1e-11"])
    assert "plan" in capsys.readouterr().out


def test_command_draws(tmp_path, capsys):
    for kind, start in (("svg", b"<svg"), ("png", b"\x89PNG")):
        main(["power", "--sigma", "0.05", "--delta", "0.05", "--plot", str(tmp_path / f"p.{kind}")])
        assert (tmp_path / f"p.{kind}").read_bytes().startswith(start)
