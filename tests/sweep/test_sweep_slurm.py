"""The Slurm executor on a stand-in for Slurm's commands; submitit, its batch files and pickles are the real ones."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading

import fake_runs
import fake_slurm
import pytest
from playground import Playground, kill

from runner.sweep import command, local, slurm, tasks, waiting
from vqkit.errors import Incomplete, Refused, UsageError
from vqkit.formats import campaign

OPTIONS = {
    "name": "slurm",
    "slots": 2,
    "timeout_seconds": 60.0,
    "cluster": "slurm",
    "partition": "gpu",
    "account": None,
    "time_minutes": 10,
    "cpus": None,
    "gpus": None,
    "memory_gb": None,
    "additional_parameters": {"qos": "low"},
    "poll_seconds": 0.1,
}


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The folder of a stand-in cluster whose commands are in PATH; no task runs behind the test."""
    folder = tmp_path / "cluster"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{fake_slurm.install(folder)}{os.pathsep}{os.environ['PATH']}")
    yield folder
    running = fake_slurm.running(folder)
    shutil.rmtree(folder / "queue")
    for _, pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch, cluster):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    playground = Playground(tmp_path, tiny, tiny_data)
    playground.options["executor"] = OPTIONS
    playground.plan()
    return playground


def submitted(cluster):
    """The batch files that were submitted."""
    return [path.read_text() for path in sorted(cluster.glob("job-*"))]


def test_one_array_of_tasks_does_it_all(playground, cluster, capsys):
    playground.tell(seconds=0.05)
    other = playground.copy()
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 16}
    (batch,) = submitted(cluster)
    assert "#SBATCH --array=0-1%2" in batch
    assert "#SBATCH --partition=gpu" in batch
    assert "#SBATCH --cpus-per-task=1" in batch
    assert "#SBATCH --gpus-per-node=0" in batch
    assert "#SBATCH --qos=low" in batch
    assert sorted(run_id for run_id, _, _ in playground.executed()) == playground.run_ids()
    assert len({event["detail"]["driver"] for event in playground.events("claimed")}) == 2
    assert sum(line.startswith("[") for line in capsys.readouterr().err.splitlines()) == 16
    other.options["executor"] = {**OPTIONS, "name": "local"}
    assert other.sweep() == 0
    assert other.evidence() == playground.evidence()


def test_the_driver_may_be_killed_and_finds_its_tasks_again(playground, cluster):
    """Nothing is submitted twice, be it at work or waiting; what was done without a driver counts."""
    playground.tell(seconds=0.3)
    other = playground.copy()
    driver = playground.drive()
    playground.wait_for_done(2)
    kill(driver)
    done = len(playground.evidence())
    playground.wait_for_done(done + 2)
    assert playground.sweep() == 0
    assert len(submitted(cluster)) == 1
    assert playground.state()["states"] == {"complete": 16}
    assert sorted(run_id for run_id, _, _ in playground.executed()) == playground.run_ids()

    (cluster / "full").touch()
    (playground.root / "executed").unlink()
    playground.tell()
    driver = other.drive()
    other.wait_for(lambda: len(list((other.out / slurm.JOBS).glob("*_submitted.pkl"))) == 2)
    kill(driver)
    driver = other.drive()
    with pytest.raises(subprocess.TimeoutExpired):
        driver.wait(3)
    assert len(submitted(cluster)) == 2
    (cluster / "full").unlink()
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode == 0, errors
    assert len(submitted(cluster)) == 2
    assert other.evidence() == playground.evidence()


def test_what_tasks_wait_for_is_said(playground, cluster, capsys, monkeypatch):
    monkeypatch.setattr(tasks, "QUIET_SECONDS", 0.5)
    monkeypatch.setattr(waiting, "START_SECONDS", 0.0)
    (cluster / "full").touch()
    timer = threading.Timer(2.0, (cluster / "full").unlink)
    timer.start()
    assert playground.sweep() == 0
    assert "; waiting for 16 cells that nobody has taken yet\n" in capsys.readouterr().err


def test_an_interrupt_says_which_tasks_go_on(playground, cluster):
    playground.tell(seconds=0.3)
    driver = playground.drive()
    playground.wait_for_done(2)
    driver.send_signal(signal.SIGINT)
    _, errors = driver.communicate(timeout=20)
    assert driver.returncode == 5
    assert "of 16 cells done; the same command goes on from there; tasks go on without it (vqkit-" in errors
    assert "100_0, 100_1" in errors
    playground.wait_for_done(16)


def test_mishaps_and_a_task_that_is_killed_cost_a_cell_each(playground, cluster, capsys):
    """Cells that crash or overrun are recorded by their task; that of a task that dies as a whole by another one."""
    run_ids = playground.run_ids()
    mishaps = {run_ids[0]: "crash", run_ids[1]: "hang", run_ids[2]: "nonfinite", run_ids[15]: "hang"}
    playground.tell(seconds=0.05, **mishaps)
    driver = playground.drive(executor={**OPTIONS, "timeout_seconds": 4.0})
    playground.wait_for(lambda: playground.times(run_ids[1]))
    (lock,) = (e["detail"]["driver"] for e in playground.events("claimed") if e["run_id"] == run_ids[1])
    kill(driver)
    pid = next(pid for task, pid in fake_slurm.running(cluster) if f"task-{task}." in lock)
    os.kill(pid, signal.SIGKILL)
    playground.wait_for(lambda: len(playground.events("failed")) == 3)
    assert playground.sweep() == 0
    state = playground.state()
    assert state["states"] == {"complete": 12, "nonfinite": 1, "crashed": 2, "timeout": 1}
    reasons = {failure["run_id"]: failure["reason"] for failure in state["failures"]}
    assert reasons.pop(run_ids[0]) == "signal SIGSEGV"
    assert "the task that ran it is gone" in reasons.pop(run_ids[1])
    assert reasons.pop(run_ids[2]) == "nonfinite on demand"
    assert reasons == {run_ids[15]: "more than 4 s"}
    assert [playground.times(run_id) for run_id in run_ids] == [1] * 16
    playground.tell()
    assert command.retry([str(playground.out)], host=fake_runs.HOST) == 0
    assert playground.state()["states"] == {"complete": 16}


def test_a_task_that_is_told_to_end_leaves_its_cell_to_be_done_again(playground, cluster):
    """As at the end of its time: nothing crashed."""
    playground.tell(seconds=0.4)
    driver = playground.drive()
    playground.wait_for(lambda: len(playground.worker_pids()) == 2)
    for number in (signal.SIGTERM, signal.SIGUSR2):
        playground.wait_for(lambda: fake_slurm.running(cluster))
        os.killpg(fake_slurm.running(cluster)[0][1], number)
        playground.wait_for_done(len(playground.evidence()) + 1)
    playground.tell(seconds=0.05)
    _, errors = driver.communicate(timeout=40)
    assert driver.returncode == 0, errors
    assert playground.state()["states"] == {"complete": 16}
    assert len(submitted(cluster)) >= 3, "tasks are replaced"


def test_what_a_worker_refuses_on_a_node_is_raised_here(playground, cluster):
    driver = playground.drive()
    playground.wait_for_done(1)
    playground.tell(environment="another")
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode in (0, 4), errors
    other = playground.copy()
    shutil.rmtree(other.out / campaign.RUNS)
    (other.out / campaign.RUNS).mkdir()
    with pytest.raises(Refused) as error:
        other.sweep()
    assert error.value.codes[0] == "E_CAMPAIGN_CHANGED"


def test_tasks_that_die_at_once_end_the_sweep_with_their_last_words(playground, cluster):
    (cluster / "bin" / "srun").write_text(
        f"#!/bin/sh\necho 'srun: error: no such node' > {playground.out}/jobs/${{FAKE_SLURM_TASK}}_0_log.err\nexit 1\n"
    )
    with pytest.raises(Incomplete, match="srun: error: no such node") as error:
        playground.sweep(executor={**OPTIONS, "slots": 1})
    assert error.value.codes == ("E_WORKER",)
    assert len(submitted(cluster)) == 3


class Endless:
    """Tasks that end as at their time limit, before any cell has an outcome; one of the cells may get one."""

    def __init__(self, folder, fruitful):
        self.folder, self.fruitful, self.waiting, self.submitted = folder, fruitful, 0, 0

    def alive(self):
        return self.waiting

    def submit(self, count):
        self.waiting += count
        self.submitted += count
        assert self.submitted < 50, "for ever"

    def ended(self):
        self.waiting, ended = 0, self.waiting
        if self.submitted == self.fruitful:
            run_id = campaign.read(self.folder, campaign.CAMPAIGN)[0]["cells"][0]["run_id"]
            detail = {"outcome": "timeout", "reason": "too long", "log": ""}
            campaign.append_event(self.folder, "failed", run_id, detail)
        return [None] * ended


@pytest.mark.parametrize(("fruitful", "submitted"), [(None, 6), (4, 10)])
def test_tasks_that_end_again_and_again_without_an_outcome_end_the_sweep(playground, fruitful, submitted):
    """A cell that never fits into the time of a task is not done again for ever; an outcome begins the count anew."""
    job = local.Job(
        folder=playground.out,
        run_ids=tuple(playground.run_ids()),
        data=playground.data,
        device="cpu",
        threads=1,
        slots=2,
        timeout_seconds=60.0,
    )
    endless = Endless(playground.out, fruitful)
    with pytest.raises(Incomplete, match="time limit may be too short") as error:
        tasks.follow(job, tasks.Silent(), endless, 0)
    assert error.value.codes == ("E_WORKER",)
    assert endless.submitted == submitted


def test_retry_holds_a_task_s_time_against_a_cell_s(playground, cluster):
    run_ids = playground.run_ids()
    playground.tell(**{run_ids[0]: "nonfinite"})
    assert playground.sweep() == 0
    before = (playground.out / command.LAUNCH).read_bytes()
    with pytest.raises(UsageError) as error:
        command.retry([str(playground.out), "--timeout-seconds", "600"], host=fake_runs.HOST)
    assert [(problem.code, problem.where) for problem in error.value.problems] == [
        ("E_CONFIG", "executor.time_minutes")
    ]
    assert (playground.out / command.LAUNCH).read_bytes() == before
    assert not (playground.out / campaign.ATTEMPTS).exists()


def test_without_slurm_no_folder_is_made_and_nothing_is_set_aside(playground, cluster, monkeypatch):
    run_ids = playground.run_ids()
    playground.tell(**{run_ids[0]: "nonfinite"})
    assert playground.sweep() == 0
    monkeypatch.setenv("PATH", "/nowhere")
    before = sorted(playground.out.rglob("*"))
    with pytest.raises(UsageError) as error:
        command.retry([str(playground.out)], host=fake_runs.HOST)
    assert error.value.codes == ("E_EXECUTOR",)
    assert sorted(playground.out.rglob("*")) == before
    other = playground.out.with_name("other")
    with pytest.raises(UsageError) as error:
        playground.sweep(out=str(other))
    assert error.value.codes == ("E_EXECUTOR",)
    assert not other.exists()
    assert playground.sweep() == 0, "a finished campaign is only looked at"


def test_without_slurm_or_its_extra_the_error_says_what_is_needed(playground, cluster, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="sbatch in PATH") as error:
        playground.sweep()
    assert error.value.codes == ("E_EXECUTOR",)
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UsageError, match=r"vqkit\[slurm\]") as error:
        playground.sweep()
    assert error.value.codes == ("E_EXECUTOR",)
    assert playground.executed() == []


def test_the_same_path_works_without_a_cluster(playground):
    """submitit's own local executor."""
    assert playground.sweep(executor={**OPTIONS, "cluster": "local"}) == 0
    assert playground.state()["states"] == {"complete": 16}
