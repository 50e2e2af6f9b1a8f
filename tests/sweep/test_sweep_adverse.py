"""Campaigns in adverse surroundings: runs that somebody put there, full disks, odd things in the folder, a moved one."""

import json
import os
import resource
import shutil
import subprocess
import sys
from types import SimpleNamespace

import fake_runs
import pytest
from conftest import REPOSITORY
from playground import Playground, finish, kill

from runner.sweep import cells, command, local, outcomes
from vqkit.errors import Refused, Rejected, UsageError
from vqkit.formats import campaign

STATUS = "import sys\nfrom runner.sweep import command\ncommand.status(sys.argv[1:])"


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
    before = campaign.ledger_events(playground.out)
    for _ in range(2):
        state = playground.state()
        assert state["states"] == {"complete": 15, "unverified": 1}
        (failure,) = state["failures"]
        assert failure["run_id"] == run_id
        recorded = "ledger.jsonl records crashed (signal SIGSEGV), yet a run lies in runs/"
        assert failure["reason"] == f"{recorded}; retry sets it aside"
        assert playground.sweep() == 0, "which changes nothing"
    assert campaign.ledger_events(playground.out) == before
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


@pytest.mark.parametrize(
    "line", [b"{}\n", b"\n", b'"x"\n', b"\xff\n", b'{"event":"claimed","run_id":null,"detail":{}}\n']
)
def test_a_line_that_is_no_event_is_named(playground, line):
    playground.plan()
    with open(playground.out / campaign.LEDGER, "ab") as file:
        file.write(line)
    for look in (playground.state, playground.sweep):
        with pytest.raises(Rejected):
            look()


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
