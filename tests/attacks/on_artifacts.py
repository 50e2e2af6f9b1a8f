"""Attacks through the JSON that enters a run, and through what is asked of the runner."""

import json
import time

import pytest
from conftest import artifact, artifact_bytes, tiny_spec
from table import call, holds

from runner.execute import execute
from runner.plan import Request
from vqkit.errors import Rejected
from vqkit.formats import canonical, intervention, run
from vqkit.formats.contract import Contract

GOOD = json.dumps(artifact(commitment_weight=1.0))
CHANGE = '"to": 1.0'


def _edited(**fields):
    return json.dumps(artifact(commitment_weight=1.0) | fields).encode()


def _deep():
    return (GOOD[:-1] + ', "rationale2": ' + "[" * 60 + "]" * 60 + "}").encode()


ARTIFACTS = [
    ("a key twice, the second value hidden", "E_JSON_DUPLICATE_KEY", (GOOD[:-1] + ', "changes": []}').encode()),
    ("a second JSON value behind the first", "E_JSON_SYNTAX", (GOOD + GOOD).encode()),
    ("a byte order mark", "E_JSON_ENCODING", b"\xef\xbb\xbf" + GOOD.encode()),
    ("UTF-16", "E_JSON_ENCODING", GOOD.encode("utf-16")),
    ("a pickle in place of JSON", "E_JSON_ENCODING", b"\x80\x04\x95\x00cos\nsystem\n"),
    ("a YAML tag that builds an object", "E_JSON_SYNTAX", b"!!python/object/apply:os.system ['true']"),
    ("NaN as a knob value", "E_JSON_NUMBER", GOOD.replace(CHANGE, '"to": NaN').encode()),
    ("a number that overflows to infinity", "E_JSON_NUMBER", GOOD.replace(CHANGE, '"to": 1e999').encode()),
    ("minus zero", "E_JSON_NUMBER", GOOD.replace(CHANGE, '"to": -0.0').encode()),
    ("an integer beyond 2^53", "E_JSON_NUMBER", GOOD.replace(CHANGE, '"to": 9007199254740993').encode()),
    ("a lone surrogate", "E_JSON_STRING", GOOD.replace('"a test"', '"\\ud800"').encode()),
    ("sixty levels of nesting", "E_JSON_NESTING", _deep()),
    ("a key that only looks the same (Cyrillic a)", "E_JSON_KEY", GOOD.replace('"rationale"', '"rаtionale"').encode()),
    ("a file larger than an artifact may be", "E_JSON_SIZE", GOOD.encode() + b" " * intervention.MAX_BYTES),
    ("a key that the format does not have", "E_SCHEMA_UNKNOWN_KEY", _edited(evaluator="mine")),
    ("true where a number belongs", "E_SCHEMA_TYPE", GOOD.replace(CHANGE, '"to": true').encode()),
    ("text where a number belongs", "E_KNOB_DOMAIN", GOOD.replace(CHANGE, '"to": "1e-4"').encode()),
    ("the codebook size as a knob", "E_KNOB_UNKNOWN", GOOD.replace("commitment_weight", "codes").encode()),
    ("one knob changed twice", "E_KNOB_TWICE", _edited(changes=artifact(commitment_weight=1.0)["changes"] * 2)),
    ("a `from` that is not the baseline", "E_KNOB_FROM", GOOD.replace('"from": 0.25', '"from": 0.5').encode()),
    (
        "a citation of a knob that is not changed",
        "E_CITATION",
        _edited(citations=[{"id": "x", "knob": "trainability"}]),
    ),
    ("an artifact for another contract", "E_CONTRACT_NAME", _edited(contract="cifar10-v1")),
]


def _artifact_attack(name, code, raw):
    @call(name, code, "reader")
    def apply(stage):
        intervention.check(raw, stage.contract)


for row in ARTIFACTS:
    _artifact_attack(*row)


@call("a candidate knob in the confirmatory phase", "E_KNOB_NOT_ALLOWED", "reader")
def candidate_knob(stage):
    intervention.check(artifact_bytes(coefficient_init="data"), stage.contract, "confirmatory")


@holds("megabytes of hostile JSON, to keep the reader busy", "time and messages are bounded", "reader")
def busy_reader(stage):
    plan = json.loads((stage.run / run.PLAN).read_bytes())
    mixed = [[i] if i % 2 else {"a": i} for i in range(20_000)]
    many = {f"k{i}": 0 for i in range(20_000)}
    started = time.process_time()
    for hostile in (plan | {"marks": mixed}, plan | many, plan | {"marks": ["a"] * 50_000}):
        with pytest.raises(Rejected) as caught:
            run.parse_plan(canonical.dumps(hostile))
        assert 1 <= len(caught.value.problems) <= 200
        assert set(caught.value.codes) <= {"E_SCHEMA_TYPE", "E_SCHEMA_UNKNOWN_KEY"}
    assert time.process_time() - started < 30


def request_for(stage, **fields):
    """A run of the tiny contract, as asked for."""
    usual = {
        "intervention": artifact_bytes(commitment_weight=1.0),
        "contract": stage.contract,
        "phase": "development",
        "seed": 101,
        "marks": (0, 1, 2),
        "device": "cpu",
        "threads": 1,
        "data": stage.data,
        "out": stage.root / "new",
        "run_id": "run-0123456789abcdef",
        "salt": bytes(range(32)),
    }
    return Request(**usual | fields)


def _asked(stage, **fields):
    try:
        execute(request_for(stage, **fields))
    finally:
        assert not (stage.root / "new").exists()


@call("a change that executes nothing", "E_NO_EFFECT", "runner")
def no_effect(stage):
    _asked(stage, intervention=artifact_bytes(commitment_weight=0.25))


@call("an evaluation seed in the development phase", "E_SEED_FIREWALL", "runner")
def other_phase(stage):
    _asked(stage, seed=201)


@call("a mark that the contract does not have", "E_MARKS", "runner")
def other_mark(stage):
    _asked(stage, marks=(0, 50))


@call("a dataset that the contract does not allow", "E_DATASET_NOT_ALLOWED", "runner")
def other_dataset(stage):
    spec = tiny_spec()
    spec["data"]["datasets"] = ["cifar10"]
    _asked(stage, contract=Contract(spec))


@call("a seed that counts for both phases", "E_CONTRACT_INVALID", "reader")
def seed_of_both_phases(stage):
    spec = tiny_spec()
    spec["seeds"]["evaluation"].append(101)
    Contract(spec)
