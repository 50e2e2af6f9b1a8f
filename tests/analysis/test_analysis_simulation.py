"""What the rules do over many campaigns: how often they cry wolf, and how often they find what was planted.

Campaigns are simulated at the level of arrays, through the same ``compare``, ``assess`` and ``decide`` as real ones.
"""

import math

import numpy as np
import pytest
from conftest import contract_spec

from vqkit.analysis import decide, effects, guardrails

PLAN = contract_spec()["analysis"]
METRICS, MARKS = tuple(PLAN["metrics"]), (0, 2, 5, 10)
ARMS = 6


def draw(generator, planted, *, seeds=8, sigma=0.03, correlation=0.7, lost=()):
    """Values [A, T, S] of the two metrics and of the quality metrics.

    A run's deviation is shared over marks and metrics to the degree ``correlation``, as one trajectory's would be;
    ``planted`` is arm → effect at marks 2, 5, 10; ``lost`` holds (arm, seed) that diverged.
    """
    shape = ARMS + 1, len(MARKS), seeds
    run = generator.normal(0, 1, (ARMS + 1, 1, seeds))
    values = {}
    for metric in METRICS:
        own = generator.normal(0, 1, shape)
        values[metric] = 0.4 + sigma * (math.sqrt(correlation) * run + math.sqrt(1 - correlation) * own)
        for a, effect in planted.items():
            values[metric][a, 1:] += np.array(effect)[:, None]
    values["psnr"] = 20 + generator.normal(0, 0.2, shape)
    values["ssim"] = 0.6 + generator.normal(0, 0.01, shape)
    for a, seed in lost:
        for metric, value in PLAN["intention_to_treat"].items():
            if metric in values:
                values[metric][a, :, seed] = value
    return values


def run(values):
    family = effects.compare(values, METRICS, MARKS, PLAN)
    guards = [guardrails.judge(values[guard["metric"]], guard, PLAN["alpha"]) for guard in PLAN["guardrails"]]
    status = guardrails.combined(guards, (ARMS, len(MARKS)))
    return decide.decide(family, status, [f"arm-{a}" for a in range(1, ARMS + 1)], PLAN), family


def false_positives(campaigns, **how):
    """How many null campaigns have a responsive mark, and how many have anything detected at all."""
    generator = np.random.default_rng(2024)
    responsive = detected = 0
    for _ in range(campaigns):
        decision, family = run(draw(generator, {}, **how))
        responsive += any(decision["responsive_marks"].values())
        detected += any((one.verdict == "detected").any() for one in family.effects.values())
    return responsive, detected


def at_most(alpha, campaigns):
    """The largest count that a rate of α gives in all but one of a thousand experiments."""
    return alpha * campaigns + 3.1 * math.sqrt(alpha * (1 - alpha) * campaigns)


def test_null_campaigns_are_rarely_responsive():
    responsive, detected = false_positives(300)
    assert responsive <= at_most(PLAN["alpha"], 300)
    assert detected <= at_most(PLAN["alpha"], 300)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [6, 8, 11])
@pytest.mark.parametrize("lost", [(), ((1, 0), (2, 3), (2, 4))])
def test_false_positive_rate_of_two_thousand_null_campaigns(seeds, lost):
    responsive, detected = false_positives(2000, seeds=seeds, lost=lost)
    assert responsive <= at_most(PLAN["alpha"], 2000)
    assert detected <= at_most(PLAN["alpha"], 2000)


def test_the_check_can_fail():
    """Without adjustment for the number of cells the same campaigns would cry wolf far too often."""
    generator, alone = np.random.default_rng(2024), 0
    for _ in range(100):
        family = effects.compare(draw(generator, {}), METRICS, MARKS, PLAN)
        alone += any((one.raw[:, 1:] <= PLAN["alpha"]).any() for one in family.effects.values())
    assert alone > 3 * at_most(PLAN["alpha"], 100)


def share(campaigns, planted, found, **how):
    """In how many campaigns ``found(decision)`` holds."""
    generator = np.random.default_rng(7)
    return np.mean([found(run(draw(generator, planted, **how))[0]) for _ in range(campaigns)])


def test_planted_arms_are_found_with_power():
    planted = {1: (0.0, 0.15, 0.2), 2: (0.0, -0.15, -0.2)}

    def found(decision):
        return (decision["budget_mark"], decision["known_better"], decision["known_worse"]) == (5, ["arm-1"], ["arm-2"])

    assert share(60, planted, found) >= 0.9


def test_power_falls_with_the_effect_and_rises_with_the_seeds():
    def found(decision):
        return decision["status"] == "calibrated"

    small = {1: (0.05, 0.05, 0.05), 2: (-0.05, -0.05, -0.05)}
    few, many = share(40, small, found), share(40, small, found, seeds=12)
    large = share(40, {1: (0.2, 0.2, 0.2), 2: (-0.2, -0.2, -0.2)}, found)
    assert few < many
    assert few < large
    assert large == 1.0


def test_an_arm_that_breaks_a_guardrail_is_not_chosen():
    generator, chosen = np.random.default_rng(3), 0
    for _ in range(40):
        values = draw(generator, {1: (0.3, 0.3, 0.3), 2: (-0.2, -0.2, -0.2), 3: (0.2, 0.2, 0.2)})
        values["psnr"][1] -= 2.0
        decision, _ = run(values)
        chosen += "arm-1" in decision["known_better"]
        assert decision["known_better"] == ["arm-3"]
    assert chosen == 0


def test_an_effect_that_reverses_is_reported():
    planted = {1: (0.2, 0.0, -0.2), 2: (-0.2, -0.2, -0.2), 3: (0.2, 0.2, 0.2)}
    generator = np.random.default_rng(5)
    for _ in range(20):
        values = draw(generator, planted)
        decision, _ = run(values)
        assert "reversed_later" in [reason["code"] for reason in decision["reasons"]]
        labels = ["reference", *(f"arm-{a}" for a in range(1, ARMS + 1))]
        found, _, _ = decide.rank_reversals({"utilization": values["utilization"]}, MARKS, labels)
        assert any(one["ahead_at_mark"] == "arm-1" and one["ahead_at_last"] == "reference" for one in found)


def test_lost_cells_speak_against_an_arm_never_for_it():
    """Arm 1 improves where it survives; with two of eight seeds diverged it is no known-better arm any more."""
    planted = {1: (0.2, 0.2, 0.2), 2: (-0.2, -0.2, -0.2), 3: (0.2, 0.2, 0.2)}

    def named(decision):
        return "arm-1" in decision["known_better"]

    assert share(20, planted, named) == 1.0
    assert share(20, planted, named, lost=((1, 0), (1, 5))) == 0.0
    assert share(20, planted, lambda decision: decision["known_better"] == ["arm-3"], lost=((1, 0),)) >= 0.9


def test_one_lost_reference_run_makes_no_arm_better():
    """Every arm gains by the reference's loss on that seed; alone it must not make any of them known."""

    def named(decision):
        return bool(decision["known_better"])

    assert share(60, {}, named, lost=((0, 2),)) <= PLAN["alpha"]
