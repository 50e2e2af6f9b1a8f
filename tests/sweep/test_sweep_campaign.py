"""Campaigns with a stand-in for training: planning, workers, failures, retry, what people see."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import replace

import fake_runs
import pytest
from conftest import REPOSITORY
from playground import Playground, inline

from runner.sweep import cells, command, plan, worker
from runner.sweep.progress import Progress
from vqkit.errors import Incomplete, Refused, Rejected, UsageError
from vqkit.formats import campaign, canonical, digests


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    return Playground(tmp_path, tiny, tiny_data)


def places(error):
    """Where the problems of an error are."""
    return {problem.where for problem in error.value.problems}


# planning


def test_plan_names_cells_without_saying_their_arm(playground):
    run_ids = playground.plan()
    document, raw = campaign.read(playground.out, campaign.CAMPAIGN)
    arms, sealed = campaign.read(playground.out, campaign.ARMS)
    assert len(run_ids) == 16
    assert run_ids == sorted(run_ids)
    assert document["digests"]["arms"] == digests.digest("campaign", sealed)
    assert stat.S_IMODE((playground.out / campaign.ARMS).stat().st_mode) == 0o600
    everything = raw + (playground.out / campaign.LEDGER).read_bytes()
    for arm in arms["arms"]:
        assert arm["label"].encode() not in everything or arm["role"] == "reference"
        unsalted = digests.digest_json("intervention", arm["effective"])
        assert unsalted.encode() not in everything
    assert b'commitment_weight":2' not in everything
    of_arm = {cell["run_id"]: cell["arm"] for cell in arms["cells"]}
    order = [of_arm[run_id] for run_id in run_ids]
    assert order not in (sorted(order), sorted(order, reverse=True))


def test_each_plan_has_its_own_salt(playground):
    first = playground.plan()
    playground.out = playground.out.with_name("d")
    assert not set(first) & set(playground.plan())


def test_interventions_are_digested_with_the_salt(playground):
    playground.plan()
    document, _ = campaign.read(playground.out, campaign.CAMPAIGN)
    arms, _ = campaign.read(playground.out, campaign.ARMS)
    effective = {arm["label"]: arm["effective"] for arm in arms["arms"]}
    for cell, sealed in zip(document["cells"], arms["cells"], strict=True):
        salted = digests.digest_json("intervention", effective[sealed["arm"]], bytes.fromhex(arms["salt"]))
        assert cell["intervention"] == salted


def test_arm_without_effect_has_cells_of_its_own(playground):
    playground.options["sweep"]["arms"] = [inline("idle", commitment_weight=0.25)]
    playground.options["phase"] = "confirmatory"
    assert len(set(playground.plan())) == 8


def test_a_plan_that_is_refused_writes_nothing(playground):
    playground.options["sweep"]["arms"][0]["set"] = {"commitment_weight": 0.25}
    with pytest.raises(Refused) as error:
        playground.sweep()
    assert error.value.codes == ("E_NO_EFFECT",)
    assert not playground.out.parent.exists()


def test_dataset_that_the_contract_does_not_allow_is_refused(playground):
    spec = json.loads(json.dumps(playground.contract.spec))
    spec["data"]["datasets"] = ["cifar10"]
    playground.contract = type(playground.contract)(spec)
    with pytest.raises(Refused) as error:
        playground.sweep()
    assert error.value.codes == ("E_DATASET_NOT_ALLOWED",)


def test_of_two_plans_at_once_one_counts(playground):
    run_ids = playground.plan()
    terms = command.terms_of(playground.options, playground.contract, playground.data, "sweep", fake_runs.HOST)
    assert plan.create(playground.out, terms) is False
    assert playground.run_ids() == run_ids
    assert [path.name for path in playground.out.parent.iterdir()] == ["c"]


def test_a_folder_with_something_else_is_left_alone(playground):
    playground.out.mkdir(parents=True)
    (playground.out / "mine.txt").write_text("mine")
    with pytest.raises(Rejected) as error:
        playground.sweep()
    assert error.value.codes == ("E_FILE_EXISTS",)
    assert [path.name for path in playground.out.iterdir()] == ["mine.txt"]
    assert [path.name for path in playground.out.parent.iterdir()] == ["c"]


def test_changed_campaign_is_refused_with_every_difference(playground):
    playground.plan()
    before = (playground.out / campaign.CAMPAIGN).read_bytes()
    playground.tell(source="another", environment="another")
    playground.options["sweep"]["arms"][1]["set"] = {"commitment_weight": 9.0}
    playground.options["sweep"]["arms"][2]["label"] = "renamed"
    with pytest.raises(Refused) as error:
        playground.sweep(seeds=[101, 102], marks=[0, 1], threads=2)
    assert set(error.value.codes) == {"E_CAMPAIGN_CHANGED"}
    assert error.value.exit_code == 4
    arms = {"sweep", "arm secret-1", "arm secret-2", "arm renamed"}
    digested = {"source runner/told.py", "environment.threads", "environment.variables.TOLD"}
    assert places(error) == digested | {"seeds", "marks", "threads", "out"} | arms
    assert "out= with another folder" in str(error.value)
    assert (playground.out / campaign.CAMPAIGN).read_bytes() == before
    assert playground.executed() == []


def test_what_differs_is_named_with_both_values(playground):
    playground.plan()
    playground.tell(source="another", environment="another")
    with pytest.raises(Refused) as error:
        playground.sweep()
    found = {problem.where: (problem.expected, problem.found) for problem in error.value.problems}
    old, new = (f"sha256:{digests.sha256_hex(text)}" for text in (b"source", b"another"))
    assert found["source runner/told.py"] == (f"{old}, as planned", new)
    assert found["environment.variables.TOLD"] == ("environment, as planned", "another")
    assert found.keys() == {"source runner/told.py", "environment.variables.TOLD", "out"}


@pytest.mark.parametrize("record", [b"", b"[]", b'{"environment":{"python":"2"},"source":[]}', b'{"source":[{}]}'])
def test_a_record_of_something_else_is_not_believed(playground, record):
    """What digests cover is on record beside them; where that is not what they cover, the digests speak."""
    playground.plan()
    (playground.out / plan.DIGESTED).unlink()
    (playground.out / plan.DIGESTED).write_bytes(record)
    planned, _ = campaign.read(playground.out, campaign.CAMPAIGN)
    playground.tell(source="another", environment="another")
    with pytest.raises(Refused) as error:
        playground.sweep()
    found = {problem.where: problem.expected for problem in error.value.problems}
    assert found.keys() == {"source", "environment", "out"}
    assert found["source"] == f"{planned['digests']['source']}, as planned"


# working


def test_every_cell_is_executed_once_and_published(playground, capsys):
    run_ids = playground.plan()
    other = playground.copy()
    assert playground.sweep() == 0
    assert sorted(run_id for run_id, _, _ in playground.executed()) == run_ids
    assert playground.evidence().keys() == set(run_ids)
    assert len(playground.events("sealed")) == len(playground.events("claimed")) == 16
    assert list((playground.out / cells.WORK).iterdir()) == []
    assert [path.name for path in (playground.out / cells.CLAIMS).iterdir() if "driver" in path.name] == []
    captured = capsys.readouterr()
    assert "16 planned = 16 complete + 0 failed + 0 missing" in captured.err
    assert captured.out == f"{playground.out}\n"
    assert sum(line.startswith("[") for line in captured.err.splitlines()) == 16
    assert playground.sweep() == 0
    assert len(playground.executed()) == 16
    assert other.sweep(executor={**other.options["executor"], "slots": 1}) == 0
    assert other.evidence() == playground.evidence(), "one worker or two"


def test_each_mishap_costs_one_cell(playground, capsys):
    run_ids = playground.plan()
    mishaps = ["nonfinite", "crash", "raise", "hang", "error", "invalid"]
    playground.tell(**dict(zip(run_ids, mishaps, strict=False)))
    executor = {"name": "local", "slots": 2, "timeout_seconds": 0.7}
    assert playground.sweep(executor=executor) == 0
    state = playground.state()
    assert (state["planned"], state["complete"], state["failed"], state["missing"]) == (16, 10, 6, 0)
    states = {"complete": 10, "nonfinite": 1, "crashed": 2, "timeout": 1, "error": 1, "invalid": 1}
    assert state["states"] == states
    failures = {failure["run_id"]: failure for failure in state["failures"]}
    nonfinite, crash, broken, hang, _, _ = (failures[run_id] for run_id in run_ids[:6])
    assert nonfinite["reason"] == "nonfinite on demand"
    assert (crash["state"], crash["reason"]) == ("crashed", "signal SIGSEGV")
    assert "about to fail" in crash["log"]
    assert (broken["state"], broken["reason"]) == ("crashed", "exit 1")
    assert broken["log"].endswith("ValueError: the cell is broken")
    assert (hang["state"], hang["reason"]) == ("timeout", "more than 0.7 s")
    printed = capsys.readouterr().err
    assert "16 planned = 10 complete + 6 failed + 0 missing" in printed
    assert "    about to fail" in printed
    assert [playground.times(run_id) for run_id in run_ids] == [1] * 16
    begun = playground.executed()
    for run_id in run_ids[1:5]:  # after a crash, a timeout or an error another process goes on
        (pid,) = (pid for begun_id, pid, _ in begun if begun_id == run_id)
        assert [begun_id for begun_id, other, _ in begun if other == pid][-1] == run_id
    assert playground.sweep() == 0
    assert len(playground.executed()) == 16, "failed cells wait for retry"


def test_a_run_that_was_not_planned_is_not_published(playground):
    run_ids = playground.plan()
    playground.tell(**{run_ids[0]: "foreign"})
    with pytest.raises(Refused) as error:
        playground.sweep()
    assert places(error) == {f"{run_ids[0]} seed"}
    assert not cells.is_published(playground.out, run_ids[0])
    assert list((playground.out / cells.WORK).iterdir()) == []


def test_source_that_changes_in_the_middle_stops_the_campaign(playground):
    playground.tell(seconds=0.2)
    driver = playground.drive()
    playground.wait_for_done(2)
    playground.tell(seconds=0.2, source="another")
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode == 4
    assert "error[E_CAMPAIGN_CHANGED] source runner/told.py" in errors or "E_CAMPAIGN_CHANGED] run-" in errors
    state = playground.state()
    assert state["failed"] == 0
    assert state["missing"] > 0


def test_workers_that_do_not_start_end_the_sweep(playground):
    broken = replace(fake_runs.HOST, worker=(sys.executable, "-c", "raise SystemExit('no such module')"))
    with pytest.raises(Incomplete) as error:
        command.sweep(playground.options, playground.contract, playground.data, host=broken)
    assert error.value.codes == ("E_WORKER",)
    assert "no such module" in str(error.value)
    assert error.value.exit_code == 7


def test_each_slot_has_its_own_device(playground, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    playground.tell(seconds=0.05)
    assert playground.sweep(device="cuda") == 0
    devices = {}
    for _, pid, device in playground.executed():
        devices.setdefault(pid, set()).add(device)
    assert sorted(map(sorted, devices.values())) == [["0"], ["1"]]


# retry


def test_retry_keeps_the_old_attempt_beside_the_new_one(playground, capsys):
    run_ids = playground.plan()
    playground.tell(**{run_ids[0]: "nonfinite", run_ids[1]: "crash"})
    assert playground.sweep() == 0
    (playground.out / campaign.SCORES).mkdir()
    score = playground.out / campaign.SCORES / f"{run_ids[0]}.json"
    score.write_text("the score of the first attempt")
    playground.tell(**{run_ids[0]: "nonfinite"})
    assert command.retry([str(playground.out)], host=fake_runs.HOST) == 0
    assert "2 cells are tried again" in capsys.readouterr().err
    assert [playground.times(run_id) for run_id in run_ids] == [2, 2] + [1] * 14
    playground.tell()
    assert command.retry([str(playground.out)], host=fake_runs.HOST) == 0
    assert [playground.times(run_id) for run_id in run_ids] == [3, 2] + [1] * 14
    assert playground.state()["states"] == {"complete": 16}
    attempts = playground.out / campaign.ATTEMPTS
    kept = {f"{run_ids[0]}.1", f"{run_ids[0]}.1.log", f"{run_ids[0]}.1.json", f"{run_ids[1]}.1.log"}
    assert {path.name for path in attempts.iterdir()} == kept | {f"{run_ids[0]}.2", f"{run_ids[0]}.2.log"}
    first = json.loads((attempts / f"{run_ids[0]}.1" / "manifest.json").read_bytes())
    assert first["predicate"]["terminal"]["state"] == "nonfinite"
    assert not score.exists()
    assert command.retry([str(playground.out)], host=fake_runs.HOST) == 0
    assert len(playground.executed()) == 19


def test_retry_is_refused_before_anything_is_moved(playground):
    run_ids = playground.plan()
    playground.tell(**{run_ids[0]: "nonfinite"})
    assert playground.sweep() == 0
    playground.tell(environment="another")
    with pytest.raises(Refused) as error:
        command.retry([str(playground.out)], host=fake_runs.HOST)
    assert places(error) == {"environment.variables.TOLD"}
    playground.tell()
    (playground.out / campaign.FROZEN).write_text("{}")
    with pytest.raises(Refused) as error:
        command.retry([str(playground.out)], host=fake_runs.HOST)
    assert error.value.codes == ("E_FROZEN",)
    (playground.out / campaign.FROZEN).unlink()
    campaign.append_event(playground.out, "frozen", None, {"digest": digests.digest("score", b"")})
    with pytest.raises(Refused) as error:
        command.retry([str(playground.out)], host=fake_runs.HOST)
    assert error.value.codes == ("E_FROZEN",), "the ledger remembers"
    assert cells.is_published(playground.out, run_ids[0])
    assert playground.times(run_ids[0]) == 1
    assert playground.sweep() == 0, "a finished campaign is only looked at"
    os.rename(playground.out / campaign.RUNS / run_ids[1], playground.root / "lost")
    with pytest.raises(Refused) as error:
        playground.sweep()
    assert error.value.codes == ("E_FROZEN",)


@pytest.mark.parametrize(
    ("flags", "code", "where"),
    [
        (["--slots", "0"], "E_USAGE", ["--slots"]),
        (["--slots", "-1", "--timeout-seconds", "0"], "E_USAGE", ["--slots", "--timeout-seconds"]),
        (["--timeout-seconds", "nan"], "E_USAGE", ["--timeout-seconds"]),
        (["--budget-seconds", "0"], "E_USAGE", ["--budget-seconds"]),
        (["--slots", "abc"], "E_USAGE", ["python -m runner retry"]),
    ],
)
def test_retry_with_a_wrong_argument_changes_nothing(playground, flags, code, where):
    run_ids = playground.plan()
    playground.tell(**{run_ids[0]: "nonfinite"})
    assert playground.sweep() == 0
    before = {path: path.read_bytes() for path in playground.out.rglob("*") if path.is_file()}
    with pytest.raises(UsageError) as error:
        command.retry([str(playground.out), *flags], host=fake_runs.HOST)
    assert set(error.value.codes) == {code}
    assert [problem.where for problem in error.value.problems] == where
    assert {path: path.read_bytes() for path in playground.out.rglob("*") if path.is_file()} == before


def test_a_folder_that_can_not_be_made_is_named(playground):
    (playground.root / "file").write_text("in the way")
    for out in (playground.root / "file" / "c", playground.root / ("x" * 300)):
        with pytest.raises(Rejected) as error:
            playground.sweep(out=str(out))
        assert error.value.codes == ("E_FILE_WRITE",)
        assert places(error) == {str(out)}


def test_retry_before_the_sweep_has_started_is_incomplete(playground):
    playground.plan()
    with pytest.raises(Incomplete) as error:
        command.retry([str(playground.out)], host=fake_runs.HOST)
    assert error.value.codes == ("E_STAGE_MISSING",)


@pytest.mark.parametrize(
    ("launch", "code"),
    [
        ("{}", "E_SCHEMA_MISSING_KEY"),
        ("[]", "E_SCHEMA_TYPE"),
        ("{", "E_JSON_SYNTAX"),
        ('{"executor":{},"data":"d","budget_seconds":null}', "E_SCHEMA_MISSING_KEY"),
        (
            '{"executor":{"name":"local","slots":0,"timeout_seconds":1},"data":"d","budget_seconds":null}',
            "E_SCHEMA_VALUE",
        ),
        ('{"executor":{"name":"local","slots":1,"timeout_seconds":0},"data":"d","budget_seconds":null}', "E_CONFIG"),
    ],
)
def test_retry_rejects_a_damaged_launch(playground, launch, code):
    playground.plan()
    (playground.out / command.LAUNCH).write_text(launch)
    with pytest.raises(Rejected) as error:
        command.retry([str(playground.out)], host=fake_runs.HOST)
    assert set(error.value.codes) == {code}


def test_retry_takes_other_limits(playground):
    run_ids = playground.plan()
    playground.tell(**{run_ids[0]: "nonfinite"})
    assert playground.sweep() == 0
    playground.tell()
    flags = ["--slots", "1", "--timeout-seconds", "9.5", "--budget-seconds", "7"]
    assert command.retry([str(playground.out), *flags], host=fake_runs.HOST) == 0
    launch = json.loads((playground.out / command.LAUNCH).read_bytes())
    assert (launch["executor"]["slots"], launch["executor"]["timeout_seconds"], launch["budget_seconds"]) == (1, 9.5, 7)
    assert playground.state()["states"] == {"complete": 16}


# cells on disk


def test_a_second_publication_loses_and_leaves_no_trace(playground):
    run_id = playground.plan()[0]
    for content in ("first", "second"):
        work = cells.work_folder(playground.out, run_id)
        work.mkdir()
        (work / "manifest.json").write_text(content)
        assert cells.publish(playground.out, run_id, work) is (content == "first")
        assert not work.exists()
    assert (playground.out / campaign.RUNS / run_id / "manifest.json").read_text() == "first"


def test_stale_work_is_removed_and_work_in_progress_is_not(playground):
    stale, busy = playground.plan()[:2]
    for run_id in (stale, busy):
        (playground.out / cells.WORK / f"{run_id}.1").mkdir()
    with cells.claim(playground.out, busy) as held:
        assert held
        cells.remove_work(playground.out)
    assert [path.name for path in (playground.out / cells.WORK).iterdir()] == [f"{busy}.1"]


def test_a_claim_is_exclusive_and_ends_with_its_holder(playground):
    run_id = playground.plan()[0]
    hold = (
        "import sys, pathlib\nfrom runner.sweep import cells\n"
        "with cells.claim(pathlib.Path(sys.argv[1]), sys.argv[2]) as held:\n    print(held, flush=True)\n    input()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", hold, str(playground.out), run_id],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout.readline() == "True\n"
    assert cells.is_held(playground.out, run_id)
    with cells.claim(playground.out, run_id) as held:
        assert not held
    holder.kill()
    holder.communicate()
    assert not cells.is_held(playground.out, run_id)
    with cells.claim(playground.out, run_id) as held:
        assert held


def test_what_lies_in_runs_is_the_truth(playground):
    """A seal that nobody recorded is recorded later; a run without a readable manifest is not complete."""
    run_ids = playground.plan()
    other = playground.copy()
    assert playground.sweep() == 0
    for run_id in run_ids[:10]:
        os.rename(playground.out / campaign.RUNS / run_id, other.out / campaign.RUNS / run_id)
    manifest = other.out / campaign.RUNS / run_ids[1] / "manifest.json"
    manifest.unlink()
    manifest.write_text("{}")
    assert other.sweep() == 0
    assert other.times(run_ids[0]) == 1
    assert sorted(event["run_id"] for event in other.events("sealed")) == run_ids
    (failure,) = other.state()["failures"]
    assert (failure["run_id"], failure["state"]) == (run_ids[1], "unverified")


# the ledger


def test_a_line_that_a_crash_cut_off_is_dropped(playground):
    playground.plan()
    path = playground.out / campaign.LEDGER
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"seq":1,"prev')
    assert len(campaign.ledger_events(playground.out)) == 1
    campaign.append_event(playground.out, "scored", "run-0123456789abcdef")
    assert path.read_bytes().startswith(whole + b'{"detail"')
    assert [event["event"] for event in campaign.ledger_events(playground.out)] == ["planned", "scored"]


def test_a_ledger_that_was_changed_is_noticed(playground):
    playground.plan()
    for _ in range(3):
        campaign.append_event(playground.out, "scored", "run-0123456789abcdef")
    path = playground.out / campaign.LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], *lines[2:]]))
    with pytest.raises(Rejected) as error:
        playground.sweep()
    assert error.value.codes == ("E_SCHEMA_VALUE",)
    assert places(error) == {"ledger.jsonl line 2"}
    path.write_bytes(lines[0] + b"{}\n")
    with pytest.raises(Rejected):
        campaign.append_event(playground.out, "scored", "run-0123456789abcdef")


def test_processes_append_to_one_chain(playground):
    playground.plan()
    program = (
        "import sys, pathlib\nfrom vqkit.formats import campaign\nfor number in range(20):\n"
        "    campaign.append_event(pathlib.Path(sys.argv[1]), 'scored', None, {'text': 'x' * 9000 * (number % 3)})"
    )
    writers = [subprocess.Popen([sys.executable, "-c", program, str(playground.out)], cwd=REPOSITORY) for _ in range(3)]
    assert [writer.wait(timeout=30) for writer in writers] == [0, 0, 0]
    assert len(campaign.ledger_events(playground.out)) == 61


# what people see


def test_status_from_another_process_while_cells_run(playground):
    playground.tell(seconds=0.5)
    driver = playground.drive()
    playground.wait_for_done(2)
    playground.wait_for(lambda: len(playground.worker_pids()) == 2)
    look = "import sys\nfrom runner.sweep import command\ncommand.status(sys.argv[1:])"
    looked = subprocess.run(
        [sys.executable, "-c", look, str(playground.out), "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    state = json.loads(looked.stdout)
    assert state["planned"] == 16 == state["complete"] + state["failed"] + state["missing"]
    assert state["complete"] >= 2
    assert state["failed"] == 0
    assert 1 <= len(state["running"]) <= 2
    assert "secret" not in looked.stdout.decode()
    driver.terminate()
    driver.communicate(timeout=20)
    assert driver.returncode == 5


def test_status_says_how_fast_cells_are_and_how_long_it_takes(playground, capsys):
    first, second, third = playground.plan()[:3]
    for run_id in (first, second):
        campaign.append_event(playground.out, "claimed", run_id, {"driver": "driver-x", "pid": 1})
    with cells.claim(playground.out, first):
        cells.report(playground.out, first, 0, 2, 0.0)
        assert command.status([str(playground.out)]) == 0
        assert "0 images/s, time left unknown" in capsys.readouterr().out
        cells.report(playground.out, first, 1, 2, 128.0)
        state = playground.state()
        assert state["running"] == [first], "the second one's worker is gone"
        assert state["images_per_second"] == 128.0
        assert state["seconds_left"] == 15.5 * 2.0, "2 epochs of 128 images take two seconds"
        (playground.out / campaign.RUNS / third).mkdir()
        campaign.append_event(playground.out, "sealed", third, {"outcome": "complete", "seconds": 10.0})
        assert playground.state()["seconds_left"] == 14.5 * 10.0, "what a cell took counts more"
        assert command.status([str(playground.out)]) == 0
        assert "128 images/s, about 145 s left" in capsys.readouterr().out
    state = playground.state()
    assert (state["running"], state["images_per_second"], state["seconds_left"]) == ([], 0, None)


def test_dry_run_says_what_it_costs_and_writes_nothing(playground, capsys):
    assert playground.sweep(dry_run=True) == 0
    text = capsys.readouterr().out
    assert "4 arms × 4 seeds = 16 cells, marks [0, 1, 2]" in text
    assert "32 epochs, 4,096 training images" in text
    assert "secret-1" in text
    assert "2 slots" in text
    assert not playground.out.parent.exists()


def test_dry_run_says_when_a_probe_did_not_complete(playground, capsys):
    host = replace(fake_runs.HOST, probe=lambda *request: [0.0, 1.0, "invalid: odd modules"])
    assert playground.sweep(dry_run=True, host=host) == 0
    assert "time unknown (a probe ended invalid: odd modules) in 2 slots" in capsys.readouterr().out


def test_a_cell_that_was_given_up_for_lost_is_not_published(playground):
    """Its worker was stopped meanwhile, and goes on: what the ledger says of the cell stands."""
    run_id = playground.plan()[0]

    def execute(progress, **request):
        terminal = fake_runs.execute(progress, **request)
        cells.record_failed(playground.out, run_id, "crashed", cells.LOST)
        return terminal

    order = {"folder": playground.out, "data": playground.data, "driver": "driver-x", "budget_seconds": None}
    one = worker.Worker(order, replace(fake_runs.HOST, execute=execute), lambda **event: None)
    with cells.claim(playground.out, run_id):
        assert one._train(next(cell for cell in one.plan["cells"] if cell["run_id"] == run_id)) == "lost"
    assert not cells.is_published(playground.out, run_id)
    assert not list((playground.out / cells.WORK).iterdir())
    assert [event["event"] for event in campaign.ledger_events(playground.out)] == ["planned", "claimed", "failed"]


def test_what_does_not_belong_into_work_and_claims_is_passed_over(playground):
    run_id = playground.plan()[0]
    (playground.out / cells.WORK / ".nfs0001").write_bytes(b"")
    (playground.out / cells.CLAIMS / run_id).write_text('{"epoch": 1}')
    assert cells.reports(playground.out, [run_id]) == {}
    assert playground.sweep() == 0
    assert (playground.out / cells.WORK / ".nfs0001").exists()


class Terminal:
    """A stream that says it is one."""

    def __init__(self):
        self.text = ""

    def isatty(self):
        return True

    def write(self, text):
        self.text += text

    def flush(self):
        pass


def test_progress_on_a_terminal_shows_cells_running_failed_speed_and_time_left(playground):
    run_ids = playground.plan()
    stream = Terminal()
    for number in range(3):
        with cells.claim(playground.out, run_ids[number]):
            cells.report(playground.out, run_ids[number], number, 2, 411.5)
    progress = Progress(10, 2, 1, stream)
    progress.finished("run-1", "sealed", {"outcome": "complete", "seconds": 2.0})
    progress.finished("run-2", "failed", {"outcome": "timeout", "reason": "more than 1 s"})
    progress.show(playground.out, run_ids[:3])
    progress.close()
    last = stream.text.split("\r")[-1]
    assert "4/10" in last
    assert "3 running, 2 failed, 1,234 images/s" in last
    assert "left" in last
    assert "run-2 timeout: more than 1 s" in stream.text


def test_spent_evaluation_seeds_are_reported(playground, capsys):
    run_ids = playground.plan()
    campaign.append_event(playground.out, "scored", run_ids[0])
    seed = campaign.read(playground.out, campaign.CAMPAIGN)[0]["cells"][0]["seed"]
    spec = json.loads(canonical.dumps(playground.contract.spec))
    spec["seeds"] = {"development": [1], "evaluation": [seed, 999]}
    playground.contract = type(playground.contract)(spec)
    confirmatory = playground.out.with_name("confirmatory")
    assert playground.sweep(phase="confirmatory", out=str(confirmatory), seeds=[seed]) == 0
    assert f"evaluation seeds {seed} were used before: {playground.out} scored them" in capsys.readouterr().err


def test_seeds_spent_by_another_trial_are_reported_and_by_itself_are_not(playground, capsys):
    seeds = list(playground.contract.seeds("confirmatory")[:3])
    playground.options |= {"phase": "confirmatory", "seeds": seeds[:2]}
    first = playground.out
    for run_id in playground.plan():
        campaign.append_event(first, "scored", run_id)
    second = first.with_name("second")
    assert playground.sweep(out=str(second), seeds=seeds[1:]) == 0
    assert f"evaluation seeds {seeds[1]} were used before: {first} scored them\n" in capsys.readouterr().err
    playground.sweep()
    assert "were used before" not in capsys.readouterr().err
