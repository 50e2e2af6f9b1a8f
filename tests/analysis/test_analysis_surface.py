"""The fitted surface: planted coefficients come back, and what can't be estimated is said, not guessed."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import statsmodels.api as sm
from conftest import contract_spec

from vqkit.analysis import effects, surface
from vqkit.formats.contract import Contract

CONTRACT = Contract(contract_spec())
MARKS, SEEDS = (0, 2, 5, 10), 6
CENTRE = (math.log2(2) + math.log2(5) + math.log2(10)) / 3


def campaign(*settings, truth, noise=0.0):
    """Arms by their changed knobs; ``truth(positions, centred log2 epoch)`` is the effect."""
    generator = np.random.default_rng(0)
    arms = [{"label": "reference", "effective": CONTRACT.baseline}]
    values = np.full((1 + len(settings), len(MARKS), SEEDS), 0.4)
    values += generator.normal(0, 0.02, (1, 1, SEEDS))  # the seeds' own level, which pairing removes
    for a, changed in enumerate(settings, start=1):
        arms.append({"label": f"arm-{a}", "effective": {**CONTRACT.baseline, **changed}})
        where = {
            name: surface.position(name, level, CONTRACT.baseline[name])
            for name, level in changed.items()
            if not isinstance(level, str)
        }
        for t, mark in enumerate(MARKS[1:], start=1):
            values[a, t] += truth(where, math.log2(mark) - CENTRE) + generator.normal(0, 1, SEEDS) * noise
    family = effects.compare({"utilization": values}, ("utilization",), MARKS, CONTRACT.analysis)
    return SimpleNamespace(arms=arms, marks=MARKS, seeds=tuple(range(SEEDS))), family.effects["utilization"]


def terms(found):
    return {term["name"]: term["estimate"] for term in found["terms"]}


LEVELS = [{"projection_lr_multiplier": level} for level in (0.1, 3.0, 10.0, 100.0)]


def test_planted_coefficients_come_back():
    name = "projection_lr_multiplier"
    loaded, one = campaign(
        *LEVELS, truth=lambda w, e: 0.1 * w[name] - 0.03 * w[name] ** 2 + 0.05 * w[name] * e + 0.01 * w[name] ** 2 * e
    )
    found = surface.fit(loaded, one, 0.05)
    assert found["status"] == "fitted"
    expected = {name: 0.1, f"{name}:epoch": 0.05, f"{name}^2": -0.03, f"{name}^2:epoch": 0.01}
    assert terms(found) == pytest.approx(expected)
    assert found["r_squared"] == pytest.approx(1.0)
    at = surface.predict_at(found, name, 1.0, 5, MARKS)
    assert at == pytest.approx(0.07 + 0.06 * (math.log2(5) - CENTRE))


def test_joint_fit_is_the_mean_of_the_seeds_and_matches_statsmodels():
    name = "projection_lr_multiplier"
    loaded, one = campaign(*LEVELS, truth=lambda w, e: 0.1 * w[name], noise=0.02)
    found = surface.fit(loaded, one, 0.05)
    rows = [(a, t) for a in range(4) for t in range(1, 4)]
    x = np.array([math.log10(LEVELS[a][name]) for a, _ in rows])
    e = np.array([math.log2(MARKS[t]) - CENTRE for _, t in rows])
    design = np.column_stack([x, x * e, x**2, x**2 * e])
    each = np.array([sm.OLS([one.differences[a, t, s] for a, t in rows], design).fit().params for s in range(SEEDS)])
    assert [term["estimate"] for term in found["terms"]] == pytest.approx(each.mean(0))
    assert [term["se"] for term in found["terms"]] == pytest.approx(each.std(0, ddof=1) / math.sqrt(SEEDS))
    assert found["terms"][0]["low"] < 0.1 < found["terms"][0]["high"]


def test_interaction_is_fitted_where_a_corner_arm_exists():
    first, second = "projection_lr_multiplier", "commitment_weight"
    single = [*LEVELS, {second: 0.1}, {second: 1.0}]

    def truth(w, e):
        return 0.1 * w.get(first, 0) + 0.2 * w.get(second, 0) - 0.3 * w.get(first, 0) * w.get(second, 0)

    without = surface.fit(*campaign(*single, truth=truth), 0.05)
    assert (without["interactions"], without["missing_interactions"]) == ([], [[first, second]])
    assert f"{first}:{second}" not in terms(without)
    corner = surface.fit(*campaign(*single, {first: 10.0, second: 1.0}, truth=truth), 0.05)
    assert (corner["interactions"], corner["missing_interactions"]) == ([[first, second]], [])
    assert terms(corner)[f"{first}:{second}"] == pytest.approx(-0.3)


def test_one_level_has_no_curvature():
    found = surface.fit(*campaign({"commitment_weight": 1.0}, truth=lambda w, e: 0.1), 0.05)
    assert set(terms(found)) == {"commitment_weight", "commitment_weight:epoch"}


def test_choices_and_level_zero_stand_outside():
    arms = [*LEVELS, {"basis_init": "orthogonal"}, {"commitment_weight": 0.0}]
    found = surface.fit(*campaign(*arms, truth=lambda w, e: 0.1), 0.05)
    assert found["excluded"] == ["arm-5", "arm-6"]
    assert found["knobs"] == ["projection_lr_multiplier"]


def test_a_knob_whose_baseline_is_zero_has_a_place():
    assert surface.position("projection_warmup_steps", 0, 0) == 0
    assert surface.position("projection_warmup_steps", 99, 0) == 2
    assert surface.position("commitment_weight", 0.0, 0.25) is None
    assert surface.position("commitment_weight", 2.5, 0.25) == pytest.approx(1)


def test_nothing_to_fit_is_said():
    none = surface.fit(*campaign({"basis_init": "orthogonal"}, truth=lambda w, e: 0.1), 0.05)
    assert (none["status"], none["note"]) == ("not_estimable", "no arm changes numeric knobs alone")
    flat = surface.fit(*campaign(*LEVELS, truth=lambda w, e: 0.0), 0.05)
    assert flat["status"] == "not_estimable"
    assert flat["terms"] == []
