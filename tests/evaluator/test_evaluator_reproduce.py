"""V5: an honest run comes out the same; another training under its plan does not; another device class is told so."""

import json
import shutil
from pathlib import Path

import fabricate
import pytest
from conftest import artifact_bytes

from evaluator import reproduce as module
from evaluator.__main__ import main
from evaluator.held import Held
from evaluator.reproduce import reproduce
from evaluator.verify import climb
from runner.execute import execute
from runner.plan import Request
from runner.repeat import repeat
from vqkit.errors import Refused, guarded
from vqkit.formats import campaign, canonical, digests, run


@pytest.fixture(scope="module")
def honest(tmp_path_factory, tiny, tiny_data):
    """A real run."""
    folder = tmp_path_factory.mktemp("honest") / "run"
    request = Request(
        intervention=artifact_bytes(commitment_weight=1.0),
        contract=tiny,
        phase="development",
        seed=101,
        marks=(0, 1, 2),
        device="cpu",
        threads=1,
        data=tiny_data,
        out=folder,
        run_id="run-0123456789abcdef",
        salt=bytes(range(32)),
    )
    assert execute(request)["state"] == "complete"
    return folder


@pytest.fixture
def folder(honest, tmp_path):
    return Path(shutil.copytree(honest, tmp_path / "run"))


@pytest.fixture
def held(tmp_path, tiny, tiny_data):
    return Held(data=tiny_data, lock=fabricate.write_lock(tmp_path / "LOCK.json", tiny))


@pytest.fixture
def here(monkeypatch):
    """Retrain in this process, which has torch loaded already."""

    def retrain(run_dir, held, out, device, python):
        repeat(run_dir, held.data, out, device)

    monkeypatch.setattr(module, "retrain", retrain)


def v5(verdict):
    (check,) = [check for check in verdict.checks if check.level == "V5"]
    return check


def reseal(folder, edit):
    """Change the plan and make the manifest fit."""
    plan = json.loads((folder / run.PLAN).read_bytes())
    edit(plan)
    raw = canonical.dumps(plan)
    contents = {path.name: path.read_bytes() for path in (folder / run.EVIDENCE).iterdir()}
    entries = [(name, len(data), digests.sha256_hex(data)) for name, data in contents.items()]
    terminal = json.loads(contents[run.TERMINAL])
    fabricate.replace(folder / run.PLAN, raw)
    sealed = run.build_manifest(raw, plan, entries, terminal, fabricate.RESOURCES)
    fabricate.replace(folder / run.MANIFEST, canonical.dumps(sealed))


def test_an_honest_run_reaches_v5_through_the_command(folder, held, capfd):
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    arguments = ["reproduce", str(folder), "--data", str(held.data), "--lock", str(folder.parent / "LOCK.json")]
    assert fabricate.write_lock(folder.parent / "LOCK.json", run.parse_plan((folder / run.PLAN).read_bytes())[1])
    assert guarded(main, arguments) == 0
    streams = capfd.readouterr()
    assert "run: state complete; reached V5 (reproduced)" in streams.out
    assert "blind no longer" in streams.err
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_where_no_run_is_nothing_is_opened(held, tmp_path, capfd):
    arguments = ["reproduce", str(tmp_path / "nothing"), "--data", str(held.data), "--lock", str(held.lock)]
    assert guarded(main, arguments) != 0
    assert "retraining opens" not in capfd.readouterr().err


def test_another_training_under_the_plan_is_caught_only_here(folder, held, here):
    reseal(folder, lambda plan: plan.update(seed=102))
    verdict = reproduce(folder, held)
    assert verdict.level == "V4"
    assert v5(verdict).status == "failed"
    assert run.state_file(2) in v5(verdict).found
    assert "the environments are the same" in v5(verdict).found


def test_a_reveal_of_another_intervention(folder, held, here):
    value = json.loads((folder / run.REVEAL).read_bytes())
    value["proposal"] = artifact_bytes(commitment_weight=4.0).decode()
    fabricate.replace(folder / run.REVEAL, canonical.dumps(value))
    verdict = reproduce(folder, held)
    assert (v5(verdict).status, v5(verdict).found) == ("failed", "another intervention, proposal")


def test_a_reveal_that_tells_other_knobs_than_its_proposal(folder, held, here):
    value = json.loads((folder / run.REVEAL).read_bytes())
    value["effective"]["projection_lr_multiplier"] = 30.0
    fabricate.replace(folder / run.REVEAL, canonical.dumps(value))
    assert climb(folder, held, level="V4").level == "V4"
    verdict = reproduce(folder, held)
    assert (verdict.level, v5(verdict).status, v5(verdict).found) == ("V4", "failed", "another one")


def _another_device(plan):
    plan["environment"]["device"] = "cuda H200"
    plan["digests"]["environment"] = digests.digest_json("environment", plan["environment"])


def test_on_another_device_class_the_same_bytes_are_the_same(folder, held, here):
    reseal(folder, _another_device)
    assert v5(reproduce(folder, held)).status == "passed"


@pytest.mark.parametrize(("seed", "width", "status"), [(102, 1.0, "passed"), (102, 1e-9, "failed")])
def test_on_another_device_class_metrics_must_be_within_tolerance(folder, held, here, monkeypatch, seed, width, status):
    """The run that is repeated here has another seed, as if another device had led elsewhere."""
    reseal(folder, lambda plan: (_another_device(plan), plan.update(seed=seed)))
    beyond = module._beyond

    def with_width(verdict, second):
        for one in verdict.contract.analysis["guardrails"]:
            one["margin"] = width * 50
        verdict.contract.analysis["delta_min"].update(normalized_perplexity=width, utilization=width)
        return beyond(verdict, second)

    monkeypatch.setattr(module, "_beyond", with_width)
    verdict = reproduce(folder, held)
    assert v5(verdict).status == status
    assert "not on cuda H200" in v5(verdict).found
    assert ("within tolerance" in v5(verdict).found) == (status == "passed")


def test_a_runner_that_can_not_be_started_is_not_run(folder, held, capfd):
    for python in ("/bin/false", "/nowhere/python"):
        verdict = reproduce(folder, held, python=python)
        assert (verdict.status, verdict.level, v5(verdict).status) == ("passed", "V4", "not_run")


def test_a_failed_run_is_not_retrained(folder, held, monkeypatch):
    monkeypatch.setattr(module, "retrain", lambda *_: pytest.fail("retrained"))
    (folder / "extra").write_bytes(b"x")
    assert v5(reproduce(folder, held)).status == "not_run"


def test_a_cell_of_a_campaign_is_not_unblinded_before_its_scores_are_frozen(tmp_path, tiny, tiny_data, held):
    folder = fabricate.write_campaign(tmp_path / "campaign", tiny, tiny_data, seeds=(101,))
    with pytest.raises(Refused) as caught:
        reproduce(next((folder / campaign.RUNS).iterdir()), held)
    assert caught.value.codes == ("E_NOT_FROZEN",)
