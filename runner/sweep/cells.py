"""Cells on disk: who works on one, how it is published, what became of it.

    DIR/claims/RUN_ID      whoever holds its lock trains the cell, and writes into it how far it is. The kernel lets go
                           when a process dies
    DIR/claims/driver-…    the same for a driver, so that others can tell whether it lives
    DIR/claims/task-…      the same for the part of an executor that runs on another machine (``tasks``)
    DIR/work/RUN_ID.PID    the private folder in which a cell is trained
    DIR/runs/RUN_ID        the sealed run, put there by one rename
    DIR/logs/RUN_ID.log    what the cell printed

A cell is *finished* when its run is published, or when the ledger says that it failed and nobody asked for a retry.
"""

import contextlib
import fcntl
import json
import os
import re
import shutil
import stat
from collections import deque
from dataclasses import dataclass

from vqkit.errors import Problem, Rejected, VqkitError, raise_all
from vqkit.formats import campaign, canonical, files, locks, run, schema

CLAIMS, WORK, LOGS = "claims", "work", "logs"
FOLDERS = (campaign.RUNS, CLAIMS, WORK, LOGS)
TAIL_LINES, TAIL_LENGTH = 20, 2000
DRIVER, TASK, OF = "driver-", "task-", "@"  # locks: driver-NAME, task-NAME, task-NAME@driver-NAME
LOST = "the task that ran it is gone: its node, its memory or its time (or locks don't work between nodes)"
REPORT_LENGTH = 120
_SAFELY = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # no link is followed, no pipe waited for
_OUTCOME = {"enum": list(campaign.OUTCOMES)}
_DETAILS = {  # of the events about one cell that are acted upon
    "claimed": schema.closed(driver={"type": "string", "pattern": "^[A-Za-z0-9_.@-]+$"}, pid=schema.COUNT),
    "failed": schema.closed(("reason", "log"), outcome=_OUTCOME, reason=schema.TEXT, log=schema.TEXT),
    "sealed": schema.closed(("seconds",), outcome=_OUTCOME, seconds={"type": "number", "minimum": 0}),
    "retried": {"type": "object"},
}
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
        """Take in new events. The chain is checked where the ledger is read in full, not here.

        Raises:
            Rejected: E_FILE_… where the ledger is gone, no file or shorter than it was, E_SCHEMA_VALUE for a line that
                is no event.
        """
        data = self._new_bytes()
        whole = data.rfind(b"\n") + 1
        for line in data[:whole].splitlines():
            event = _event(line)
            if event is None:
                raise Rejected("E_SCHEMA_VALUE", self.path.name, "events", repr(line[:100]))
            self._take(event["event"], event["run_id"], event["detail"])
            if self.listener:
                self.listener(event)
        self.offset += whole

    def _new_bytes(self):
        with open(files.open_regular(self.path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < self.offset:
                expected = f"{self.offset} bytes or more, as a ledger only grows"
                raise Rejected("E_FILE_SIZE", self.path.name, expected, f"{size} bytes")
            file.seek(self.offset)
            return file.read()

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


def _event(line):
    """The event that a line of the ledger holds, or None where it is none."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if schema.problems(event, campaign.EVENT_SCHEMA, campaign.LEDGER):
        return None
    detail = _DETAILS.get(event["event"])
    is_whole = detail is None or (event["run_id"] and not schema.problems(event["detail"], detail, campaign.LEDGER))
    return event if is_whole else None


class Open:
    """The cells of a job that have no outcome yet: ``left``, a set of run ids, as the ledger tells of them.

    ``progress.finished(run_id, event, detail)`` is called for each cell that gets one, be it here or elsewhere;
    ``claims`` counts how often a worker took a cell.
    """

    def __init__(self, folder, run_ids, progress):
        self.folder, self.progress, self.claims = folder, progress, 0
        self.run_ids, self.watch = frozenset(run_ids), Watch(folder)
        remove_work(folder)
        reconcile(folder, self.watch, self.run_ids)
        self.left = set(run_ids) - self.watch.failed.keys()
        self.left -= {run_id for run_id in self.left if is_published(folder, run_id)}
        self.watch.listener = self._take_in

    def reconcile(self):
        """Look at what lies on disk, too, after a process has died."""
        reconcile(self.folder, self.watch, self.run_ids)
        self.watch.refresh()
        self.left -= {run_id for run_id in self.left if is_published(self.folder, run_id)}

    def _take_in(self, event):
        if event["event"] in ("sealed", "failed"):
            self.left.discard(event["run_id"])
            self.progress.finished(event["run_id"], event["event"], event["detail"])
        self.claims += event["event"] == "claimed"


@contextlib.contextmanager
def claim(folder, name, *, wait=False):
    """Hold the lock of a cell or of a driver: yields True, or False when another process holds it.

    With ``wait`` it is waited for, with a notice where that takes long (``locks``).
    """
    path = folder / CLAIMS / name
    handle = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY, 0o644)
    try:
        yield locks.take(handle, path, wait=wait)
    finally:
        os.close(handle)


def is_held(folder, name):
    """Whether a living process holds the lock. Looks at locks that exist only; makes none."""
    try:
        handle = os.open(folder / CLAIMS / name, os.O_RDONLY | _SAFELY)
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
    """Write into the lock of a cell, which the caller holds, how far it is; no run fails because that can't be told."""
    text = json.dumps({"epoch": epoch, "epochs": epochs, "images_per_second": round(images_per_second, 1)})
    with contextlib.suppress(OSError):
        handle = os.open(folder / CLAIMS / run_id, os.O_WRONLY | _SAFELY)
        try:
            os.pwrite(handle, text.ljust(REPORT_LENGTH).encode(), 0)
        finally:
            os.close(handle)


def reports(folder, run_ids):
    """run id → {epoch, epochs, images_per_second} of each of these cells that has told."""
    found = {}
    for run_id in run_ids:
        with contextlib.suppress(VqkitError, ValueError):
            told = json.loads(files.read_once(folder / CLAIMS / run_id, max_bytes=1 << 12))
            if isinstance(told, dict) and told.keys() == {"epoch", "epochs", "images_per_second"}:
                found[run_id] = told
    return found


def work_folder(folder, run_id):
    """Where this process trains a cell."""
    return folder / WORK / f"{run_id}.{os.getpid()}"


def is_published(folder, run_id):
    """Whether the cell's run directory is there, or anything else under its name."""
    return os.path.lexists(folder / campaign.RUNS / run_id)


def publish(folder, run_id, work):
    """Put a sealed run in its place, whole; False, and the run is gone, when one is there already.

    Raises:
        Rejected: E_FILE_ACCESS where the file system does not let it: that would befall every cell.
    """
    try:
        os.rename(work, folder / campaign.RUNS / run_id)
    except OSError as error:
        if not is_published(folder, run_id):
            where = f"{campaign.RUNS}/{run_id}"
            raise Rejected("E_FILE_ACCESS", where, "a run that can be moved there", error.strerror) from None
        shutil.rmtree(work)
        return False
    files.sync_folder(folder / campaign.RUNS)
    return True


def remove_work(folder, run_ids=None):
    """Remove private folders that nobody works in: those of ``run_ids``, whose locks the caller holds, or all stale."""
    for name in sorted(_names(folder / WORK)):
        path = folder / WORK / name
        run_id = path.name.partition(".")[0]
        if not re.match(run.RUN_ID["pattern"], run_id):
            continue  # not a cell's: a file that a network file system keeps
        if run_ids is not None and run_id in run_ids:
            _remove(path)
        elif run_ids is None:
            with claim(folder, run_id) as held:
                if held:
                    _remove(path, ignore_errors=True)


def _names(folder):
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _remove(path, *, ignore_errors=False):
    """Remove a folder with what it holds, or whatever else lies there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=ignore_errors)
    else:
        path.unlink(missing_ok=True)


def make_folders(folder):
    """Make the folders that a copy of a campaign may lack, because they were empty.

    Raises:
        Rejected: E_FILE_KIND for everything that is there and is no folder.
    """
    problems = []
    for name in FOLDERS:
        with contextlib.suppress(FileExistsError):
            (folder / name).mkdir()
        mode = os.lstat(folder / name).st_mode
        if not stat.S_ISDIR(mode):
            found = stat.filemode(mode)
            problems.append(Problem(code="E_FILE_KIND", where=str(folder / name), expected="a folder", found=found))
    raise_all(Rejected, problems)


def reconcile(folder, watch, run_ids):
    """Record runs of these cells that were published by a process that died before it could write so into the ledger.

    A run of a cell that is recorded as failed is none of them: it was put there by hand.
    """
    watch.refresh()
    for run_id in sorted(run_ids & published(folder).keys() - watch.recorded.keys() - watch.failed.keys()):
        with claim(folder, run_id) as held:
            watch.refresh()
            if held and run_id not in watch.recorded and run_id not in watch.failed:
                record_sealed(folder, run_id, sealed_state(folder, run_id).state)


def record_sealed(folder, run_id, outcome, **detail):
    """Write into the ledger that a cell is published; the caller holds its lock."""
    campaign.append_event(folder, "sealed", run_id, {"outcome": outcome, **detail})


def record_failed(folder, run_id, outcome, reason, log=None):
    """Write into the ledger that a cell ended without a sealed run, with the last lines of its log, or of ``log``, that
    of its worker, where it has none."""
    tail = log_tail(log_path(folder, run_id)) or (log_tail(log) if log else "")
    detail = {"outcome": outcome, "reason": reason, "log": tail}
    campaign.append_event(folder, "failed", run_id, detail)


def settle(folder, watch, run_id, outcome, reason, *, log=None, wait=True):
    """Record how a cell ended whose worker is gone, unless its run is published or another process was faster."""
    holder = watch.holders.get(run_id)
    with claim(folder, run_id, wait=wait) as held:
        watch.refresh()
        if held and watch.holders.get(run_id) == holder and not is_published(folder, run_id):
            remove_work(folder, {run_id})
            record_failed(folder, run_id, outcome, reason, log)


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


def log_path(folder, run_id):
    """What a cell prints goes here."""
    return folder / LOGS / f"{run_id}.log"


def log_tail(path):
    """The last lines of a log, as text; empty where there is none, or something else."""
    try:
        with open(files.open_regular(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_LENGTH))
            text = file.read(TAIL_LENGTH).decode("utf-8", errors="replace")
    except VqkitError:
        return ""
    return "\n".join(text.replace("\0", "").strip().splitlines()[-TAIL_LINES:])


def published(folder, run_ids=None):
    """run id → whether it is a folder, of what lies in runs/ under a cell's name; of ``run_ids`` alone where given."""
    if run_ids is None:
        return {name: real for name, real in entries(folder).items() if name.startswith("run-")}
    paths = {run_id: folder / campaign.RUNS / run_id for run_id in run_ids}
    there = {run_id: path for run_id, path in paths.items() if os.path.lexists(path)}
    return {run_id: path.is_dir() and not path.is_symlink() for run_id, path in there.items()}


def entries(folder):
    """name → whether it is a folder, of all that lies in runs/; nothing where that is missing."""
    try:
        with os.scandir(folder / campaign.RUNS) as found:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in found}
    except FileNotFoundError:
        return {}
