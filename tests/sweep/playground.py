"""A playground for campaigns: the tiny contract, the noise dataset, and stand-ins for training."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import fake_runs

from runner.sweep import cells, command, outcomes
from vqkit.formats import campaign

EXPECTED = {"metric": "normalized_perplexity", "direction": "increase"}


def inline(label, **levels):
    """An inline arm."""
    return {"label": label, "set": levels, "expected": EXPECTED}


def definition(arms=3, seeds=4):
    """``arms`` levels of the commitment weight beside the reference."""
    found = [inline(f"secret-{i}", commitment_weight=1.0 + i) for i in range(arms)]
    return {"name": "tryout", "reference": "reference", "arms": found, "seeds": {"count": seeds}}


class Playground:
    """A campaign folder, the options of its sweep, and what the stand-in for training was told and has done."""

    def __init__(self, root, contract, data):
        self.root, self.contract, self.data, self.out = root, contract, data, root / "results" / "c"
        self.options = {
            "sweep": definition(),
            "out": str(self.out),
            "device": "cpu",
            "threads": 1,
            "phase": "development",
            "seeds": None,
            "marks": None,
            "executor": {"name": "local", "slots": 2, "timeout_seconds": 60.0},
            "budget_seconds": None,
            "dry_run": False,
        }

    def tell(self, **behaviour):
        """What the stand-in does from now on."""
        temporary = self.root / "behaviour.tmp"
        temporary.write_text(json.dumps(behaviour))
        os.replace(temporary, self.root / "behaviour.json")

    def sweep(self, host=fake_runs.HOST, **options):
        """Run the command here."""
        return command.sweep({**self.options, **options}, self.contract, self.data, host=host)

    def plan(self):
        """Plan without running: the run ids of the cells."""
        terms = command.terms_of(self.options, self.contract, self.data, "sweep", fake_runs.HOST)
        command.plan.create(self.out, terms)
        return self.run_ids()

    def drive(self, *, role="drive", **options):
        """Start the command in a process of its own; with ``role="train"``, one of real runs."""
        arguments = [json.dumps({**self.options, **options}), json.dumps(self.contract.spec), str(self.data)]
        return subprocess.Popen(
            [sys.executable, fake_runs.__file__, role, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run_ids(self):
        """The cells of the campaign."""
        return [cell["run_id"] for cell in campaign.read(self.out, campaign.CAMPAIGN)[0]["cells"]]

    def executed(self):
        """(run id, process, its CUDA_VISIBLE_DEVICES) of every execution that was begun, in order."""
        path = self.root / "executed"
        lines = path.read_text().splitlines() if path.exists() else []
        return [(run_id, int(pid), devices) for run_id, pid, devices in (line.split() for line in lines)]

    def times(self, run_id):
        """How often a cell was begun."""
        return sum(run_id == begun for begun, _, _ in self.executed())

    def events(self, name):
        """The ledger's events of that name."""
        return [event for event in campaign.ledger_events(self.out) if event["event"] == name]

    def evidence(self):
        """run id → evidence digest and state of every published run."""
        found = {}
        for path in (self.out / campaign.RUNS).iterdir():
            predicate = json.loads((path / "manifest.json").read_bytes())["predicate"]
            found[path.name] = (predicate["digests"]["evidence"], predicate["terminal"]["state"])
        return found

    def state(self):
        """What ``status --json`` says."""
        return command.state_of(self.out, campaign.read(self.out, campaign.CAMPAIGN)[0])

    def wait_for(self, condition, seconds=20):
        """Wait until ``condition()`` holds."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "waited in vain"
            time.sleep(0.01)

    def wait_for_done(self, count):
        """Wait until ``count`` runs are published."""
        runs = self.out / campaign.RUNS
        self.wait_for(lambda: runs.exists() and len(list(runs.iterdir())) >= count)

    def worker_pids(self):
        """The workers that hold a cell now."""
        watch = cells.Watch(self.out)
        watch.refresh()
        return [pid for run_id, (_, pid) in watch.holders.items() if cells.is_held(self.out, run_id)]

    def copy(self):
        """The same planned campaign in another folder."""
        other = Playground(self.root, self.contract, self.data)
        other.out = self.root / "results" / "copy"
        other.options = {**self.options, "out": str(other.out)}
        shutil.copytree(self.out, other.out)
        return other

    def forget(self):
        """Back to the plan, as if nothing had run."""
        for path in (self.out / campaign.RUNS).iterdir():
            shutil.rmtree(path)
        planned = (self.out / campaign.LEDGER).read_bytes().splitlines(keepends=True)[0]
        (self.out / campaign.LEDGER).write_bytes(planned)


def finish(driver, code=0):
    """Wait for the end of a driver; its standard error."""
    _, errors = driver.communicate(timeout=200)
    assert driver.returncode == code, errors
    return errors


def kill(process):
    """SIGKILL one process, nothing else."""
    process.send_signal(signal.SIGKILL)
    process.communicate()


def set_aside(playground):
    """What ``retry`` does before it runs."""
    document, _ = campaign.read(playground.out, campaign.CAMPAIGN)
    watch = cells.Watch(playground.out)
    watch.refresh()
    outcomes.set_aside(playground.out, outcomes.outcomes(playground.out, document, watch), watch)


def is_alive(pid):
    """Whether a process that is not a child of this one runs."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
