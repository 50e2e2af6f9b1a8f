"""The verifier after docs/FORMATS.md that shares no code agrees with the evaluator, on good runs and on bad ones."""

import ast
import copy
import json
import sys

import independent_verifier
import numpy as np
import on_artifacts
import pytest
import test_attacks
from conftest import REPOSITORY, artifact_bytes
from independent_formats import (
    CARD,
    MANIFEST,
    PLAN,
    TERMINAL,
    Bad,
    canonical,
    digest,
    files_digest,
    fits,
    is_contract,
    number,
    parse,
)
from table import ATTACKS, reseal

from evaluator.verify import climb
from runner.execute import execute
from vqkit.errors import Incomplete, Rejected
from vqkit.formats import canonical as theirs
from vqkit.formats import run, source
from vqkit.formats.contract import Contract

originals, stage = test_attacks.originals, test_attacks.stage
TAMPERINGS = [attack for attack in ATTACKS if attack.kind == "run"]


def both(folder, stage):
    """The evaluator's verdict and the other verifier's run; they fail the same checks and reach the same level."""
    verdict = climb(folder, stage.held, level="V4")
    other = independent_verifier.verify(folder, stage.data, source.ROOT, stage.lock)
    failed = {check.id for check in verdict.checks if check.status == "failed"}
    assert failed == {check for check, passed in other.checks.items() if not passed}
    made = {check.id for check in verdict.checks if check.status != "not_run"}
    assert made == other.checks.keys()
    assert verdict.level == other.level
    return verdict, other


@pytest.mark.parametrize("knobs", [{}, {"latent_normalization": "l2"}, {"latent_normalization": "layer_norm"}], ids=str)
def test_on_good_runs(stage, knobs):
    folder = stage.root / "new"
    execute(on_artifacts.request_for(stage, intervention=artifact_bytes(**knobs)))
    verdict, other = both(folder, stage)
    assert verdict.level == "V4"
    assert verdict.exhibit == other.exhibit
    for mark, own in zip(verdict.marks, other.marks, strict=True):
        assert mark.keys() == own.keys()
        for name, value in own.items():
            assert mark[name] == (pytest.approx(value, rel=1e-9) if type(value) is float else value), name


@pytest.mark.parametrize("attack", TAMPERINGS, ids=lambda attack: attack.name)
def test_on_bad_runs(stage, attack):
    attack.apply(stage)
    _, other = both(stage.run, stage)
    assert other.checks[attack.stop] is False


def test_on_a_run_that_is_not_complete(stage):
    """It reaches V2, although nothing failed: finite values and metrics are asked of complete runs only."""

    def cancel(contents):
        terminal = json.loads(contents[run.TERMINAL]) | {"state": "cancelled"}
        contents[run.TERMINAL] = canonical(terminal)

    reseal(stage.run, contents=cancel)
    verdict, other = both(stage.run, stage)
    assert (verdict.status, verdict.level) == ("passed", "V2")
    assert other.checks.keys() >= {"V3.indices", "V3.steps"}
    assert not {"V3.finite", "V3.metrics", "V4.indices"} & other.checks.keys()


def test_without_a_manifest_there_is_no_verdict(stage):
    (stage.run / run.MANIFEST).unlink()
    with pytest.raises(Incomplete):
        climb(stage.run, stage.held)
    with pytest.raises(independent_verifier.Incomplete):
        independent_verifier.verify(stage.run, stage.data, source.ROOT, stage.lock)


def test_it_shares_no_code():
    names = set()
    for module in ("independent_verifier", "independent_formats"):
        tree = ast.parse((REPOSITORY / "tests" / f"{module}.py").read_text())
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names - {"independent_formats", "numpy"} <= sys.stdlib_module_names


def test_two_canonical_writers_agree():
    rng = np.random.default_rng(0)
    values = [float(x) for x in rng.standard_normal(500) * 10.0 ** rng.integers(-30, 15, 500)]
    values += [1e21, 1e-7, 1e-6, 123456789012345.6, 0.1, 5e-324, 1.7976931348623157e308, 1.0, 100.5, 0, -3, 2**53 - 1]
    for value in values:
        assert number(value).encode() == theirs.dumps(value)
    text = {"b": ['é\u2028\x1f\n"\\/', None, True], "a": {"z": 1.5e-9}}
    assert canonical(text) == theirs.dumps(text)


def test_vectors_of_the_document():
    """Each test vector in the table of digests, by this verifier's own arithmetic."""
    page = (REPOSITORY / "docs" / "FORMATS.md").read_text()
    files = [
        {"name": "b.safetensors", "size": 2, "sha256": "22" * 32},
        {"name": "a.json", "size": 1, "sha256": "11" * 32},
    ]
    found = [
        digest("plan", b"{}"),
        digest("proposal", bytes(32), b"{}"),
        digest("environment", b'{"threads":1}'),
        digest("intervention", bytes(range(32)), b'{"a":1}'),
        digest("ledger", b""),
        files_digest("evidence", files),
    ]
    for value in found:
        assert page.count(value) == 1


SCHEMAS = {"contract": is_contract, "plan": PLAN, "manifest": MANIFEST, "terminal": TERMINAL, "dataset": CARD}
VECTORS = REPOSITORY / "tests" / "vectors"
INDEX = json.loads((VECTORS / "index.json").read_text())


@pytest.mark.parametrize("kind", ["valid", "invalid"])
def test_vectors_of_the_formats(kind):
    """Its strict reader and its schemas take the valid vectors and refuse the invalid ones."""
    tried = 0
    for name, about in INDEX[kind].items():
        form = about["format"]
        strict = form == "intervention" and all(code.startswith("E_JSON") for code in about.get("codes", ()))
        if form in SCHEMAS or strict:
            tried += 1
            assert accepts((VECTORS / kind / name).read_bytes(), form) == (kind == "valid"), name
    assert tried > 5


def accepts(data, form):
    try:
        value = parse(data, is_canonical=form not in ("contract", "intervention"))
    except Bad:
        return False
    return form not in SCHEMAS or fits(value, SCHEMAS[form])


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["analysis"].update(metrics=[]),
        lambda c: c["analysis"]["delta_min"].update(utilization=0),
        lambda c: c["analysis"]["floor"].update(accuracy=0.5),
        lambda c: c["analysis"]["floor"].update(psnr=0.5),
        lambda c: c["analysis"].update(ceiling={}),
        lambda c: c["analysis"]["intention_to_treat"].pop("mse", None),
        lambda c: c["analysis"].update(guardrails=[]),
        lambda c: c["data"].update(datasets=[]),
        lambda c: c["knobs"].update(allowed={}, candidates={}),
        lambda c: c["knobs"]["allowed"].update(commitment_weight={"choices": ["0.25"]}),
        lambda c: c["knobs"]["allowed"].update(commitment_weight={"low": 1, "high": 2}),
        lambda c: c["knobs"]["allowed"].update(trainability={"low": 0, "high": 1}),
        lambda c: c["knobs"]["allowed"].update(trainability={"choices": ["none"]}),
        lambda c: c["knobs"]["allowed"].update(dead_code_restart={"low": 0, "high": 4}),
        lambda c: c["knobs"]["candidates"].update(dead_code_restart={"low": 0, "high": 4096.5}),
        lambda c: c["knobs"]["candidates"].update(dead_code_restart={"low": 0, "high": 4097}),
        lambda c: c["knobs"]["baseline"].update(dead_code_restart=1),
        lambda c: c["seeds"].update(development=[]),
        lambda c: c.update(marks=[0]),
    ],
)
def test_contracts_that_the_document_decides(change, tiny):
    """What one reader of the page takes for a contract is what vqkit takes for one."""
    spec = copy.deepcopy(tiny.spec)
    change(spec)
    try:
        Contract(spec)
    except Rejected:
        assert not is_contract(spec)
    else:
        assert is_contract(spec)
