"""A driver that waits says what for: cells that other processes hold, a ledger that somebody keeps locked.

It never takes them away: a lock that a living process holds is never broken, be the process suspended or not.
"""

import time

from runner.sweep import cells
from vqkit.formats import campaign, locks

PATIENCE_SECONDS = 5.0  # without any event; the time between two notices doubles
START_SECONDS = 60.0  # for cells that are free to be taken
SHOWN = 4


class Waiting:
    """Called at every tick of a driver; ``tell(text)`` is called when nothing has happened for long."""

    def __init__(self, folder, watch, tell, patience=PATIENCE_SECONDS):
        self.folder, self.watch, self.tell, self.first = folder, watch, tell, patience
        self._reset()

    def _reset(self):
        self.offset, self.since, self.patience = self.watch.offset, time.monotonic(), self.first

    def look(self, left, at_work=()):
        """``left``: run ids without an outcome; ``at_work``: those of them that this driver's own workers train, under
        its limit of time, so that there is nothing to say unless one of these is suspended."""
        if not left or self.watch.offset != self.offset:
            self._reset()
            return
        quiet = time.monotonic() - self.since
        if quiet < self.patience:
            return
        reasons = list(held_up(self.folder, at_work))
        if not at_work:
            reasons += _held(self.folder, self.watch, sorted(left))
            if not reasons and quiet > START_SECONDS:
                reasons = [f"{len(left)} cells that nobody has taken yet"]
        if reasons:
            self.tell(f"nothing new for {quiet:.0f} s; waiting for {'; '.join(reasons)}")
        self.patience = 2 * self.patience if reasons else quiet + self.first


def held_up(folder, run_ids=()):
    """What to say of a ledger, for which everybody waits, or a cell whose lock a suspended process holds."""
    places = {campaign.LEDGER: folder / campaign.LEDGER}
    for name, path in (places | {run_id: folder / cells.CLAIMS / run_id for run_id in run_ids}).items():
        pid = locks.holder(path)
        if pid is not None and locks.is_stopped(pid):
            yield f"{name}, locked by {locks.described(pid)}"


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
