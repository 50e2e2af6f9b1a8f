"""Workers on standby: they answer for the machine, take an order, and leave nothing behind."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import fake_runs
import pytest
from conftest import REPOSITORY
from playground import Playground, is_alive

from runner.sweep import command
from runner.sweep.host import Host
from runner.sweep.standby import Standby, wanted
from vqkit.errors import Incomplete


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    return Playground(tmp_path, tiny, tiny_data)


def test_a_campaign_with_workers_that_waited(playground):
    with Standby(fake_runs.HOST, 3) as standby:
        waiting = [process.pid for process in standby.ready]
        assert standby.host.environment("cpu", 1) == fake_runs.environment("cpu", 1)
        assert standby.host.cuda_devices() == 2
        assert command.sweep(playground.options, playground.contract, playground.data, host=standby.host) == 0
        assert standby.ready == []
    assert playground.state()["states"] == {"complete": 16}
    assert {pid for _, pid, _ in playground.executed()} <= set(waiting)
    assert not any(map(is_alive, waiting))


def test_on_cuda_each_worker_starts_with_its_device(playground, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    playground.tell(seconds=0.05)
    options = {**playground.options, "device": "cuda"}
    with Standby(fake_runs.HOST) as standby:
        assert command.sweep(options, playground.contract, playground.data, host=standby.host) == 0
    assert {device for _, _, device in playground.executed()} == {"0", "1"}


def test_one_that_dies_is_an_error(playground):
    broken = replace(fake_runs.HOST, worker=(sys.executable, "-c", "raise SystemExit(3)"))
    with Standby(broken) as standby, pytest.raises(Incomplete, match="exit 3") as error:
        standby.host.environment("cpu", 1)
    assert error.value.codes == ("E_WORKER",)


def test_facts_are_those_that_a_run_finds():
    """The answer of a worker is what this process finds, and the driver does not load torch for it."""
    with Standby(Host()) as standby:
        told = standby.host.environment("cpu", 1)
    script = (
        "import json, sys\nfrom runner.environment import environment, pin\npin('cpu', 1)\n"
        "print(json.dumps(environment('cpu', 1)))"
    )
    found = subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, capture_output=True, check=True, text=True)
    assert json.loads(found.stdout) == told
    loaded = "import sys, runner.config, runner.sweep.command, runner.sweep.preset\nprint('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", loaded], cwd=REPOSITORY, capture_output=True, check=True, text=True)
    assert found.stdout == "False\n"


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ([], 1),
        (["device=cuda"], 1),
        (["device=cpu", "executor=slurm"], 1),
        (["device=cpu", "dry_run=true"], 1),
        (["device=cpu", "executor.slots=x"], 1),
        (["device=cpu", "executor.slots=1"], 1),
        (["device=cpu", "executor.slots=0"], 1),
        (["device=cpu", "executor.slots=null"], 1),
        (["device=cpu", "threads=0"], 4),
        (["device=cpu", "threads=-1"], 4),
        (["device=cpu", f"threads={'9' * 5000}"], 1),
        (["device=cpu"], 4),
        (["device=cpu", "threads=4"], 2),
        (["device=cpu", "executor.slots=3"], 3),
    ],
)
def test_how_many_start_early(arguments, count, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert wanted(arguments) == count
