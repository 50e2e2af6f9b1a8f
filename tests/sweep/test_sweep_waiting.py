"""Processes that are suspended while they hold a lock: nobody waits for them without a word, nobody takes it away."""

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from conftest import REPOSITORY
from playground import Playground, finish

from runner.sweep import cells, waiting
from vqkit.formats import campaign, locks

HOLD = (
    "import os, signal, sys\nfrom pathlib import Path\nfrom vqkit.formats import locks\n"
    "with open(sys.argv[1], 'rb') as file:\n    locks.take(file, sys.argv[1])\n    print('held', flush=True)\n"
    "    os.kill(os.getpid(), signal.SIGSTOP)"
)
APPEND = (
    "import sys\nfrom pathlib import Path\nfrom vqkit.formats import campaign, locks\nlocks.PATIENCE_SECONDS = 0.1\n"
    "campaign.append_event(Path(sys.argv[1]), 'scored', None, {})"
)
STATUS = "import sys\nfrom runner.sweep import command\ncommand.status(sys.argv[1:])"


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    return Playground(tmp_path, tiny, tiny_data)


def start(program, *arguments, **options):
    """A process that runs a program."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, cwd=REPOSITORY, text=True, stderr=subprocess.PIPE, **options)


def wait_until_stopped(playground, process):
    """Wait until a process has suspended itself, or was."""
    playground.wait_for(lambda: locks.is_stopped(process.pid))


@contextmanager
def suspended_holder(playground, path):
    """A process that holds the lock of ``path`` and is suspended; it goes on, and ends, at the end."""
    process = start(HOLD, path, stdout=subprocess.PIPE)
    assert process.stdout.readline() == "held\n"
    wait_until_stopped(playground, process)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.communicate(timeout=20)


def looked_at(folder):
    """What ``status --json`` prints in a process of its own, which may not wait."""
    command = [sys.executable, "-c", STATUS, str(folder), "--json"]
    found = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, timeout=15)
    assert found.stderr == b""
    return json.loads(found.stdout)


def test_the_holder_of_a_lock_is_known(tmp_path):
    path, other = tmp_path / "one", tmp_path / "other"
    path.touch()
    other.touch()
    assert locks.holder(path) is None
    with open(path, "rb") as file, open(other, "rb"):
        locks.take(file, path)
        assert locks.holder(path) == os.getpid()
        assert locks.holder(other) is None
    assert locks.holder(path) is None
    assert locks.holder(tmp_path / "absent") is None
    assert locks.described(None) == locks.UNKNOWN
    assert locks.described(os.getpid()) == f"process {os.getpid()}"


def test_a_write_to_the_ledger_says_who_it_waits_for_and_goes_on(playground):
    playground.plan()
    path = playground.out / campaign.LEDGER
    with suspended_holder(playground, path) as holder:
        writer, given_up = start(APPEND, playground.out), start(APPEND, playground.out)
        said = f"notice: waiting for the lock of {path}, held by process {holder.pid}, which is suspended "
        assert writer.stderr.readline() == f"{said}(kill -CONT {holder.pid} lets it go on)\n"
        assert given_up.stderr.readline().startswith(said)
        given_up.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in given_up.communicate(timeout=10)[1], "an interrupt ends the wait"
        assert writer.poll() is None
        assert len(campaign.ledger_events(playground.out)) == 1
    writer.communicate(timeout=10)
    assert writer.returncode == 0
    assert [event["event"] for event in campaign.ledger_events(playground.out)] == ["planned", "scored"]


def test_a_write_that_waits_for_a_moment_says_nothing(playground):
    playground.plan()
    with open(playground.out / campaign.LEDGER, "rb") as file:
        locks.take(file, campaign.LEDGER)
        writer = start(APPEND.replace("0.1", "30"), playground.out)
        with pytest.raises(subprocess.TimeoutExpired):
            writer.wait(1)
    assert writer.communicate(timeout=10)[1] == ""


def test_workers_and_driver_say_who_keeps_the_ledger_and_status_answers(playground):
    playground.plan()
    with suspended_holder(playground, playground.out / campaign.LEDGER) as holder:
        driver = playground.drive()
        who = f"held by process {holder.pid}, which is suspended (kill -CONT {holder.pid} lets it go on)"
        said = driver.stderr.readline()
        assert said.startswith("notice: worker ")
        assert said.endswith(f": waiting for the lock of {playground.out / campaign.LEDGER}, {who}\n")
        state = looked_at(playground.out)
        assert (state["missing"], state["complete"]) == (16, 0)
        assert state["held_up"] == [f"ledger.jsonl, locked by {who.removeprefix('held by ')}"]
        assert driver.poll() is None
    finish(driver)
    state = playground.state()
    assert state["states"] == {"complete": 16}
    assert state["held_up"] == []


def test_status_names_a_worker_that_is_suspended(playground):
    run_id = playground.plan()[0]
    campaign.append_event(playground.out, "claimed", run_id, {"driver": "driver-x", "pid": 1})
    with cells.claim(playground.out, run_id):
        pass
    with suspended_holder(playground, playground.out / cells.CLAIMS / run_id) as holder:
        state = looked_at(playground.out)
        assert state["running"] == [run_id]
        assert state["held_up"] == [f"{run_id}, locked by {locks.described(holder.pid)}"]
        assert "which is suspended" in state["held_up"][0]
    assert playground.state()["held_up"] == []


def test_a_driver_says_that_it_waits_for_one_that_is_suspended(playground):
    """Its worker is dead, which only that driver can record as long as it lives."""
    run_id = playground.plan()[0]
    playground.tell(**{run_id: "hang"})
    executor = {"name": "local", "slots": 1, "timeout_seconds": 60.0}
    first = playground.drive(executor=executor)
    playground.wait_for(playground.worker_pids)
    (worker,) = playground.worker_pids()
    first.send_signal(signal.SIGSTOP)
    wait_until_stopped(playground, first)
    os.kill(worker, signal.SIGKILL)
    second = playground.drive(executor=executor)
    try:
        lines = iter(second.stderr.readline, "")
        said = next(line for line in lines if line.startswith("notice: "))
        assert "waiting for" in said
        assert f"{run_id}, whose worker (process {worker}) is gone, which driver-{first.pid}-" in said
        assert f"process {first.pid}, which is suspended" in said
        state = looked_at(playground.out)
        assert (state["complete"], state["missing"]) == (15, 1)
    finally:
        first.send_signal(signal.SIGCONT)
    finish(first)
    finish(second)
    assert playground.state()["states"] == {"complete": 15, "crashed": 1}
    assert playground.times(run_id) == 1, "its lock was not broken"


def test_what_is_waited_for(playground):
    busy, free = playground.plan()[:2]
    watch, told = cells.Watch(playground.out), []
    look = waiting.Waiting(playground.out, watch, told.append, patience=0).look
    campaign.append_event(playground.out, "claimed", busy, {"driver": "driver-x", "pid": os.getpid()})
    watch.refresh()
    look([busy])
    assert told == [], "something has just happened"
    look([busy])
    assert told == [], "nobody has it"
    with cells.claim(playground.out, busy):
        cells.report(playground.out, busy, 1, 2, 64.0)
        look([busy, free], [busy])
        look([])
        assert told == []
        look([busy, free])
        (text,) = told
    assert text == f"nothing new for 0 s; waiting for {busy}, held by process {os.getpid()} of driver-x, epoch 1 of 2"


@pytest.mark.parametrize("place", ["its run", "the ledger"])
def test_a_driver_says_that_its_own_worker_is_suspended(playground, place):
    """In the middle of a run, or of a write to the ledger, for whose lock everybody waits then."""
    run_id = playground.plan()[0]
    playground.tell(**({run_id: "hang"} if place == "its run" else {"suspend": True}))
    driver = playground.drive(executor={"name": "local", "slots": 1, "timeout_seconds": 8.0})
    if place == "its run":
        playground.wait_for(lambda: cells.reports(playground.out, [run_id]))
        (worker,) = playground.worker_pids()
        os.kill(worker, signal.SIGSTOP)
    else:
        playground.wait_for((playground.root / "suspended").exists)
        playground.wait_for(playground.worker_pids)
        (worker,) = playground.worker_pids()
    said = next(line for line in iter(driver.stderr.readline, "") if line.startswith("notice: "))
    where = run_id if place == "its run" else campaign.LEDGER
    assert f"waiting for {where}, locked by process {worker}, which is suspended (kill -CONT {worker} " in said
    finish(driver)
    assert playground.state()["states"] == {"complete": 15, "timeout": 1}, "its limit of time ends it all the same"


def test_cells_that_nobody_takes_are_waited_for_with_more_patience(playground, monkeypatch):
    run_ids = playground.plan()
    told = []
    look = waiting.Waiting(playground.out, cells.Watch(playground.out), told.append, patience=0).look
    look(run_ids)
    assert told == []
    monkeypatch.setattr(waiting, "START_SECONDS", 0.0)
    look(run_ids)
    assert told == ["nothing new for 0 s; waiting for 16 cells that nobody has taken yet"]


def test_notices_become_rarer(playground, monkeypatch):
    run_id = playground.plan()[0]
    clock, told = [0.0], []
    monkeypatch.setattr(waiting.time, "monotonic", lambda: clock[0])
    look = waiting.Waiting(playground.out, cells.Watch(playground.out), told.append).look
    with cells.claim(playground.out, run_id):
        for second in range(100):
            clock[0] = float(second)
            look([run_id])
    assert [text.split(";")[0] for text in told] == [f"nothing new for {n} s" for n in (5, 10, 20, 40, 80)]
    assert f"held by process {os.getpid()}" in told[0]
