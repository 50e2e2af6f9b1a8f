"""What became of each cell, as ledger and folder tell; and cells that are tried again.

    DIR/attempts/RUN_ID.N  a run that ended badly, kept when it is tried again; its log and score beside it

A run whose cell is recorded as failed was put there by somebody, not by a worker: it is ``unverified``, and named as a
conflict. Scoring verifies whatever lies in runs/; ``retry`` sets it aside and trains the cell.
"""

import contextlib
import os

from runner.sweep import cells
from vqkit.errors import Refused
from vqkit.formats import campaign, files
from vqkit.formats.run import MANIFEST


def outcomes(folder, plan, watch):
    """run id → Outcome for every cell of a campaign; ``watch`` must be fresh."""
    published = cells.published(folder)
    return {cell["run_id"]: _outcome(folder, cell["run_id"], watch, published) for cell in plan["cells"]}


def _outcome(folder, run_id, watch, published):
    """The outcome of one cell, as ledger and folder tell of it; where they contradict each other, it is unverified."""
    recorded = watch.failed.get(run_id)
    if run_id not in published and recorded is None:
        return cells.Outcome(state="missing")
    if run_id not in published:
        return cells.Outcome(state=recorded["outcome"], reason=recorded.get("reason"), log=recorded.get("log", ""))
    if not published[run_id]:
        outcome = cells.Outcome(state="unverified", reason=f"{campaign.RUNS}/{run_id} is no folder")
    elif recorded is not None:
        says = f"{campaign.LEDGER} records {recorded['outcome']} ({recorded.get('reason')})"
        reason = f"{says}, yet a run lies in {campaign.RUNS}/; retry sets it aside"
        outcome = cells.Outcome(state="unverified", reason=reason)
    elif watch.recorded.get(run_id) == "complete" and os.path.lexists(folder / campaign.RUNS / run_id / MANIFEST):
        return cells.Outcome(state="complete")
    else:
        outcome = cells.sealed_state(folder, run_id)
    if outcome.state == "complete":
        return outcome
    return cells.Outcome(state=outcome.state, reason=outcome.reason, log=cells.log_tail(cells.log_path(folder, run_id)))


def foreign(folder, plan):
    """Names in runs/ that are none of the campaign's cells; nobody looks at what they hold."""
    known = {cell["run_id"] for cell in plan["cells"]}
    return sorted(name for name in cells.entries(folder) if name not in known)


def count(found):
    """(complete, failed, missing) of ``outcomes``."""
    states = [outcome.state for outcome in found.values()]
    complete, missing = states.count("complete"), states.count("missing")
    return complete, len(states) - complete - missing, missing


def running(folder, watch):
    """The run ids on which a process works now; ``watch`` must be fresh."""
    return sorted(run_id for run_id in watch.holders if cells.is_held(folder, run_id))


def require_open(folder):
    """Raise ``Refused`` (E_FROZEN) when scores were frozen, be the file there or not."""
    watch = cells.Watch(folder)
    watch.refresh()
    if watch.frozen or (folder / campaign.FROZEN).exists():
        raise Refused("E_FROZEN", str(folder), "a campaign whose scores are not frozen", campaign.FROZEN)


def set_aside(folder, run_ids, watch):
    """Make those of ``run_ids`` that failed missing again, each attempt kept as DIR/attempts/RUN_ID.N; their run ids.

    What became of a cell is looked up while its lock is held, so that of two who retry at once one does.

    Raises:
        Refused: E_FROZEN when the scores are frozen: what they say about a failed cell stays so.
    """
    require_open(folder)
    (folder / campaign.ATTEMPTS).mkdir(exist_ok=True)
    taken = []
    for run_id in run_ids:
        if _failure(folder, run_id, watch):  # else somebody else retried it, and may be training it now
            with cells.claim(folder, run_id, wait=True):
                outcome = _failure(folder, run_id, watch)
                if outcome:
                    _set_aside(folder, run_id, outcome)
                    taken.append(run_id)
    return taken


def _failure(folder, run_id, watch):
    """The outcome of a cell as it is now, if it failed; else None."""
    watch.refresh()
    outcome = _outcome(folder, run_id, watch, cells.published(folder, [run_id]))
    return outcome if outcome.state not in ("complete", "missing") else None


def _set_aside(folder, run_id, outcome):
    attempts = folder / campaign.ATTEMPTS
    number = 1
    while any((attempts / f"{run_id}.{number}{end}").exists() for end in ("", ".log", ".json")):
        number += 1
    kept = attempts / f"{run_id}.{number}"
    moves = (
        (folder / campaign.RUNS / run_id, kept),
        (cells.log_path(folder, run_id), kept.with_name(f"{kept.name}.log")),
        (folder / campaign.SCORES / f"{run_id}.json", kept.with_name(f"{kept.name}.json")),
    )
    campaign.append_event(folder, "retried", run_id, {"attempt": number, "outcome": outcome.state})
    for old, new in moves:
        with contextlib.suppress(FileNotFoundError):
            os.rename(old, new)
    for place in {place.parent for move in moves for place in move if place.parent.exists()}:
        files.sync_folder(place)
