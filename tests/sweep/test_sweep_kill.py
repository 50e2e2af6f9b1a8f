"""Campaigns whose processes are killed: nothing is lost, nothing is done twice, the result is that of a quiet one."""

import os
import random
import shutil
import signal
import time

import fake_runs
import pytest
from conftest import tiny_spec
from playground import Playground, definition, finish, is_alive, kill, set_aside

from runner.sweep import cells, command
from vqkit.formats import campaign
from vqkit.formats.contract import Contract


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    playground = Playground(tmp_path, tiny, tiny_data)
    playground.plan()
    playground.tell(seconds=0.1)
    return playground


def undisturbed(playground):
    """The evidence of the same plan when nobody disturbs it."""
    other = playground.copy()
    playground.tell()
    assert other.sweep() == 0
    return other.evidence()


def executions_after_seal(playground):
    """Cells that the ledger claims again after it has sealed them, without a retry in between."""
    sealed, again = set(), []
    for event in campaign.ledger_events(playground.out):
        if event["event"] == "sealed":
            sealed.add(event["run_id"])
        elif event["event"] == "retried":
            sealed.discard(event["run_id"])
        elif event["event"] == "claimed" and event["run_id"] in sealed:
            again.append(event["run_id"])
    return again


def test_driver_and_worker_killed_and_started_again(playground):
    expected = undisturbed(playground)
    (playground.root / "executed").unlink()
    playground.tell(seconds=0.1)
    driver = playground.drive()
    playground.wait_for(playground.worker_pids)
    os.kill(playground.worker_pids()[0], signal.SIGKILL)
    playground.wait_for(lambda: playground.events("failed"))
    playground.wait_for_done(5)
    playground.wait_for(playground.worker_pids)
    workers = playground.worker_pids()
    kill(driver)
    playground.wait_for(lambda: not any(map(is_alive, workers)))
    finished, begun = set(playground.evidence()), len(playground.executed())
    assert 5 <= len(finished) < 15
    assert playground.sweep() == 0
    assert not finished & {run_id for run_id, _, _ in playground.executed()[begun:]}
    assert playground.state()["states"] == {"complete": 15, "crashed": 1}
    (failure,) = playground.state()["failures"]
    assert failure["reason"] == "signal SIGKILL"
    assert command.retry([str(playground.out)], host=fake_runs.HOST) == 0
    assert [event["run_id"] for event in playground.events("retried")] == [failure["run_id"]]
    assert playground.evidence() == expected
    assert executions_after_seal(playground) == []
    assert list((playground.out / cells.WORK).iterdir()) == []


def test_interrupt_stops_cleanly_and_says_how_to_go_on(playground):
    driver = playground.drive()
    playground.wait_for_done(2)
    playground.tell(seconds=2.0)  # so that the campaign can't end before the signal comes
    playground.wait_for(playground.worker_pids)
    workers = playground.worker_pids()
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=20)
    assert driver.returncode == 5
    assert "error[E_RUN_CANCELLED]" in errors
    assert "of 16 cells done; the same command goes on from there" in errors
    assert "Traceback" not in errors
    assert not any(map(is_alive, workers))
    assert list((playground.out / cells.WORK).iterdir()) == []
    state = playground.state()
    assert (state["failed"], state["running"]) == (0, [])
    assert state["complete"] >= 2
    playground.tell(seconds=0.05)
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 16}


def test_two_drivers_that_start_at_once_share_one_campaign(playground):
    shutil.rmtree(playground.out)
    drivers = [playground.drive(), playground.drive()]
    for driver in drivers:
        _, errors = driver.communicate(timeout=40)
        assert driver.returncode == 0, errors
        assert "16 planned = 16 complete + 0 failed + 0 missing" in errors
    assert sorted(run_id for run_id, _, _ in playground.executed()) == playground.run_ids()
    holders = {event["detail"]["driver"] for event in playground.events("claimed")}
    assert len(holders) == 2, "both took part"
    assert [path.name for path in playground.out.parent.iterdir()] == ["c"]


def test_a_driver_takes_over_what_another_leaves(playground):
    playground.tell(seconds=0.1, **{playground.run_ids()[0]: "hang"})
    first = playground.drive(executor={"name": "local", "slots": 1, "timeout_seconds": 60.0})
    playground.wait_for(playground.worker_pids)
    second = playground.drive(executor={"name": "local", "slots": 1, "timeout_seconds": 60.0})
    playground.wait_for_done(15)
    playground.tell(seconds=0.1)
    kill(first)
    second.communicate(timeout=30)
    assert second.returncode == 0
    assert playground.state()["states"] == {"complete": 16}
    assert playground.times(playground.run_ids()[0]) == 2


@pytest.mark.slow
def test_thirty_kills_change_nothing(playground):
    """Driver or worker, killed at random moments; what crashed is given back, as ``retry`` does, and all goes on."""
    expected = undisturbed(playground)
    playground.tell(seconds=0.8)
    disturb(playground, kills=30, pause=0.7)
    playground.tell()
    set_aside(playground)
    assert playground.sweep() == 0
    assert playground.evidence() == expected
    assert executions_after_seal(playground) == []
    assert len(playground.executed()) > 16 + 16


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_thirty_kills_change_nothing_in_real_runs(tmp_path, tiny_data):
    """The same with trainings of about a second: what is sealed in the end is what an undisturbed campaign seals."""
    spec = tiny_spec()
    spec["marks"] = [0, 2, 10]
    playground = Playground(tmp_path, Contract(spec), tiny_data)
    playground.options["sweep"] = definition(arms=4, seeds=8)
    finish(playground.drive(role="train"))
    expected = playground.evidence()
    assert {state for _, state in expected.values()} == {"complete"}
    playground.forget()
    disturb(playground, kills=30, pause=1.0, role="train")
    set_aside(playground)
    finish(playground.drive(role="train"))
    assert playground.evidence() == expected
    assert executions_after_seal(playground) == []
    assert list((playground.out / cells.WORK).iterdir()) == []


def disturb(playground, kills, pause, role="drive"):
    """Start the driver, kill it or a worker within ``pause`` seconds of training, ``kills`` times over."""
    choose, driver = random.Random(0), None
    for _ in range(kills):
        if driver is None or driver.poll() is not None:
            set_aside(playground)
            driver = playground.drive(role=role)
        playground.wait_for(lambda: playground.worker_pids() or not playground.state()["missing"], seconds=60)
        assert playground.state()["missing"], "the campaign is too short for so many kills"
        time.sleep(choose.uniform(0, pause))
        workers = playground.worker_pids()
        if workers and choose.random() < 0.5:
            os.kill(choose.choice(workers), signal.SIGKILL)
        else:
            kill(driver)
    kill(driver)
