"""The local executor: worker processes on this machine, kept running until every cell has an outcome.

An executor is ``run(job, host, progress)``: it returns when no cell of ``job.folder`` is without an outcome, raises
``KeyboardInterrupt`` when it is asked to stop, and leaves the truth on disk. It never tells a worker which cell to
take, so any number of executors may work on one campaign, here or elsewhere.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from runner.sweep import cells
from vqkit.errors import Incomplete, Problem, Refused, Rejected

TICK_SECONDS = 0.25
GRACE_SECONDS = 5.0  # between asking a worker to end and killing it
STILLBORN = 3  # workers in a row that die before they take a cell


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to work on and how: ``run_ids`` of all planned cells, ``timeout_seconds`` for one cell, ``budget_seconds``
    of training allowed to one or None."""

    folder: Path
    run_ids: tuple
    data: Path
    device: str
    slots: int
    timeout_seconds: float
    budget_seconds: float | None = None


def run(job, host, progress):
    """Train every cell of ``job.folder`` that has no outcome, in ``job.slots`` worker processes.

    Args:
        job: a ``Job``.
        host: a ``Host``; how workers start, how many devices there are.
        progress: ``progress.finished(run_id, event, detail)`` is called for every cell that the ledger reports sealed
            or failed, ``progress.show(running, images_per_second)`` a few times a second.

    Raises:
        Refused, Rejected: a worker found that the campaign can't go on here.
        Incomplete: E_WORKER, workers die before they take a cell.
        KeyboardInterrupt: after all workers have ended and their folders are gone.
    """
    name = f"{os.getpid()}-{secrets.token_hex(4)}"
    with cells.claim(job.folder, f"driver-{name}"), _Driver(job, host, progress, name) as driver:
        try:
            driver.work()
        finally:
            driver.stop()
            (job.folder / cells.CLAIMS / f"driver-{name}").unlink(missing_ok=True)


class _Slot:
    """One place for a worker: its process, what it does now, and since when."""

    def __init__(self, number):
        self.number, self.process, self.log = number, None, None
        self._begin()

    def _begin(self):
        self.buffer, self.run_id, self.since, self.speed = b"", None, 0.0, 0.0
        self.claimed, self.overdue = False, False

    def start(self, command, environment, log):
        """Start a worker in a session of its own, so that signals of the terminal reach the driver alone."""
        self._begin()
        self.log = log
        with open(log, "ab") as stream:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )

    def signal(self, number):
        """Signal the worker's whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class _Driver:
    """Starts workers, listens to them, replaces those that end, and records what they can't record themselves."""

    def __init__(self, job, host, progress, name):
        self.job, self.progress, self.name = job, progress, name
        self.watch = cells.Watch(job.folder)
        self.selector, self.left = selectors.DefaultSelector(), set()
        self.command = [*host.worker, str(job.folder), "--data", str(job.data), "--driver", name]
        if job.budget_seconds is not None:
            self.command += ["--budget-seconds", str(job.budget_seconds)]
        self.devices = _devices(host) if job.device == "cuda" else None
        self.slots, self.stillborn = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.selector.close()

    def work(self):
        """Until no worker runs and none is needed."""
        cells.remove_work(self.job.folder)
        cells.reconcile(self.job.folder, self.watch)
        self.left = set(self.job.run_ids) - self.watch.failed.keys()
        self.left -= {run_id for run_id in self.left if cells.is_published(self.job.folder, run_id)}
        self.watch.listener = self._take_in
        self.slots = [_Slot(number) for number in range(min(self.job.slots, len(self.left)))]
        for slot in self.slots:
            self._start(slot)
        while any(slot.process for slot in self.slots):
            for key, _ in self.selector.select(TICK_SECONDS):
                self._listen(key.data)
            self._stop_overdue()
            self.watch.refresh()
            running = [slot for slot in self.slots if slot.run_id]
            self.progress.show(len(running), sum(slot.speed for slot in running))

    def stop(self):
        """End all workers, kill those that don't, and remove what they were working on."""
        running = [slot for slot in self.slots if slot.process]
        for slot in running:
            slot.signal(signal.SIGTERM)
        deadline = time.monotonic() + GRACE_SECONDS
        for slot in running:
            try:
                slot.process.wait(max(0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                slot.signal(signal.SIGKILL)
                slot.process.wait()
            self._close(slot)
        cells.remove_work(self.job.folder)

    def _start(self, slot):
        environment = dict(os.environ)
        if self.devices:
            environment["CUDA_VISIBLE_DEVICES"] = self.devices[slot.number % len(self.devices)]
        log = self.job.folder / cells.LOGS / f"worker-{self.name}-{slot.number}.log"
        slot.start(self.command, environment, log)
        self.selector.register(slot.process.stdout, selectors.EVENT_READ, slot)

    def _listen(self, slot):
        """Take in what a worker says; the end of its output is its end."""
        data = os.read(slot.process.stdout.fileno(), 1 << 16)
        if not data:
            self._ended(slot)
            return
        *lines, slot.buffer = (slot.buffer + data).split(b"\n")
        for line in lines:
            self._heard(slot, json.loads(line))

    def _heard(self, slot, event):
        if event["event"] == "claimed":
            slot.run_id, slot.since, slot.claimed, slot.speed = event["run_id"], time.monotonic(), True, 0.0
            self.stillborn = 0
        elif event["event"] == "epoch":
            slot.speed = event["images_per_second"]
        elif event["event"] == "sealed":
            slot.run_id = None
        elif event["event"] == "refused":
            kind = Refused if event["exit"] == Refused.exit_code else Rejected
            raise kind([Problem(**problem) for problem in event["errors"]])

    def _stop_overdue(self):
        for slot in self.slots:
            if slot.process and slot.run_id and time.monotonic() - slot.since > self.job.timeout_seconds:
                slot.overdue = True
                slot.signal(signal.SIGKILL)

    def _ended(self, slot):
        """A worker is gone: record the cell that it leaves behind, and start another one if there is work left."""
        status, pid = slot.process.wait(), slot.process.pid
        slot.signal(signal.SIGKILL)  # whatever it started
        self._close(slot)
        self.watch.refresh()
        for run_id in [run_id for run_id, holder in self.watch.holders.items() if holder == (self.name, pid)]:
            self._record(slot, run_id, status)
        cells.reconcile(self.job.folder, self.watch)
        self.watch.refresh()
        self.left -= {run_id for run_id in self.left if cells.is_published(self.job.folder, run_id)}
        if not slot.claimed:
            self.stillborn += 1
            if self.left and self.stillborn >= STILLBORN:
                found = f"{_ending(status)}: {cells.log_tail(slot.log) or 'nothing printed'}"
                raise Incomplete("E_WORKER", f"worker {slot.number}", "a worker that takes a cell", found)
        if self.left:
            self._start(slot)

    def _record(self, slot, run_id, status):
        """Record how a cell ended whose worker is gone. No worker takes it before that, as this driver lives."""
        with cells.claim(self.job.folder, run_id, wait=True):
            if cells.is_published(self.job.folder, run_id):
                return
            cells.remove_work(self.job.folder, {run_id})
            if slot.overdue:
                cells.record_failed(self.job.folder, run_id, "timeout", f"more than {self.job.timeout_seconds:g} s")
            else:
                cells.record_failed(self.job.folder, run_id, "crashed", _ending(status))

    def _take_in(self, event):
        """Something new in the ledger, be it from a worker here or from another driver's."""
        if event["event"] in ("sealed", "failed"):
            self.left.discard(event["run_id"])
            self.progress.finished(event["run_id"], event["event"], event["detail"])

    def _close(self, slot):
        with contextlib.suppress(KeyError):
            self.selector.unregister(slot.process.stdout)
        slot.process.stdin.close()
        slot.process.stdout.close()
        slot.process, slot.run_id = None, None
        if slot.log.exists() and slot.log.stat().st_size == 0:
            slot.log.unlink()


def _devices(host):
    """The names of the CUDA devices that slots take in turn."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return named.split(",") if named else [str(number) for number in range(host.cuda_devices())]


def _ending(status):
    """The exit status of a process in words."""
    return f"signal {signal.Signals(-status).name}" if status < 0 else f"exit {status}"
