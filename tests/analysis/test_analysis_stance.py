"""Stance: its truth table, and that it never speaks of runs that did not pass verification."""

import numpy as np
import pytest
from conftest import contract_spec

from vqkit.analysis import effects, stance
from vqkit.formats import calibration

PLAN = contract_spec()["analysis"]


@pytest.mark.parametrize(
    ("verdict", "mean", "expected", "answer"),
    [
        ("detected", 0.1, 1, ("supported", "as_expected")),
        ("detected", -0.1, 1, ("contradicted", "opposite")),
        ("detected", 0.1, -1, ("contradicted", "opposite")),
        ("detected", -0.1, -1, ("supported", "as_expected")),
        ("detected", 0.1, 0, ("contradicted", "opposite")),
        ("detected", -0.1, 0, ("contradicted", "opposite")),
        ("equivalent", 0.01, 1, ("contradicted", "equivalent")),
        ("equivalent", 0.01, 0, ("supported", "as_expected")),
        ("inconclusive", 0.1, 1, ("inconclusive", "not_detected")),
        ("inconclusive", 0.0, 0, ("inconclusive", "not_detected")),
        ("underpowered", 0.9, 1, ("inconclusive", "underpowered")),
        ("void_floor", 0.0, -1, ("inconclusive", "void")),
        ("void_ceiling", 0.0, 0, ("inconclusive", "void")),
    ],
)
def test_truth_table(verdict, mean, expected, answer):
    assert stance.judge(verdict, mean, expected) == answer


def test_every_answer_is_in_the_vocabulary():
    answers = [stance.judge(v, m, e) for v in calibration.VERDICTS for m in (-1.0, 1.0) for e in (-1, 0, 1)]
    assert {answer for answer, _ in answers} == set(calibration.STANCES)
    assert {reason for _, reason in answers} <= set(calibration.STANCE_REASONS)


def given(status="effective", metric="utilization", direction="increase", verified=None):
    values = {name: np.full((2, 2, 8), 0.4) for name in (*PLAN["metrics"], "psnr")}
    for name in values:
        values[name][1, 1] += 0.2 + np.arange(8) / 1000
    families = [effects.compare(values, names, (0, 5), PLAN) for names in (tuple(PLAN["metrics"]), ("psnr",))]
    arms = [
        {"label": label, "status": kind, "expected": {"metric": metric, "direction": direction}}
        for label, kind in (("reference", "reference"), ("arm-1", status))
    ]
    passed = np.ones((2, 8), dtype=bool) if verified is None else verified
    (record,) = stance.stances(arms, passed, families, 1)
    return record


def test_a_candidate_and_a_quality_metric_can_be_expected():
    assert given()["stance"] == "supported"
    assert given(direction="decrease")["stance"] == "contradicted"
    assert given(metric="psnr")["stance"] == "supported"
    assert given()["mark"] == 5


@pytest.mark.parametrize("arm", [0, 1])
def test_one_run_that_failed_verification_takes_the_stance_away(arm):
    verified = np.ones((2, 8), dtype=bool)
    verified[arm, 3] = False
    record = given(verified=verified)
    assert (record["stance"], record["reason"]) == (None, "unverified")


def test_a_manipulation_without_effect_supports_nothing():
    record = given(status="no_effect")
    assert (record["stance"], record["reason"]) == ("inconclusive", "no_effect")
