"""Interventions against the registry: every bad input by its code, effective and inert knobs, no-effect changes."""

import json

import pytest
from conftest import artifact, artifact_bytes, contract_spec
from hypothesis import given, settings
from hypothesis import strategies as st

from vqkit.errors import Rejected
from vqkit.formats import digests, intervention, knobs
from vqkit.formats.contract import CONFIGS, Contract

QUICK = Contract(contract_spec())
LEVELS = {
    "projection_lr_multiplier": 10.0,
    "commitment_weight": 1.0,
    "trainability": "coefficients",
    "basis_init": "orthogonal",
    "latent_normalization": "l2",
    "coefficient_init": "uniform",
    "gradient_estimator": "rotation",
    "projection_warmup_steps": 20,
}


def codes(document, phase="development"):
    with pytest.raises(Rejected) as caught:
        intervention.check(json.dumps(document).encode(), QUICK, phase)
    return caught.value.codes


def changed(**fields):
    return artifact(projection_lr_multiplier=10.0) | fields


def test_reference_executes_the_baseline():
    checked = intervention.check(artifact_bytes(), QUICK)
    assert checked.status == "reference"
    assert checked.effective == QUICK.baseline


@pytest.mark.parametrize(("knob", "value"), LEVELS.items())
def test_every_single_knob_change_is_effective_and_changes_the_digest(knob, value):
    reference = intervention.check(artifact_bytes(), QUICK)
    checked = intervention.check(artifact_bytes(**{knob: value}), QUICK)
    assert checked.status == "effective"
    assert checked.effective == QUICK.baseline | {knob: value}
    salt = b"s" * 32
    assert checked.digests(salt)["intervention"] != reference.digests(salt)["intervention"]


def test_words_and_key_order_change_the_proposal_digest_only():
    first = intervention.check(artifact_bytes(commitment_weight=1), QUICK)
    document = artifact(commitment_weight=1.0) | {"rationale": "other words"}
    second = intervention.check(json.dumps(dict(reversed(document.items()))).encode(), QUICK)
    one, two = first.digests(b"s" * 32), second.digests(b"s" * 32)
    assert one["intervention"] == two["intervention"]
    assert one["proposal"] != two["proposal"]


def test_salt_hides_the_intervention():
    checked = intervention.check(artifact_bytes(commitment_weight=1.0), QUICK)
    unsalted = digests.digest_json("intervention", checked.effective)
    assert len({unsalted, checked.digests(b"a" * 32)["intervention"], checked.digests(b"b" * 32)["intervention"]}) == 3


def test_inert_change_has_no_effect():
    previous = QUICK.baseline | {"trainability": "coefficients"}
    document = changed(previous=previous)
    checked = intervention.check(json.dumps(document).encode(), QUICK)
    assert checked.status == "no_effect"
    assert checked.inert == ("projection_lr_multiplier", "projection_warmup_steps")
    assert checked.effective["projection_lr_multiplier"] == 1.0


def test_a_change_to_the_same_value_has_no_effect():
    assert intervention.check(artifact_bytes(commitment_weight=0.25), QUICK).status == "no_effect"


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (changed(extra=1), ("E_SCHEMA_UNKNOWN_KEY",)),
        ({key: value for key, value in changed().items() if key != "rationale"}, ("E_SCHEMA_MISSING_KEY",)),
        (changed(schema="vqkit.intervention/2"), ("E_SCHEMA_VALUE",)),
        (changed(rationale=3), ("E_SCHEMA_TYPE",)),
        (changed(contract="cifar10-v1"), ("E_CONTRACT_NAME",)),
        (changed(decision_point="latent_geometry"), ("E_KNOB_DECISION_POINT",)),
        (changed(citations=[{"id": "rule-7", "knob": "basis_init"}]), ("E_CITATION",)),
        (changed(previous={"trainability": "basis"}), ("E_SCHEMA_MISSING_KEY",) * 8),
    ],
    ids=range(8),
)
def test_bad_documents(document, expected):
    assert codes(document) == expected


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"knob": "projection_lr_multipler", "from": 1.0, "to": 2.0}, "E_KNOB_UNKNOWN"),
        ({"knob": "codebook_size", "from": 128, "to": 256}, "E_KNOB_UNKNOWN"),
        ({"knob": "projection_lr_multiplier", "from": 1.0, "to": 101.0}, "E_KNOB_DOMAIN"),
        ({"knob": "projection_lr_multiplier", "from": 1.0, "to": "10"}, "E_KNOB_DOMAIN"),
        ({"knob": "projection_lr_multiplier", "from": 2.0, "to": 10.0}, "E_KNOB_FROM"),
        ({"knob": "projection_lr_multiplier", "from": 1.0, "to": True}, "E_SCHEMA_TYPE"),
        ({"knob": "trainability", "from": "basis", "to": "all"}, "E_KNOB_DOMAIN"),
        ({"knob": "dead_code_restart", "from": 0, "to": 1.0}, "E_KNOB_DOMAIN"),
        ({"knob": "dead_code_restart", "from": 0, "to": 1}, "E_KNOB_CONFLICT"),
    ],
    ids=range(9),
)
def test_bad_changes(change, expected):
    document = artifact() | {"changes": [change]}
    document["decision_point"] = knobs.KNOBS.get(change["knob"], knobs.KNOBS["trainability"]).decision_point
    assert codes(document) == (expected,)


def test_misspelt_knob_names_the_nearest():
    with pytest.raises(Rejected, match="did you mean 'projection_lr_multiplier'"):
        intervention.check(
            json.dumps(
                artifact() | {"changes": [{"knob": "projection_lr_multipler", "from": 1.0, "to": 2.0}]}
            ).encode(),
            QUICK,
        )


def test_a_knob_appears_once():
    document = changed(changes=artifact(projection_lr_multiplier=10.0)["changes"] * 2)
    assert codes(document) == ("E_KNOB_TWICE",)


def test_candidates_are_for_development_only():
    raw = artifact_bytes(gradient_estimator="rotation")
    assert intervention.check(raw, QUICK, "development").status == "effective"
    assert codes(artifact(gradient_estimator="rotation"), "confirmatory") == ("E_KNOB_NOT_ALLOWED",)


def test_all_errors_of_an_artifact_at_once():
    raw = artifact_bytes(projection_lr_multiplier=10.0, commitment_weight=1.0)
    text = raw.decode().replace('"rationale"', '"rational"').replace("1.0\n", "NaN\n", 1).replace('"any"', '"other"')
    text = text.replace('"to": 10.0', '"to": 1000.0')
    with pytest.raises(Rejected) as caught:
        intervention.check(text.encode(), QUICK)
    assert set(caught.value.codes) == {
        "E_JSON_NUMBER", "E_SCHEMA_UNKNOWN_KEY", "E_SCHEMA_MISSING_KEY", "E_CONTRACT_NAME", "E_KNOB_DOMAIN",
    }  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_effective_is_idempotent_and_keeps_live_knobs(data):
    assignment = {
        name: data.draw(
            st.sampled_from(knob.choices) if knob.choices else st.sampled_from([knob.low, knob.baseline, knob.high])
        )
        for name, knob in knobs.KNOBS.items()
    }
    effective = knobs.effective(assignment, QUICK.baseline)
    assert knobs.effective(effective, QUICK.baseline) == effective
    idle = knobs.inert(assignment)
    assert all(effective[name] == (QUICK.baseline[name] if name in idle else assignment[name]) for name in assignment)


@pytest.mark.parametrize("path", sorted((CONFIGS / "intervention").glob("*.json")), ids=lambda path: path.stem)
@pytest.mark.parametrize("contract", ["quick-v1", "cifar10-v1"])
def test_shipped_interventions_pass_both_contracts(path, contract):
    checked = intervention.check(path.read_bytes(), Contract(contract_spec(contract)))
    assert checked.status == ("reference" if path.stem == "reference" else "effective")
