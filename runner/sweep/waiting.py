"""A driver that waits says what for: cells that other processes hold, a ledger that somebody keeps locked.

It never takes them away: a lock that a living process holds is never broken, be the process suspended or not.
"""

import time

from runner.sweep import cells
from vqkit.formats import campaign, locks

PATIENCE_SECONDS = 5.0  # without any event; the time between two notices doubles
START_SECONDS = 60.0  # for workers to take cells that are free
SHOWN = 4


class Waiting:
    """Called at every tick of a driver; ``tell(text)`` is called when nothing has happened for long."""

    def __init__(self, folder, watch, tell, patience=PATIENCE_SECONDS):
        self.folder, self.watch, self.tell, self.first = folder, watch, tell, patience
        self._reset()

    def _reset(self):
        self.offset, self.since, self.patience = self.watch.offset, time.monotonic(), self.first

    def look(self, left, *, busy=False):
        """``left``: run ids without an outcome; ``busy``: cells of this driver are at work, under its own limits."""
        if busy or not left or self.watch.offset != self.offset:
            self._reset()
            return
        quiet = time.monotonic() - self.since
        if quiet < self.patience:
            return
        reasons = [*held_up(self.folder), *_held(self.folder, self.watch, sorted(left))]
        free = f"{len(left)} cells that nobody has taken yet"
        if reasons or quiet > START_SECONDS:
            self.patience *= 2
            self.tell(f"nothing new for {quiet:.0f} s; waiting for {'; '.join(reasons) or free}")


def held_up(folder):
    """What to say of a ledger whose lock a suspended process holds: everybody waits for that one."""
    pid = locks.holder(folder / campaign.LEDGER)
    if pid is not None and locks.is_stopped(pid):
        yield f"{campaign.LEDGER}, locked by {locks.described(pid)}"


def _held(folder, watch, left):
    """What to say of the cells that somebody holds, a few of them by name."""
    found = [text for text in (_said_of(folder, watch, run_id) for run_id in left) if text]
    yield from found[:SHOWN]
    if len(found) > SHOWN:
        yield f"{len(found) - SHOWN} more"


def _said_of(folder, watch, run_id):
    """Who has a cell; nothing for one that is free."""
    lock, pid = watch.holders.get(run_id, ("", None))
    if cells.is_held(folder, run_id):
        known = locks.holder(folder / cells.CLAIMS / run_id)
        who = locks.described(known) if known is not None or pid is None else f"process {pid} on another machine"
        at = cells.reports(folder, [run_id]).get(run_id)
        far = f", epoch {at['epoch']} of {at['epochs']}" if at else ""
        return f"{run_id}, held by {who}{f' of {lock}' if lock else ''}{far}"
    if lock and cells.is_held(folder, lock):
        keeper = locks.described(locks.holder(folder / cells.CLAIMS / lock))
        return f"{run_id}, whose worker (process {pid}) is gone, which {lock} has to record: {keeper}"
    return None
