"""The verifier after docs/FORMATS.md that shares no code agrees with the evaluator, on good runs and on bad ones."""

import ast
import json

import independent_verifier
import numpy as np
import on_artifacts
import pytest
import test_attacks
from conftest import REPOSITORY, artifact_bytes
from independent_verifier import canonical, number
from table import ATTACKS

from evaluator.verify import climb
from runner.execute import execute
from vqkit.formats import canonical as theirs
from vqkit.formats import source

originals, stage = test_attacks.originals, test_attacks.stage
LEVELS = ("V0", "V1", "V2", "V3", "V4")
TAMPERINGS = [attack for attack in ATTACKS if attack.kind == "run"]


def level(checks, every):
    """The level that these checks reach; ``every`` names all checks that must be there."""
    reached = "none"
    for one in LEVELS:
        if not all(checks.get(check) for check in every if check.startswith(one)):
            break
        reached = one
    return reached


def both(folder, stage):
    """(evaluator's verdict, this verifier's checks, its marks)."""
    verdict = climb(folder, stage.held, level="V4")
    checks, marks = independent_verifier.verify(folder, stage.data, json.loads(stage.lock.read_bytes()), source.ROOT)
    return verdict, checks, marks


def agree(verdict, checks):
    failed = {check.id for check in verdict.checks if check.status == "failed"}
    assert failed == {check for check, passed in checks.items() if not passed}
    assert verdict.level == level(checks, {check.id for check in verdict.checks})


@pytest.mark.parametrize("knobs", [{}, {"latent_normalization": "l2"}, {"latent_normalization": "layer_norm"}], ids=str)
def test_on_good_runs(stage, knobs):
    folder = stage.root / "new"
    execute(on_artifacts.request_for(stage, intervention=artifact_bytes(**knobs)))
    verdict, checks, marks = both(folder, stage)
    agree(verdict, checks)
    assert verdict.level == "V4"
    for mark in verdict.marks:
        for name, value in marks[mark["mark"]].items():
            assert mark[name] == pytest.approx(value, rel=1e-9), name


@pytest.mark.parametrize("attack", TAMPERINGS, ids=lambda attack: attack.name)
def test_on_bad_runs(stage, attack):
    attack.apply(stage)
    verdict, checks, _ = both(stage.run, stage)
    agree(verdict, checks)
    assert checks[attack.stop] is False or not checks[attack.stop]


def test_it_shares_no_code():
    tree = ast.parse((REPOSITORY / "tests" / "independent_verifier.py").read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not [name for name in names if name.split(".")[0] in ("vqkit", "evaluator", "runner", "safetensors")]


def test_two_canonical_writers_agree():
    rng = np.random.default_rng(0)
    values = [float(x) for x in rng.standard_normal(500) * 10.0 ** rng.integers(-30, 15, 500)]
    values += [1e21, 1e-7, 1e-6, 123456789012345.6, 0.1, 5e-324, 1.7976931348623157e308, 1.0, 100.5, 0, -3, 2**53 - 1]
    for value in values:
        assert number(value).encode() == theirs.dumps(value)
    text = {"b": ['é\u2028\x1f\n"\\/', None, True], "a": {"z": 1.5e-9}}
    assert canonical(text).encode() == theirs.dumps(text)


def test_vectors_of_the_document():
    """Each test vector in the table of digests, by this verifier's own arithmetic."""
    page = (REPOSITORY / "docs" / "FORMATS.md").read_text()
    digest, of_files = independent_verifier.digest, independent_verifier.of_files
    found = [
        digest("plan", b"{}"),
        digest("proposal", bytes(32), b"{}"),
        digest("environment", b'{"threads":1}'),
        digest("intervention", bytes(range(32)), b'{"a":1}'),
        digest("ledger", b""),
        of_files("evidence", [("b.safetensors", 2, "22" * 32), ("a.json", 1, "11" * 32)]),
    ]
    for value in found:
        assert page.count(value) == 1
