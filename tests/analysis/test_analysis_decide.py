"""Guardrails, verdicts and the decision, on arrays small enough to decide by hand."""

import copy

import numpy as np
import pytest
from conftest import contract_spec

from vqkit.analysis import decide, effects, guardrails

PLAN = contract_spec()["analysis"]
MARKS = (0, 2, 5, 10)
SEEDS = 8
WOBBLE = np.array([0.01, -0.01, 0.005, -0.005, 0.008, -0.008, 0.002, -0.002])  # sums to 0: means are what is planted
GUARD = {"metric": "psnr", "margin": 0.5, "limit": 12.0}


def plan(**changes):
    return {**copy.deepcopy(PLAN), **changes}


def surface(*arms, base=0.4):
    """Values [A, T, S] of both metrics: a flat reference, then arms given by their effect at marks 2, 5 and 10."""
    values = np.full((1 + len(arms), len(MARKS), SEEDS), base)
    for a, planted in enumerate(arms, start=1):
        values[a, 0] += np.roll(WOBBLE, a) / 10
        for t, effect in enumerate(planted, start=1):
            values[a, t] += effect + np.roll(WOBBLE, 3 * a + t)
    return {metric: values.copy() for metric in PLAN["metrics"]}


def decided(values, guard=None, rules=None, **options):
    labels = [f"arm-{a}" for a in range(1, len(values["utilization"]))]
    rules = rules or plan()
    family = effects.compare(values, tuple(rules["metrics"]), MARKS, rules)
    shape = len(labels), len(MARKS)
    status = np.full(shape, "ok", dtype=object) if guard is None else guard
    return decide.decide(family, status, labels, rules, **options), family


def codes(records):
    return [record["code"] for record in records]


# guardrails


def judged(differences, *, level=20.0, guard=GUARD, alpha=0.05):
    """Status of one arm at one mark whose paired differences are given."""
    values = np.full((2, 1, len(differences)), level)
    values[1, 0] += differences
    return guardrails.judge(values, guard, alpha)


def test_guardrail_limits_by_hand():
    """Mean −.1, sd .2 of 4 seeds: one-sided t limit 2.353363 · .1 = .235336."""
    one = judged(-0.1 + 0.2 * np.sqrt(1.5) * np.array([-1.0, 0.0, 0.0, 1.0]))
    assert one.mean[0, 0] == pytest.approx(-0.1)
    assert one.low[0, 0] == pytest.approx(-0.335336, abs=1e-6)
    assert one.high[0, 0] == pytest.approx(0.135336, abs=1e-6)
    assert one.status[0, 0] == "ok"


@pytest.mark.parametrize(
    ("mean", "status"), [(0.3, "ok"), (-0.3, "ok"), (-0.5, "inconclusive"), (-0.52, "inconclusive"), (-0.8, "broken")]
)
def test_guardrail_has_three_values(mean, status):
    assert judged(mean + 10 * WOBBLE).relative[0, 0] == status


def test_a_guardrail_is_not_ok_for_want_of_evidence():
    assert judged(np.array([0.0])).status[0, 0] == "inconclusive"
    assert judged(np.array([0.0, -3.0, 3.0, 0.0])).status[0, 0] == "inconclusive"


def test_equal_differences_decide_a_guardrail_exactly():
    assert judged(np.zeros(6)).status[0, 0] == "ok"
    assert judged(np.full(6, -0.75)).status[0, 0] == "broken"
    assert judged(np.zeros(6), guard={**GUARD, "margin": 0.0}).status[0, 0] == "ok"


@pytest.mark.parametrize(("level", "status"), [(12.5, "ok"), (12.0, "inconclusive"), (11.9, "broken")])
def test_absolute_limit(level, status):
    assert judged(10 * WOBBLE, level=level).absolute[0, 0] == status


def test_worse_of_the_two_questions_counts():
    one = judged(10 * WOBBLE, level=11.0)
    assert (one.relative[0, 0], one.absolute[0, 0], one.status[0, 0]) == ("ok", "broken", "broken")
    worst = guardrails.combined([one, judged(10 * WOBBLE)], (1, 1))
    assert worst[0, 0] == "broken"
    assert guardrails.combined([], (1, 1))[0, 0] == "ok"


def test_less_is_better_for_mse():
    guard = {"metric": "mse", "margin": 0.01, "limit": 0.1}
    assert judged(-0.02 + WOBBLE, level=0.05, guard=guard).status[0, 0] == "ok"
    worse = judged(0.04 + WOBBLE, level=0.05, guard=guard)
    assert worse.status[0, 0] == "broken"
    assert worse.mean[0, 0] == pytest.approx(0.04)
    assert worse.low[0, 0] < 0.04 < worse.high[0, 0]
    assert judged(WOBBLE, level=0.2, guard=guard).absolute[0, 0] == "broken"


# verdicts


def test_verdicts_of_planted_effects():
    family = decided(surface((0.1, 0.2, 0.3), (-0.1, -0.2, -0.3), (0.0, 0.0, 0.0)))[1]
    verdict = family.effects["utilization"].verdict
    assert list(verdict[0]) == [None, "detected", "detected", "detected"]
    assert list(verdict[1]) == [None, "detected", "detected", "detected"]
    assert list(verdict[2]) == [None, "equivalent", "equivalent", "equivalent"]


def test_not_detected_with_much_noise_is_inconclusive_not_equivalent():
    values = surface((0.0, 0.0, 0.0))
    for metric in values:
        values[metric][1, 1:] += 20 * WOBBLE
    assert set(decided(values)[1].effects["utilization"].verdict[0, 1:]) == {"inconclusive"}


@pytest.mark.parametrize(("base", "verdict"), [(0.01, "void_floor"), (0.99, "void_ceiling")])
def test_floor_and_ceiling_are_void(base, verdict):
    values = surface((0.0, 0.0, 0.0), base=base)
    assert set(decided(values)[1].effects["utilization"].verdict[0, 1:]) == {verdict}


def test_leaving_the_floor_is_visible():
    family = decided(surface((0.2, 0.2, 0.2), base=0.01))[1]
    assert set(family.effects["utilization"].verdict[0, 1:]) == {"detected"}


@pytest.mark.parametrize("seeds", [1, 2, 5])
def test_too_few_seeds_are_underpowered_whatever_the_effect(seeds):
    values = {metric: array[:, :, :seeds] for metric, array in surface((0.3, 0.3, 0.3)).items()}
    decision, family = decided(values)
    assert set(family.effects["utilization"].verdict[0, 1:]) == {"underpowered"}
    assert codes(decision["reasons"])[0] == "underpowered"
    assert decision["what_to_change"][0]["code"] == "add_seeds"
    assert decision["what_to_change"][0]["seeds"] == 6


def test_alpha_below_what_seeds_can_reach_is_underpowered():
    decision, _ = decided(surface((0.3, 0.3, 0.3)), rules=plan(alpha=0.001, minimum_seeds=2))
    assert codes(decision["reasons"])[0] == "underpowered"
    assert decision["what_to_change"][0]["seeds"] == 11  # 2^-10 is the first below .001


def test_mark_zero_is_described_and_never_tested():
    values = surface((0.1, 0.2, 0.3), (-0.1, -0.2, -0.3))
    for metric in values:
        values[metric][1, 0] += 0.5
    one = decided(values)[1].effects["utilization"]
    assert one.summary.mean[0, 0] == pytest.approx(0.5)
    assert np.isnan(one.adjusted[0, 0])
    assert one.verdict[0, 0] is None
    assert decided(values)[0]["budget_mark"] == 2


# the decision


def test_budget_is_the_smallest_responsive_mark():
    decision, _ = decided(surface((0.0, 0.1, 0.2), (0.0, -0.1, -0.2), (0.0, 0.0, 0.0)))
    assert (decision["status"], decision["budget_mark"]) == ("calibrated", 5)
    assert decision["responsive_marks"] == {"normalized_perplexity": [5, 10], "utilization": [5, 10]}
    assert (decision["known_better"], decision["known_worse"]) == (["arm-1"], ["arm-2"])
    assert decision["what_to_change"] == []


def test_both_directions_at_one_mark_are_needed():
    decision, _ = decided(surface((0.1, 0.0, 0.0), (0.0, 0.0, -0.1)))
    assert decision["status"] == "refused"
    assert set(codes(decision["reasons"])) == {"never_together"}
    assert codes(decision["what_to_change"]) == ["train_longer"]


@pytest.mark.parametrize(("sign", "reason"), [(1, "no_worse_arm"), (-1, "no_better_arm")])
def test_one_direction_alone_is_refused_and_says_which_is_missing(sign, reason):
    decision, _ = decided(surface((sign * 0.1, sign * 0.1, sign * 0.1), (0.0, 0.0, 0.0)))
    assert decision["status"] == "refused"
    assert set(codes(decision["reasons"])) == {reason}
    assert "stronger_arms" in codes(decision["what_to_change"])


@pytest.mark.parametrize("status", ["broken", "inconclusive"])
def test_an_arm_without_its_guardrails_is_no_improvement(status):
    values = surface((0.2, 0.2, 0.2), (-0.1, -0.1, -0.1), (0.1, 0.1, 0.1))
    guard = np.full((3, 4), "ok", dtype=object)
    guard[0] = status
    decision, _ = decided(values, guard)
    assert decision["known_better"] == ["arm-3"]
    guard[2] = status
    decision, _ = decided(values, guard)
    assert decision["status"] == "refused"
    assert set(codes(decision["reasons"])) == {"guardrail"}
    assert codes(decision["what_to_change"]) == ["weaker_arms"]


def test_a_guardrail_does_not_matter_to_an_arm_that_worsens():
    guard = np.full((2, 4), "ok", dtype=object)
    guard[1] = "broken"
    assert decided(surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1)), guard)[0]["known_worse"] == ["arm-2"]


def test_one_seed_of_another_sign_forbids_responsive():
    values = surface((0.2, 0.2, 0.2), (-0.1, -0.1, -0.1))
    for metric in values:
        values[metric][1, 1:, 0] = 0.399
    decision, family = decided(values)
    assert "detected" in family.effects["utilization"].verdict[0]
    assert decision["status"] == "refused"


@pytest.mark.parametrize(
    ("base", "reason", "change"), [(0.015, "floor", "train_longer"), (0.985, "ceiling", "other_metric")]
)
def test_a_metric_at_its_end_is_not_responsive(base, reason, change):
    decision, _ = decided(surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1), base=base))
    assert decision["status"] == "refused"
    assert set(codes(decision["reasons"])) == {reason}
    assert codes(decision["what_to_change"]) == [change]


def test_all_ties_are_refused():
    values = {metric: np.full((3, 4, 8), 0.4) for metric in PLAN["metrics"]}
    decision, family = decided(values)
    assert set(codes(decision["reasons"])) == {"tied"}
    assert codes(decision["what_to_change"]) == ["check_arms"]
    assert set(family.effects["utilization"].verdict[:, 1:].flat) == {"equivalent"}


def test_a_metric_that_is_closed_for_mixed_reasons_still_says_what_to_change():
    values = surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1), base=0.985)
    for metric in values:
        values[metric][:, 1] = 0.4  # tied at the first mark, at the ceiling later
    decision, _ = decided(values)
    assert set(codes(decision["reasons"])) == {"tied", "ceiling"}
    assert codes(decision["what_to_change"]) == ["other_metric", "check_arms"]


def test_primary_metric_is_the_more_sensitive_one():
    values = surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1))
    values["normalized_perplexity"] = 0.4 + 0.5 * (values["normalized_perplexity"] - 0.4)
    assert decided(values)[0]["primary_metric"] == "utilization"
    values = surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1))
    assert decided(values)[0]["primary_metric"] == "normalized_perplexity"  # equal: the first of the contract
    values["normalized_perplexity"][:] = 0.99
    assert decided(values)[0]["primary_metric"] == "utilization"
    assert "only_metric" in codes(decided(values)[0]["reasons"])


def test_a_metric_whose_trial_fits_the_seeds_comes_first():
    values = surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1))
    values["normalized_perplexity"] = 0.4 + 0.5 * (values["normalized_perplexity"] - 0.4)
    for fitting, primary, reason in (
        ({"normalized_perplexity", "utilization"}, "utilization", "more_sensitive"),
        ({"normalized_perplexity"}, "normalized_perplexity", "fits_seeds"),
        (set(), "utilization", "more_sensitive"),  # none fits: the calibration says how many seeds it would take
    ):
        decision, _ = decided(values, fits=lambda metric, t, fitting=fitting: metric in fitting and t == 1)
        assert (decision["budget_mark"], decision["primary_metric"]) == (2, primary)
        assert reason in codes(decision["reasons"])


def test_an_arm_that_breaks_its_guardrails_does_not_choose_the_metric():
    values = surface((0.1, 0.1, 0.1), (-0.1, -0.1, -0.1), (0.0, 0.0, 0.0))
    values["utilization"][3, 1:] += 0.5
    guard = np.full((3, 4), "ok", dtype=object)
    guard[2] = "broken"
    assert decided(values)[0]["primary_metric"] == "utilization"
    assert decided(values, guard)[0]["primary_metric"] == "normalized_perplexity"


def test_known_arms_that_turn_later_are_named():
    decision, _ = decided(surface((0.1, 0.0, -0.1), (-0.1, -0.1, -0.1)))
    assert decision["budget_mark"] == 2
    assert "reversed_later" in codes(decision["reasons"])
    assert "arm-1 point" in decision["reasons"][-1]["text"]


def test_constant_differences_are_detected_with_the_attainable_p():
    values = {metric: np.full((3, 4, 8), 0.4) for metric in PLAN["metrics"]}
    for metric in values:
        values[metric][1, 1:] += 0.1
        values[metric][2, 1:] -= 0.1
    decision, family = decided(values)
    assert decision["status"] == "calibrated"
    one = family.effects["utilization"]
    assert set(one.adjusted[:, 1:].flat) == {2**-7}
    assert np.isnan(one.summary.p_t).all()


# rank reversals and completion


def test_published_reversal_of_the_commitment_weight():
    """Public CIFAR-10 runs, K = 1,024: at 2 epochs β = 1.0 leads and .1 trails; at 20 epochs .1 leads."""
    curves = {"beta-1": (0.0, 0.30, 0.35), "beta-0.25": (0.0, 0.25, 0.40), "beta-0.1": (0.0, 0.20, 0.45)}
    values = np.array([[[level + 0.001 * seed for seed in range(8)] for level in curve] for curve in curves.values()])
    found, count, compared = decide.rank_reversals({"utilization": values}, (0, 2, 20), list(curves))
    assert (count, compared) == (3, 3)
    assert found[0] == {
        "metric": "utilization",
        "mark": 2,
        "last_mark": 20,
        "ahead_at_mark": "beta-1",
        "ahead_at_last": "beta-0.1",
        "difference_at_mark": pytest.approx(0.1),
        "difference_at_last": pytest.approx(0.1),
    }


def test_a_reversal_needs_every_seed():
    values = np.zeros((2, 3, 8))
    values[0, 1], values[1, 2] = 0.1, 0.1
    assert decide.rank_reversals({"utilization": values}, (0, 2, 20), ["a", "b"])[1] == 1
    values[0, 1, 3] = -0.1
    assert decide.rank_reversals({"utilization": values}, (0, 2, 20), ["a", "b"])[1] == 0


def test_arms_that_fail_more_often():
    lost = np.zeros((4, 8), dtype=bool)
    lost[1], lost[2, :2] = True, True
    found = {record["arm"]: record for record in decide.completion(lost, ["reference", "a", "b", "c"], 0.05)}
    assert found["a"]["fails_more"]
    assert (found["a"]["complete"], found["a"]["failed"]) == (0, 8)
    assert found["a"]["p_adjusted"] == pytest.approx(3 / 12870)  # one of C(16, 8) tables, times three arms
    assert not found["b"]["fails_more"]
    assert found["reference"]["p"] is None
