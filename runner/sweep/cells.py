"""Cells on disk: who works on one, how it is published, what became of it.

    DIR/claims/RUN_ID      an empty file; whoever holds its lock trains the cell. The kernel lets go when a process dies
    DIR/claims/driver-…    the same for a driver, so that others can tell whether it lives
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
import shutil
from dataclasses import dataclass

from vqkit.errors import Refused, Rejected, VqkitError, raise_all
from vqkit.formats import campaign, canonical, files, run, schema

CLAIMS, WORK, LOGS = "claims", "work", "logs"
TAIL_LINES, TAIL_LENGTH = 20, 2000


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a cell: one of ``campaign.OUTCOMES``, why, and the last lines of its log where it failed."""

    state: str
    reason: str | None = None
    log: str = ""


class Watch:
    """The ledger as it grows. ``refresh`` reads only what is new, so that a campaign costs one pass over it.

    ``failed``: run id → detail of its failure; ``recorded``: run ids whose seal is recorded; ``holders``: run id →
    (driver, pid) of the worker that claimed it last, as long as nothing is recorded of how that ended. ``listener`` is
    called with each new event.
    """

    def __init__(self, folder):
        self.path, self.offset = folder / campaign.LEDGER, 0
        self.failed, self.holders, self.recorded = {}, {}, set()
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
            self.recorded.add(run_id)
        elif name == "retried":
            self.failed.pop(run_id, None)
            self.recorded.discard(run_id)
        if name in ("failed", "sealed", "retried"):
            self.holders.pop(run_id, None)


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
        if run_ids is not None and run_id in run_ids:
            shutil.rmtree(path)
        elif run_ids is None:
            with claim(folder, run_id) as held:
                if held:
                    shutil.rmtree(path, ignore_errors=True)


def reconcile(folder, watch):
    """Record runs that were published by a process that died before it could write so into the ledger."""
    watch.refresh()
    for run_id in sorted(set(_published(folder)) - watch.recorded):
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
            outcome = sealed_state(folder, run_id)
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


def running(folder, found):
    """The run ids without an outcome on which a process works now."""
    return [run_id for run_id, outcome in found.items() if outcome.state == "missing" and is_held(folder, run_id)]


def set_aside(folder, found):
    """Make failed cells missing again, each attempt kept as DIR/attempts/RUN_ID.N; returns their run ids.

    Raises:
        Refused: E_FROZEN when the scores are frozen: what they say about a failed cell stays so.
    """
    if (folder / campaign.FROZEN).exists():
        raise Refused("E_FROZEN", str(folder), "a campaign whose scores are not frozen", campaign.FROZEN)
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
