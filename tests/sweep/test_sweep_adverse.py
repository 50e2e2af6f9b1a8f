"""Campaigns in adverse surroundings: runs that somebody put there, full disks, odd things in the folder, a move."""

import json
import os
import resource
import shutil
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import fake_runs
import pytest
from playground import Playground, finish

from runner.sweep import cells, command, local, outcomes, worker
from vqkit.errors import Refused, Rejected, UsageError
from vqkit.formats import campaign


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    return Playground(tmp_path, tiny, tiny_data)


def retry(playground, *flags):
    """The command."""
    return command.retry([str(playground.out), *flags], host=fake_runs.HOST)


def finished_with_failure(playground, mishap="crash"):
    """A campaign whose first cell failed; its run id."""
    run_id = playground.plan()[0]
    playground.tell(**{run_id: mishap})
    assert playground.sweep() == 0
    playground.tell()
    return run_id


# the executor is asked once


@pytest.fixture
def asked(playground, monkeypatch):
    """Whether the campaign's folder was there, each time that the executor was asked whether it can start."""
    calls = []
    executor = SimpleNamespace(check=lambda options: calls.append(playground.out.exists()), run=local.run)
    monkeypatch.setitem(command.EXECUTORS, "local", executor)
    return calls


def test_the_executor_of_a_new_campaign_is_asked_once_and_before_anything_is_written(playground, asked):
    assert playground.sweep() == 0
    assert asked == [False]
    assert playground.sweep() == 0
    assert asked == [False], "nothing is left to do"


def test_the_executor_of_a_campaign_that_goes_on_is_asked_once(playground, asked):
    playground.plan()
    assert playground.sweep() == 0
    assert asked == [True]


def test_the_executor_of_a_retry_is_asked_once(playground, asked):
    finished_with_failure(playground)
    asked.clear()
    assert retry(playground) == 0
    assert asked == [True]
    assert retry(playground) == 0
    assert asked == [True], "nothing failed"


def test_an_executor_that_can_not_start_leaves_everything_as_it_was(playground, monkeypatch):
    def check(options):
        raise UsageError("E_EXECUTOR", "executor", "one that works", "this one")

    monkeypatch.setitem(command.EXECUTORS, "local", SimpleNamespace(check=check, run=local.run))
    with pytest.raises(UsageError):
        playground.sweep()
    assert not playground.out.parent.exists()
    playground.plan()
    with pytest.raises(UsageError):
        playground.sweep()
    assert not (playground.out / command.LAUNCH).exists()


# ledger and folder that contradict each other


def test_a_run_that_was_put_over_a_failed_cell_is_a_conflict(playground, capsys):
    run_id = playground.plan()[0]
    other = playground.copy()
    assert other.sweep() == 0
    finished_with_failure(playground)
    runs = playground.out / campaign.RUNS
    shutil.copytree(other.out / campaign.RUNS / run_id, runs / run_id)
    lost = sorted(set(playground.run_ids()) - {run_id})[0]
    for _ in range(2):
        state = playground.state()
        assert state["states"] == {"complete": 15, "unverified": 1}
        (failure,) = state["failures"]
        assert failure["run_id"] == run_id
        recorded = "ledger.jsonl records crashed (signal SIGSEGV), yet a run lies in runs/"
        assert failure["reason"] == f"{recorded}; retry sets it aside"
        shutil.rmtree(runs / lost)
        assert playground.sweep() == 0, "which trains the lost one only"
    assert run_id not in {event["run_id"] for event in playground.events("sealed")}
    assert (playground.times(run_id), playground.times(lost)) == (2, 4), "one of them in the other campaign"
    capsys.readouterr()
    assert command.status([str(playground.out)]) == 0
    printed = capsys.readouterr().out
    assert "16 planned = 15 complete + 1 failed + 0 missing" in printed
    assert f"{run_id}  unverified: {recorded}" in printed
    assert retry(playground) == 0
    assert playground.state()["states"] == {"complete": 16}
    assert (playground.out / campaign.ATTEMPTS / f"{run_id}.1" / "manifest.json").exists()
    assert playground.evidence() == other.evidence()


def test_runs_that_are_no_cells_are_named_and_not_recorded(playground, capsys):
    """A copy made by hand, say: the ledger's format has no place for such a name."""
    run_ids = playground.plan()
    assert playground.sweep() == 0
    runs = playground.out / campaign.RUNS
    names = [f"{run_ids[0]}.bak", "notes", "run-0000000000000000"]
    shutil.copytree(runs / run_ids[0], runs / names[0])
    shutil.copytree(runs / run_ids[0], runs / names[2])
    (runs / names[1]).write_text("mine")
    shutil.rmtree(runs / run_ids[1])
    assert playground.sweep() == 0
    assert len(playground.events("sealed")) == 17
    state = playground.state()
    assert state["states"] == {"complete": 16}
    assert state["foreign"] == sorted(names)
    assert command.status([str(playground.out)]) == 0
    assert f"no cells of this campaign, in runs/: {', '.join(sorted(names))}\n" in capsys.readouterr().out


def test_a_run_that_lost_its_manifest_is_not_complete_any_more(playground):
    run_id = playground.plan()[0]
    assert playground.sweep() == 0
    (playground.out / campaign.RUNS / run_id / "manifest.json").unlink()
    (failure,) = playground.state()["failures"]
    assert (failure["run_id"], failure["state"]) == (run_id, "unverified")
    assert retry(playground) == 0
    assert playground.state()["states"] == {"complete": 16}


@pytest.mark.parametrize("target", ["a run", "nothing", "a file"])
def test_something_else_under_the_name_of_a_run_is_not_complete(playground, target):
    """Links, be they to a run, dangling, and files: the evaluator follows none of them."""
    run_id = playground.plan()[0]
    playground.sweep()
    path, kept = playground.out / campaign.RUNS / run_id, playground.root / "kept"
    os.rename(path, kept)
    if target == "a file":
        path.write_text("mine")
    else:
        path.symlink_to(kept if target == "a run" else playground.root / "absent")
    assert playground.sweep() == 0
    (failure,) = playground.state()["failures"]
    assert (failure["run_id"], failure["state"]) == (run_id, "unverified")
    assert failure["reason"] == f"runs/{run_id} is no folder"
    assert playground.times(run_id) == 1
    assert retry(playground) == 0
    assert playground.state()["states"] == {"complete": 16}
    assert (kept / "manifest.json").exists()


def test_of_two_who_retry_at_once_one_does(playground):
    """The second one looked before the first one had finished: what is complete now is not set aside."""
    run_id = finished_with_failure(playground)
    document, _ = campaign.read(playground.out, campaign.CAMPAIGN)
    watch = cells.Watch(playground.out)
    watch.refresh()
    found = outcomes.outcomes(playground.out, document, watch)
    assert found[run_id].state == "crashed"
    assert retry(playground) == 0
    assert outcomes.set_aside(playground.out, found, watch) == []
    assert playground.state()["states"] == {"complete": 16}
    assert len(playground.events("retried")) == 1


# a ledger that is damaged while somebody reads it


def test_a_ledger_that_became_shorter_is_noticed(playground):
    playground.plan()
    for _ in range(3):
        campaign.append_event(playground.out, "scored", "run-0123456789abcdef")
    watch = cells.Watch(playground.out)
    watch.refresh()
    path = playground.out / campaign.LEDGER
    os.truncate(path, path.stat().st_size - 40)
    with pytest.raises(Rejected, match="a ledger only grows") as error:
        watch.refresh()
    assert error.value.codes == ("E_FILE_SIZE",)
    fresh = cells.Watch(playground.out)
    fresh.refresh()
    campaign.append_event(playground.out, "frozen")
    fresh.refresh()
    assert fresh.frozen, "what is cut off in the middle of a line never became an event"
    assert len(campaign.ledger_events(playground.out)) == 4


EVENT = {"seq": 1, "previous": "sha256:" + "0" * 64, "run_id": "run-0123456789abcdef"}
ODD = {
    "an object": {},
    "a text": "x",
    "no event of that name": EVENT | {"event": [], "detail": {}},
    "a claim by a path": EVENT | {"event": "claimed", "detail": {"driver": "../x", "pid": 1}},
    "a claim of a path": EVENT | {"event": "claimed", "run_id": "../x", "detail": {"driver": "x", "pid": 1}},
    "a claim by no process": EVENT | {"event": "claimed", "detail": {"driver": "x", "pid": [1]}},
    "a failure of no cell": EVENT | {"event": "failed", "run_id": None, "detail": {"outcome": "crashed"}},
    "a failure that is a list": EVENT | {"event": "failed", "detail": []},
    "a failure that is null": EVENT | {"event": "failed", "detail": None},
    "a failure of no kind": EVENT | {"event": "failed", "detail": {}},
    "a failure of another kind": EVENT | {"event": "failed", "detail": {"outcome": "won"}},
    "a failure with a number for a log": EVENT | {"event": "failed", "detail": {"outcome": "crashed", "log": 5}},
    "a seal of no kind": EVENT | {"event": "sealed", "detail": {}},
    "a seal that took a text": EVENT | {"event": "sealed", "detail": {"outcome": "complete", "seconds": "x"}},
}


@pytest.mark.parametrize("line", [*(json.dumps(odd).encode() for odd in ODD.values()), b"", b"\xff", b"[" * 100_000],
                         ids=[*ODD, "nothing", "no text", "far too deep"])  # fmt: skip
def test_a_line_that_is_no_event_is_named(playground, line):
    playground.plan()
    with open(playground.out / campaign.LEDGER, "ab") as file:
        file.write(line.replace(b"run-0123456789abcdef", playground.run_ids()[0].encode()) + b"\n")
    for look in (playground.state, playground.sweep):
        with pytest.raises(Rejected) as error:
            look()
        assert error.value.problems[0].where.startswith(campaign.LEDGER)
    assert playground.executed() == []


def test_a_chained_line_that_says_nothing_of_a_cell_is_named_too(playground):
    playground.plan()
    campaign.append_event(playground.out, "failed", playground.run_ids()[0], {"outcome": 3, "log": 5})
    for look in (playground.state, playground.sweep):
        with pytest.raises(Rejected) as error:
            look()
        assert error.value.codes == ("E_SCHEMA_VALUE",)


def test_status_without_a_ledger_says_so(playground):
    playground.plan()
    (playground.out / campaign.LEDGER).unlink()
    with pytest.raises(Rejected) as error:
        playground.state()
    assert error.value.codes == ("E_FILE_MISSING",)
    os.mkfifo(playground.out / campaign.LEDGER)
    with pytest.raises(Rejected) as error:
        playground.state()
    assert error.value.codes == ("E_FILE_KIND",), "and waits for no pipe"
    with pytest.raises(Rejected) as error:
        campaign.append_event(playground.out, "frozen")
    assert error.value.codes == ("E_FILE_KIND",)


# disks that are full


@contextmanager
def files_of_at_most(size):
    """Processes that are started here can't write more into one file, as if the disk were full."""
    kept = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, kept[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, kept)


def test_a_full_disk_under_the_plan_leaves_nothing(playground):
    with files_of_at_most(1000):
        driver = playground.drive()
    assert "error[E_FILE_WRITE] arms.json: " in finish(driver, code=3)
    assert list(playground.out.parent.iterdir()) == []


def test_a_full_disk_under_the_ledger_stops_the_campaign_and_it_goes_on_later(playground):
    playground.plan()
    with files_of_at_most(3000):
        driver = playground.drive()
    errors = finish(driver, code=3)
    assert "error[E_FILE_WRITE] ledger.jsonl: " in errors
    assert "Traceback" not in errors
    assert (playground.out / campaign.LEDGER).read_bytes().endswith(b"\n"), "nothing half written"
    state = playground.state()
    assert state["failed"] == 0
    assert state["missing"] > 0
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 16}


@pytest.mark.parametrize("mishap", ["full", "nospace"])
def test_a_full_disk_under_a_run_stops_the_campaign_instead_of_failing_cell_after_cell(playground, mishap):
    run_id = playground.plan()[3]
    playground.tell(**{run_id: mishap})
    with pytest.raises(Rejected, match="No space left on device") as error:
        playground.sweep(executor={"name": "local", "slots": 1, "timeout_seconds": 60.0})
    assert error.value.codes == ("E_FILE_WRITE",)
    assert playground.state()["states"] == {"complete": 3, "missing": 13}
    playground.tell()
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 16}


@pytest.mark.slow
def test_a_full_disk_under_a_real_run_stops_the_campaign(playground):
    """The runner raises what the stand-in raises."""
    with files_of_at_most(30000):
        driver = playground.drive(role="train")
    assert "error[E_FILE_WRITE] " in finish(driver, code=3)
    assert playground.state()["states"] == {"missing": 16}


def test_runs_that_can_not_be_published_stop_the_campaign(playground):
    """Their folder is gone, say: that is no fault of a cell, and none is recorded as failed."""
    playground.tell(seconds=0.5)
    driver = playground.drive()
    playground.wait_for_done(2)
    os.rename(playground.out / campaign.RUNS, playground.out / "elsewhere")
    errors = finish(driver, code=3)
    assert "error[E_FILE_ACCESS] runs/run-" in errors
    assert playground.events("failed") == []
    os.rename(playground.out / "elsewhere", playground.out / campaign.RUNS)
    playground.tell()
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 16}


# odd things in the folder


@pytest.mark.parametrize("name", cells.FOLDERS)
def test_a_folder_that_a_copy_lacks_is_made_again(playground, name):
    """Git and object stores keep no empty folders."""
    playground.plan()
    (playground.out / name).rmdir()
    assert command.status([str(playground.out)]) == 0
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 16}


@pytest.mark.parametrize("name", cells.FOLDERS)
@pytest.mark.parametrize("kind", ["file", "link"])
def test_something_else_in_the_place_of_a_folder_is_named(playground, name, kind):
    playground.plan()
    path = playground.out / name
    path.rmdir()
    if kind == "file":
        path.write_text("mine")
    else:
        (playground.root / "elsewhere").mkdir()
        path.symlink_to(playground.root / "elsewhere")
    with pytest.raises(Rejected) as error:
        playground.sweep()
    assert set(error.value.codes) <= {"E_FILE_KIND", "E_FILE_ACCESS"}
    assert str(path) in str(error.value)
    assert playground.executed() == []


def test_what_the_file_system_refuses_is_an_error_with_a_name(playground):
    playground.out.parent.write_text("a file in the place of results/")
    with pytest.raises(Rejected) as error:
        playground.sweep()
    assert error.value.codes == ("E_FILE_WRITE",)
    assert error.value.problems[0].where == str(playground.out)
    with pytest.raises(Rejected) as error:
        command.status([str(playground.out)])
    assert error.value.codes == ("E_CAMPAIGN_MISSING",)


@pytest.mark.parametrize("out", [".", "", "/"])
def test_a_folder_without_a_name_of_its_own_is_refused(playground, out, monkeypatch):
    monkeypatch.chdir(playground.root)
    before = sorted(path.name for path in playground.root.iterdir())
    if out:
        with pytest.raises(UsageError) as error:
            playground.sweep(out=out)
        assert [problem.where for problem in error.value.problems] == ["out"]
    else:
        assert playground.sweep(out=out) == 0, "the default"
        before = sorted([*before, "results", "executed"])
    assert sorted(path.name for path in playground.root.iterdir()) == before


def test_any_name_will_do_for_a_folder(playground, capsys):
    playground.out = playground.root / 'mit Leerzeichen, ü=𝄞 "q" $(x)`\n2' / ("x" * 230)
    assert playground.sweep(out=str(playground.out)) == 0
    assert capsys.readouterr().out == f"{playground.out}\n"
    assert playground.state()["states"] == {"complete": 16}


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_log_that_is_none_costs_its_cell_and_the_reason_is_told(playground, kind):
    run_id = playground.plan()[0]
    log, victim = cells.log_path(playground.out, run_id), playground.root / "victim"
    victim.write_text("precious")
    {"link": lambda: log.symlink_to(victim), "folder": log.mkdir, "pipe": lambda: os.mkfifo(log)}[kind]()
    assert playground.sweep() == 0
    (failure,) = playground.state()["failures"]
    assert (failure["run_id"], failure["state"], failure["reason"]) == (run_id, "crashed", "exit 1")
    assert f"{run_id}.log" in failure["log"], "the worker's own log says it"
    assert victim.read_text() == "precious"


@pytest.mark.parametrize("kind", ["link", "file"])
def test_something_else_in_work_is_removed_and_no_link_followed(playground, kind):
    run_id = playground.plan()[0]
    kept = playground.root / "kept"
    kept.mkdir()
    (kept / "precious").touch()
    stale = playground.out / cells.WORK / f"{run_id}.1"
    stale.symlink_to(kept) if kind == "link" else stale.write_text("mine")
    assert playground.sweep() == 0
    assert list((playground.out / cells.WORK).iterdir()) == []
    assert (kept / "precious").exists()


NO_SLOTS = '{"executor":{"name":"local","slots":null,"timeout_seconds":60},"data":"x","budget_seconds":null}'
LIST = '{"executor":{"name":[],"slots":1},"data":"x","budget_seconds":null}'
NOTHING = '{"executor":{},"data":"x","budget_seconds":null}'


@pytest.mark.parametrize("launch", ["[]", "{}", NOTHING, NO_SLOTS, LIST, "no json"])
def test_a_record_of_the_launch_that_is_none_is_named(playground, launch):
    finished_with_failure(playground)
    path = playground.out / command.LAUNCH
    path.unlink()
    path.write_text(launch)
    with pytest.raises(Rejected) as error:
        retry(playground)
    assert all(problem.where.startswith((command.LAUNCH, "executor.name")) for problem in error.value.problems)
    assert playground.events("retried") == []


# a campaign that is moved while it runs


def test_a_campaign_that_is_moved_stops_and_goes_on_in_its_new_place(playground):
    playground.tell(seconds=0.5)
    driver = playground.drive()
    playground.wait_for_done(2)
    moved = playground.out.with_name("moved")
    os.rename(playground.out, moved)
    errors = finish(driver, code=3)
    assert f"error[E_FILE_MISSING] {campaign.LEDGER}: " in errors
    assert "Traceback" not in errors
    assert [path.name for path in playground.out.parent.iterdir()] == ["moved"]
    playground.tell()
    playground.out = moved
    assert playground.sweep(out=str(moved)) == 0
    assert playground.state()["states"] == {"complete": 16}
    assert list((moved / cells.WORK).iterdir()) == []


def test_a_worker_puts_nothing_into_another_campaign_that_came_into_the_place_of_its_own(playground):
    run_id = playground.plan()[0]

    def execute(progress, **request):
        terminal = fake_runs.execute(progress, **request)
        os.rename(playground.out, playground.out.with_name("moved"))
        playground.plan()
        os.rename(playground.out.with_name("moved") / cells.WORK / request["out"].name, request["out"])
        return terminal

    order = {"folder": playground.out, "data": playground.data, "driver": "driver-x", "budget_seconds": None}
    one = worker.Worker(order, replace(fake_runs.HOST, execute=execute), lambda **event: None)
    cell = next(cell for cell in one.plan["cells"] if cell["run_id"] == run_id)
    with cells.claim(playground.out, run_id):
        assert one._train(cell) == "lost"
    with pytest.raises(Refused) as error:
        one._train(cell)
    assert error.value.codes == ("E_CAMPAIGN_CHANGED",)
    assert list((playground.out / campaign.RUNS).iterdir()) == []
    assert [event["event"] for event in campaign.ledger_events(playground.out)] == ["planned"]
