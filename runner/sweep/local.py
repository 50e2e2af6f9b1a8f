"""The local executor: worker processes on this machine, kept running until every cell has an outcome.

An executor has ``run(job, host, progress)``: it returns when no cell of ``job.folder`` is without an outcome, raises
``KeyboardInterrupt`` when it is asked to stop, and leaves the truth on disk. It never tells a worker which cell to
take, so any number of executors may work on one campaign, here or elsewhere. Its ``check(options)`` raises
``UsageError`` (E_EXECUTOR) where it can't start, before anything is written.
"""

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from runner.sweep import cells, standby
from runner.sweep.waiting import Waiting
from vqkit.errors import Incomplete

TICK_SECONDS = 0.25
GRACE_SECONDS = 5.0  # between asking a worker to end and killing it
STILLBORN = 3  # workers in a row that die before they take a cell


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to work on and how: ``run_ids`` of all planned cells, ``timeout_seconds`` for one cell, ``budget_seconds``
    of training allowed to one or None, ``options`` as the executor's file in configs/executor has them."""

    folder: Path
    run_ids: tuple
    data: Path
    device: str
    threads: int
    slots: int
    timeout_seconds: float
    budget_seconds: float | None = None
    options: dict = field(default_factory=dict)


def check(_options):
    """Nothing but this machine is needed."""


def run(job, host, progress, lock=None):
    """Train every cell of ``job.folder`` that has no outcome, in ``job.slots`` worker processes.

    Args:
        job: a ``Job``.
        host: a ``Host``; how workers start, how many devices there are.
        progress: ``progress.finished(run_id, event, detail)`` is called for every cell that the ledger reports sealed
            or failed, ``progress.show(folder, run_ids)`` with the cells at work a few times a second, and
            ``progress.notice(text)`` with what is waited for.
        lock: the name in claims/ under which this driver is known to be alive; its own unless said otherwise.

    Raises:
        Refused, Rejected: a worker found that the campaign can't go on here.
        Incomplete: E_WORKER, workers die before they take a cell.
        KeyboardInterrupt: after all workers have ended and their folders are gone.
    """
    with held(job.folder, lock or driver_lock()) as name, _Driver(job, host, progress, name) as driver:
        try:
            driver.work()
        finally:
            driver.stop()


def driver_lock():
    """A new name for the lock of a driver."""
    return f"{cells.DRIVER}{os.getpid()}-{secrets.token_hex(4)}"


@contextlib.contextmanager
def held(folder, lock):
    """Hold a lock of a name that is new, and remove it at the end, which says that nothing was left behind."""
    with cells.claim(folder, lock, wait=True):  # somebody may look at it just now
        try:
            yield lock
        finally:
            (folder / cells.CLAIMS / lock).unlink(missing_ok=True)


class _Slot:
    """One place for a worker: its process, what it does now, and since when."""

    def __init__(self, number):
        self.number, self.process, self.log = number, None, None
        self._begin()

    def _begin(self):
        self.buffer, self.run_id, self.since = b"", None, 0.0
        self.claimed, self.overdue = False, False

    def start(self, waiting, command, environment, log, **order):
        """Start a worker in a session of its own, so that signals of the terminal reach the driver alone; or take one
        that is ``waiting``."""
        self._begin()
        self.log = log
        with open(log, "ab") as stream:
            self.process = waiting or subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=environment,
                start_new_session=True,
            )
        standby.send(self.process, **order)

    def signal(self, number):
        """Signal the worker's whole group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)


class _Driver:
    """Starts workers, listens to them, replaces those that end, and records what they can't record themselves."""

    def __init__(self, job, host, progress, name):
        self.job, self.progress, self.name = job, progress, name
        self.open = cells.Open(job.folder, job.run_ids, progress)
        self.selector = selectors.DefaultSelector()
        self.host = host
        self.order = {"driver": name, "folder": str(job.folder), "data": str(job.data)}
        self.order |= {"budget_seconds": job.budget_seconds}
        self.devices = _devices(host) if job.device == "cuda" else None
        self.waiting = Waiting(job.folder, self.open.watch, progress.notice)
        self.slots, self.stillborn = [], 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.selector.close()

    def work(self):
        """Until no cell is left; workers that wait for more are ended then."""
        self.slots = [_Slot(number) for number in range(min(self.job.slots, len(self.open.left)))]
        for slot in self.slots:
            self._start(slot)
        self.host.dismiss()
        while self.open.left and any(slot.process for slot in self.slots):
            for key, _ in self.selector.select(TICK_SECONDS):
                self._listen(key.data)
            self._stop_overdue()
            self.open.watch.refresh()
            self._note_claims()
            at_work = [slot.run_id for slot in self.slots if slot.run_id]
            self.waiting.look(self.open.left, at_work)
            self.progress.show(self.job.folder, at_work)

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
        log = self.job.folder / cells.LOGS / f"{self.name}-{slot.number}.log"
        waiting = None if self.devices else self.host.take()
        slot.start(waiting, self.host.worker, environment, log, **self.order)
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
            self._begun(slot, event["run_id"])
        elif event["event"] == "sealed":
            slot.run_id = None
        elif event["event"] == "waiting":
            self.progress.notice(f"worker {slot.process.pid}: {event['text']}")
        elif event["event"] == "refused":
            raise standby.error_of(event)

    def _begun(self, slot, run_id):
        slot.run_id, slot.since, slot.claimed = run_id, time.monotonic(), True
        self.stillborn = 0

    def _note_claims(self):
        """A worker that has claimed a cell in the ledger but can't say so may be suspended in that very write: its time
        runs all the same."""
        claims = {pid: run_id for run_id, (name, pid) in self.open.watch.holders.items() if name == self.name}
        for slot in self.slots:
            if slot.process and not slot.run_id and slot.process.pid in claims:
                self._begun(slot, claims[slot.process.pid])

    def _stop_overdue(self):
        for slot in self.slots:
            if slot.process and slot.run_id and time.monotonic() - slot.since > self.job.timeout_seconds:
                slot.overdue = True
                slot.signal(signal.SIGKILL)

    def _ended(self, slot):
        """A worker is gone: record the cell that it leaves behind, and start another one if there is work left."""
        status, pid = slot.process.wait(), slot.process.pid
        if status == -signal.SIGTERM:
            time.sleep(TICK_SECONDS)  # where all was told to end, this driver hears of it now
        ended = ("crashed", _ending(status))
        slot.signal(signal.SIGKILL)  # whatever it started
        self._close(slot)
        watch = self.open.watch
        watch.refresh()
        for run_id in [run_id for run_id, holder in watch.holders.items() if holder == (self.name, pid)]:
            # no worker takes it before that, as this driver lives
            outcome, reason = ("timeout", f"more than {self.job.timeout_seconds:g} s") if slot.overdue else ended
            cells.settle(self.job.folder, watch, run_id, outcome, reason, log=slot.log)
        self.open.reconcile()
        if not slot.claimed:
            self.stillborn += 1
            if self.open.left and self.stillborn >= STILLBORN:
                found = f"{_ending(status)}: {cells.log_tail(slot.log) or 'nothing printed'}"
                raise Incomplete("E_WORKER", f"worker {slot.number}", "a worker that takes a cell", found)
        if self.open.left:
            self._start(slot)

    def _close(self, slot):
        with contextlib.suppress(KeyError):
            self.selector.unregister(slot.process.stdout)
        with contextlib.suppress(BrokenPipeError):
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
