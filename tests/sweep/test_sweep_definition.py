"""Sweep definitions: what the shipped one says, and every way in which one can be wrong."""

import json

import pytest
import yaml
from conftest import artifact, contract_spec

from runner.sweep import definition
from vqkit.errors import Refused, Rejected
from vqkit.formats.contract import CONFIGS, Contract

EXPECTED = {"metric": "utilization", "direction": "increase"}


def sweep(*arms, **others):
    return {"name": "s", "reference": "reference", "arms": list(arms), "seeds": {"count": 2}, **others}


def inline(label, **levels):
    return {"label": label, "set": levels, "expected": EXPECTED}


def shipped():
    return yaml.safe_load((CONFIGS / "sweep" / "calibration.yaml").read_text())


def found(error):
    """(code, place) of every problem."""
    return {(problem.code, problem.where) for problem in error.value.problems}


@pytest.mark.parametrize("name", ["quick-v1", "cifar10-v1"])
def test_shipped_sweep_uses_every_shipped_artifact(name):
    resolved = definition.resolve(shipped(), Contract(contract_spec(name)), "development")
    assert len(resolved.arms) >= 8
    assert resolved.seeds == tuple(range(101, 109))
    assert resolved.marks == tuple(contract_spec(name)["marks"])
    assert [arm.role for arm in resolved.arms] == ["reference"] + ["arm"] * (len(resolved.arms) - 1)
    files = {path.read_bytes() for path in (CONFIGS / "intervention").glob("*.json")}
    assert {arm.checked.raw for arm in resolved.arms} == files


def test_every_problem_of_every_arm_is_reported_at_once(tiny):
    broken = sweep(
        {"label": "a", "intervention": "comitment-1"},
        {"label": "b", "set": {"beta": 1.0}, "expected": {"metric": "psnr", "direction": "up"}},
        inline("c", commitment_weight=99.0, projecton_lr_multiplier=1.0),
        inline("d", commitment_weight=99.0),
        inline("e", trainability="basis"),
        inline("e", commitment_weight=1.0),
        inline("f", commitment_weight=1.0),
        "g",
        refrence="reference",
        seeds={"count": 99},
        marks=[7],
    )
    with pytest.raises(Rejected) as error:
        definition.resolve(broken, tiny, "development", where="x.yaml")
    assert found(error) == {
        ("E_SCHEMA_UNKNOWN_KEY", "x.yaml.refrence"),
        ("E_FILE_MISSING", "x.yaml.arms[0]: comitment-1"),
        ("E_KNOB_UNKNOWN", "x.yaml.arms[1].set.beta"),
        ("E_SCHEMA_VALUE", "x.yaml.arms[1].expected.direction"),
        ("E_KNOB_UNKNOWN", "x.yaml.arms[2].set.projecton_lr_multiplier"),
        ("E_KNOB_DOMAIN", "x.yaml.arms[2].set.commitment_weight"),
        ("E_KNOB_DOMAIN", "x.yaml.arms[3].set.commitment_weight"),
        ("E_NO_EFFECT", "x.yaml.arms[4]"),
        ("E_ARM_TWICE", "x.yaml.arms[5].label"),
        ("E_ARM_TWICE", "x.yaml.arms[6]"),
        ("E_SCHEMA_TYPE", "x.yaml.arms[7]"),
        ("E_SCHEMA_VALUE", "x.yaml.seeds.count"),
        ("E_MARKS", "x.yaml.marks"),
    }
    assert "did you mean 'commitment-1'" in str(error.value)
    assert "did you mean 'projection_lr_multiplier'" in str(error.value)


def test_problems_inside_an_artifact_name_the_arm_the_file_and_the_key(tiny, tmp_path):
    wrong = artifact(commitment_weight=1.0)
    wrong["changes"][0]["from"] = 0.5
    wrong["contract"] = "cifar10-v1"
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(wrong))
    with pytest.raises(Rejected) as error:
        definition.resolve(sweep({"label": "a", "intervention": str(path)}), tiny, "development")
    assert found(error) == {
        ("E_KNOB_FROM", "sweep.arms[0]: mine.json.changes[0].from"),
        ("E_CONTRACT_NAME", "sweep.arms[0]: mine.json.contract"),
    }


@pytest.mark.parametrize(
    ("value", "code", "place"),
    [
        ("text", "E_SCHEMA_TYPE", "sweep"),
        ({**sweep(), 1: 2}, "E_SCHEMA_UNKNOWN_KEY", "sweep.1"),
        (sweep(seeds=3), "E_SCHEMA_TYPE", "sweep.seeds"),
        (sweep(seeds=[101, 101]), "E_SCHEMA_VALUE", "sweep.seeds"),
        (sweep(seeds=[True]), "E_SCHEMA_TYPE", "sweep.seeds[0]"),
        (sweep(seeds={"count": 0}), "E_SCHEMA_VALUE", "sweep.seeds.count"),
        (sweep(marks="all"), "E_SCHEMA_TYPE", "sweep.marks"),
        (sweep({"label": "Loud", "intervention": "commitment-1"}), "E_SCHEMA_VALUE", "sweep.arms[0].label"),
        (sweep({"label": "a"}), "E_SCHEMA_MISSING_KEY", "sweep.arms[0].intervention"),
        (sweep({"label": "a", "set": {"commitment_weight": 1.0}}), "E_SCHEMA_MISSING_KEY", "sweep.arms[0].expected"),
        (sweep(inline("a", commitment_weight=True)), "E_SCHEMA_TYPE", "sweep.arms[0].set.commitment_weight"),
        (sweep(inline("a", commitment_weight=float("nan"))), "E_JSON_NUMBER", "sweep.arms[0].set"),
        (
            sweep(factorial=[{"label": "f", "levels": {"beta": [1.0]}, "expected": EXPECTED}]),
            "E_KNOB_UNKNOWN",
            "sweep.factorial[0].levels.beta",
        ),
    ],
)
def test_one_fault_one_problem(tiny, value, code, place):
    with pytest.raises(Rejected) as error:
        definition.resolve(value, tiny, "development")
    assert found(error) == {(code, place)}


def test_arm_without_effect_is_refused_in_development(tiny):
    with pytest.raises(Refused) as error:
        definition.resolve(sweep(inline("idle", commitment_weight=0.25)), tiny, "development")
    assert found(error) == {("E_NO_EFFECT", "sweep.arms[0]")}
    assert error.value.exit_code == 4


def test_second_reference_is_refused(tiny):
    with pytest.raises(Refused) as error:
        definition.resolve(sweep({"label": "again", "intervention": "reference"}), tiny, "development")
    assert found(error) == {("E_NO_EFFECT", "sweep.arms[0]")}
    with pytest.raises(Refused) as error:
        definition.resolve(sweep() | {"reference": "commitment-1"}, tiny, "development")
    assert found(error) == {("E_NO_EFFECT", "sweep.reference")}


def test_arms_that_differ_in_an_inert_knob_only_are_refused(tiny):
    twins = (inline("a", trainability="none"), inline("b", trainability="none", projection_lr_multiplier=10.0))
    with pytest.raises(Refused) as error:
        definition.resolve(sweep(*twins), tiny, "development")
    assert found(error) == {("E_ARM_TWICE", "sweep.arms[1]")}


def test_confirmatory_phase_keeps_an_arm_without_effect(tiny):
    resolved = definition.resolve(sweep(inline("idle", commitment_weight=0.25)), tiny, "confirmatory")
    assert [arm.checked.status for arm in resolved.arms] == ["reference", "no_effect"]
    assert resolved.seeds == (201, 202)


@pytest.mark.parametrize(("phase", "seed"), [("development", 201), ("confirmatory", 101)])
def test_seed_firewall(tiny, phase, seed):
    own = tiny.seeds(phase)[0]
    for definition_seeds, override in (([own, seed], None), ([own], [own, seed])):
        with pytest.raises(Refused) as error:
            definition.resolve(sweep(seeds=definition_seeds), tiny, phase, seeds=override)
        assert error.value.codes == ("E_SEED_FIREWALL",)
        assert str(seed) in error.value.problems[0].found
    assert definition.resolve(sweep(seeds=[own]), tiny, phase).seeds == (own,)


def test_candidate_knobs_only_in_development(tiny):
    candidate = sweep(inline("rotation", gradient_estimator="rotation"))
    definition.resolve(candidate, tiny, "development")
    with pytest.raises(Rejected) as error:
        definition.resolve(candidate, tiny, "confirmatory")
    assert found(error) == {("E_KNOB_NOT_ALLOWED", "sweep.arms[0].set.gradient_estimator")}


def test_overrides_replace_seeds_and_marks(tiny):
    resolved = definition.resolve(sweep(), tiny, "development", seeds=[105, 103], marks=[2, 0])
    assert (resolved.seeds, resolved.marks) == ((105, 103), (0, 2))


def test_factorial_adds_an_arm_for_every_corner(tiny):
    corners = {
        "label": "x",
        "levels": {"projection_lr_multiplier": [0.1, 10.0], "basis_init": ["orthogonal", "identity"]},
        "expected": EXPECTED,
    }
    resolved = definition.resolve(sweep(factorial=[corners]), tiny, "development")
    levels = {
        arm.label: (arm.checked.effective["projection_lr_multiplier"], arm.checked.effective["basis_init"])
        for arm in resolved.arms[1:]
    }
    assert levels == {
        "x.0.1-orthogonal": (0.1, "orthogonal"),
        "x.0.1-identity": (0.1, "identity"),
        "x.10-orthogonal": (10.0, "orthogonal"),
        "x.10-identity": (10.0, "identity"),
    }


def test_digest_is_of_the_arms_in_any_order(tiny):
    arms = [inline("a", commitment_weight=1.0), inline("b", commitment_weight=2.0)]
    digest = definition.resolve(sweep(*arms), tiny, "development").digest
    assert definition.resolve(sweep(*reversed(arms)), tiny, "development").digest == digest
    arms[1]["rationale"] = "another"
    assert definition.resolve(sweep(*arms), tiny, "development").digest != digest
