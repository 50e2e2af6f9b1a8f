"""Cells on disk: who works on one, how it is published, what became of it.

    DIR/claims/RUN_ID      whoever holds its lock trains the cell, and writes into it how far it is. The kernel lets go
                           when a process dies
    DIR/claims/driver-…    the same for a driver, so that others can tell whether it lives
    DIR/claims/task-…      the same for the part of an executor that runs on another machine (``tasks``)
    DIR/work/RUN_ID.PID    the private folder in which a cell is trained
    DIR/runs/RUN_ID        the sealed run, put there by one rename
    DIR/logs/RUN_ID.log    what the cell printed
    DIR/attempts/RUN_ID.N  a run that ended badly, kept when it is tried again; its log and score beside it

A cell is *finished* when its run is published, or when the ledger says that it failed and nobody asked for a retry.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections import deque
from dataclasses import dataclass

from vqkit.errors import Refused, Rejected, VqkitError, raise_all
from vqkit.formats import campaign, canonical, files, run, schema

CLAIMS, WORK, LOGS = "claims", "work", "logs"
TAIL_LINES, TAIL_LENGTH = 20, 2000
DRIVER, TASK, OF = "driver-", "task-", "@"  # locks: driver-NAME, task-NAME, task-NAME@driver-NAME
LOST = "the task that ran it is gone: its node, its memory or its time (or locks don't work between nodes)"
REPORT_LENGTH = 120
RECENT = 100  # cells whose times say how long one takes


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell: one of ``campaign.OUTCOMES``, why, and the last lines of its log where it failed."""

    state: str
    reason: str | None = None
    log: str = ""


class Watch:
    """The ledger as it grows. ``refresh`` reads only what is new, so that a campaign costs one pass over it.

    ``failed``: run id → detail of its failure; ``recorded``: run id → outcome of each seal; ``holders``: run id →
    (lock of the driver or task, pid) of the worker that claimed it last, as long as nothing is recorded of how that
    ended; ``seconds`` that the last cells took; ``frozen`` whether scores were, whatever became of the file.
    ``listener`` is called with each new event.
    """

    def __init__(self, folder):
        self.path, self.offset = folder / campaign.LEDGER, 0
        self.failed, self.holders, self.recorded, self.seconds = {}, {}, {}, deque(maxlen=RECENT)
        self.frozen = False
        self.listener = None

    def refresh(self):
        """Take in new events. The chain is checked where the ledger is read in full, not here."""
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self.offset += whole
        for line in data[:whole].splitlines():
            event = json.loads(line)
            self._take(event["event"], event["run_id"], event["detail"])
            if self.listener:
                self.listener(event)

    def _take(self, name, run_id, detail):
        if name == "claimed":
            self.holders[run_id] = (detail["driver"], detail["pid"])
        elif name == "failed":
            self.failed[run_id] = detail
        elif name == "sealed":
            self.recorded[run_id] = detail["outcome"]
            self.seconds.extend([detail["seconds"]] if "seconds" in detail else [])
        elif name == "retried":
            self.failed.pop(run_id, None)
            self.recorded.pop(run_id, None)
        if name in ("failed", "sealed", "retried"):
            self.holders.pop(run_id, None)
        self.frozen = self.frozen or name == "frozen"


class Open:
    """The cells of a job that have no outcome yet: ``left``, a set of run ids, as the ledger tells of them.

    ``progress.finished(run_id, event, detail)`` is called for each cell that gets one, be it here or elsewhere;
    ``claims`` counts how often a worker took a cell.
    """

    def __init__(self, folder, run_ids, progress):
        self.folder, self.progress, self.claims = folder, progress, 0
        self.watch = Watch(folder)
        remove_work(folder)
        reconcile(folder, self.watch)
        self.left = set(run_ids) - self.watch.failed.keys()
        self.left -= {run_id for run_id in self.left if is_published(folder, run_id)}
        self.watch.listener = self._take_in

    def reconcile(self):
        """Look at what lies on disk, too, after a process has died."""
        reconcile(self.folder, self.watch)
        self.watch.refresh()
        self.left -= {run_id for run_id in self.left if is_published(self.folder, run_id)}

    def _take_in(self, event):
        if event["event"] in ("sealed", "failed"):
            self.left.discard(event["run_id"])
            self.progress.finished(event["run_id"], event["event"], event["detail"])
        self.claims += event["event"] == "claimed"


@contextlib.contextmanager
def claim(folder, name, *, wait=False):
    """Hold the lock of a cell or of a driver: yields True, or False when another process holds it."""
    handle = os.open(folder / CLAIMS / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(handle)


def is_held(folder, name):
    """Whether a living process holds the lock. Looks at locks that exist only; makes none."""
    try:
        handle = os.open(folder / CLAIMS / name, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def is_lost(folder, lock):
    """Whether a task ended without leaving word, so that the cell it was at is recorded as crashed, not redone.

    A task that ends by itself removes its lock. One that dies with its driver lost nothing: the sweep was stopped.
    """
    if not lock.startswith(TASK) or is_held(folder, lock) or not (folder / CLAIMS / lock).exists():
        return False
    _, of, driver = lock.partition(OF)
    return not of or is_held(folder, driver)


def report(folder, run_id, epoch, epochs, images_per_second):
    """Write into the lock of a cell, which the caller holds, how far it is."""
    text = json.dumps({"epoch": epoch, "epochs": epochs, "images_per_second": round(images_per_second, 1)})
    handle = os.open(folder / CLAIMS / run_id, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(handle, text.ljust(REPORT_LENGTH).encode(), 0)
    finally:
        os.close(handle)


def reports(folder, run_ids):
    """run id → {epoch, epochs, images_per_second} of each of these cells that has told."""
    found = {}
    for run_id in run_ids:
        with contextlib.suppress(FileNotFoundError, ValueError):
            told = json.loads((folder / CLAIMS / run_id).read_bytes())
            if isinstance(told, dict) and told.keys() == {"epoch", "epochs", "images_per_second"}:
                found[run_id] = told
    return found


def work_folder(folder, run_id):
    """Where this process trains a cell."""
    return folder / WORK / f"{run_id}.{os.getpid()}"


def is_published(folder, run_id):
    """Whether the cell's run directory is there."""
    return (folder / campaign.RUNS / run_id).exists()


def publish(folder, run_id, work):
    """Put a sealed run in its place, whole; False, and the run is gone, when one is there already."""
    try:
        os.rename(work, folder / campaign.RUNS / run_id)
    except OSError:
        if not is_published(folder, run_id):
            raise
        shutil.rmtree(work)
        return False
    files.sync_folder(folder / campaign.RUNS)
    return True


def remove_work(folder, run_ids=None):
    """Remove private folders that nobody works in: those of ``run_ids``, whose locks the caller holds, or all stale."""
    for path in sorted((folder / WORK).iterdir()):
        run_id = path.name.partition(".")[0]
        if not re.match(run.RUN_ID["pattern"], run_id):
            continue  # not a cell's: a file that a network file system keeps
        if run_ids is not None and run_id in run_ids:
            shutil.rmtree(path)
        elif run_ids is None:
            with claim(folder, run_id) as held:
                if held:
                    shutil.rmtree(path, ignore_errors=True)


def reconcile(folder, watch):
    """Record runs that were published by a process that died before it could write so into the ledger."""
    watch.refresh()
    for run_id in sorted(set(_published(folder)) - watch.recorded.keys()):
        with claim(folder, run_id) as held:
            watch.refresh()
            if held and run_id not in watch.recorded:
                record_sealed(folder, run_id, sealed_state(folder, run_id).state)


def record_sealed(folder, run_id, outcome, **detail):
    """Write into the ledger that a cell is published; the caller holds its lock."""
    campaign.append_event(folder, "sealed", run_id, {"outcome": outcome, **detail})


def record_failed(folder, run_id, outcome, reason):
    """Write into the ledger that a cell ended without a sealed run, with the last lines of its log."""
    detail = {"outcome": outcome, "reason": reason, "log": log_tail(log_path(folder, run_id))}
    campaign.append_event(folder, "failed", run_id, detail)


def settle(folder, watch, run_id, outcome, reason, *, wait=True):
    """Record how a cell ended whose worker is gone, unless its run is published or another process was faster."""
    holder = watch.holders.get(run_id)
    with claim(folder, run_id, wait=wait) as held:
        watch.refresh()
        if held and watch.holders.get(run_id) == holder and not is_published(folder, run_id):
            remove_work(folder, {run_id})
            record_failed(folder, run_id, outcome, reason)


def settle_lost(folder, watch):
    """Record the cells of tasks that are lost."""
    locks = {lock for lock, _ in watch.holders.values()}
    lost = {lock for lock in locks if is_lost(folder, lock)}
    for run_id, (lock, _) in list(watch.holders.items()):
        if lock in lost:
            settle(folder, watch, run_id, "crashed", LOST, wait=False)


def sealed_state(folder, run_id):
    """The outcome of a published cell, by its manifest's terminal statement; the rest is the evaluator's to check."""
    try:
        data = files.read_once(folder / campaign.RUNS / run_id / run.MANIFEST, max_bytes=canonical.MAX_BYTES)
        terminal = canonical.loads(data, where=run.MANIFEST)["predicate"]["terminal"]
        raise_all(Rejected, schema.problems(terminal, run.TERMINAL_SCHEMA, run.MANIFEST))
    except VqkitError as error:
        return Outcome(state="unverified", reason=str(error.problems[0]))
    except (KeyError, TypeError):
        return Outcome(state="unverified", reason=f"{run.MANIFEST} has no terminal statement")
    reason = None if terminal["state"] == "complete" else terminal["reason"]
    return Outcome(state=terminal["state"], reason=reason)


def outcomes(folder, plan, watch):
    """run id → Outcome for every cell of a campaign; ``watch`` must be fresh."""
    published, found = set(_published(folder)), {}
    for cell in plan["cells"]:
        run_id = cell["run_id"]
        if run_id in published:
            recorded = watch.recorded.get(run_id) == "complete"
            outcome = Outcome(state="complete") if recorded else sealed_state(folder, run_id)
            if outcome.state != "complete":
                outcome = Outcome(state=outcome.state, reason=outcome.reason, log=log_tail(log_path(folder, run_id)))
        elif run_id in watch.failed:
            detail = watch.failed[run_id]
            outcome = Outcome(state=detail["outcome"], reason=detail["reason"], log=detail["log"])
        else:
            outcome = Outcome(state="missing")
        found[run_id] = outcome
    return found


def count(found):
    """(complete, failed, missing) of ``outcomes``."""
    states = [outcome.state for outcome in found.values()]
    complete, missing = states.count("complete"), states.count("missing")
    return complete, len(states) - complete - missing, missing


def running(folder, watch):
    """The run ids on which a process works now; ``watch`` must be fresh."""
    return sorted(run_id for run_id in watch.holders if is_held(folder, run_id))


def require_open(folder):
    """Raise ``Refused`` (E_FROZEN) when scores were frozen, be the file there or not."""
    watch = Watch(folder)
    watch.refresh()
    if watch.frozen or (folder / campaign.FROZEN).exists():
        raise Refused("E_FROZEN", str(folder), "a campaign whose scores are not frozen", campaign.FROZEN)


def set_aside(folder, found):
    """Make failed cells missing again, each attempt kept as DIR/attempts/RUN_ID.N; returns their run ids.

    Raises:
        Refused: E_FROZEN when the scores are frozen: what they say about a failed cell stays so.
    """
    require_open(folder)
    failed = [run_id for run_id, outcome in found.items() if outcome.state not in ("complete", "missing")]
    (folder / campaign.ATTEMPTS).mkdir(exist_ok=True)
    taken = []
    for run_id in failed:
        with claim(folder, run_id) as held:
            if held:
                _set_aside(folder, run_id, found[run_id])
                taken.append(run_id)
    return taken


def _set_aside(folder, run_id, outcome):
    attempts = folder / campaign.ATTEMPTS
    number = 1
    while any((attempts / f"{run_id}.{number}{end}").exists() for end in ("", ".log", ".json")):
        number += 1
    kept = attempts / f"{run_id}.{number}"
    moves = (
        (folder / campaign.RUNS / run_id, kept),
        (log_path(folder, run_id), kept.with_name(f"{kept.name}.log")),
        (folder / campaign.SCORES / f"{run_id}.json", kept.with_name(f"{kept.name}.json")),
    )
    campaign.append_event(folder, "retried", run_id, {"attempt": number, "outcome": outcome.state})
    for old, new in moves:
        with contextlib.suppress(FileNotFoundError):
            os.rename(old, new)
    for place in {place.parent for move in moves for place in move if place.parent.exists()}:
        files.sync_folder(place)


def log_path(folder, run_id):
    """What a cell prints goes here."""
    return folder / LOGS / f"{run_id}.log"


def log_tail(path):
    """The last lines of a log, as text; empty where there is none."""
    try:
        with open(path, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_LENGTH))
            text = file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.replace("\0", "").strip().splitlines()[-TAIL_LINES:])


def _published(folder):
    return [name for name in os.listdir(folder / campaign.RUNS) if name.startswith("run-")]
