"""What a campaign will cost: cells, epochs, images, time from a short probe, disk from the layouts."""

import math
import shutil
import tempfile
import time
from pathlib import Path

from vqkit.formats import run

_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4, "float32": 4}
_FILE_OVERHEAD = 4096  # headers, plan, manifest: small against the arrays


def probe(terms, host, data):
    """Train the reference to its first mark behind 0, in a temporary folder that is removed again.

    Returns:
        (seconds for one epoch, seconds for everything else in a run).
    """
    marks, seconds = tuple(sorted({0, min((mark for mark in terms.sweep.marks if mark), default=0)})), []
    began, scratch = time.monotonic(), Path(tempfile.mkdtemp(prefix="vqkit-probe-"))
    try:
        host.execute(
            lambda event: seconds.append(terms.contract.train_count / event["images_per_second"]),
            intervention=terms.sweep.arms[0].checked.raw,
            contract=terms.contract,
            phase=terms.phase,
            seed=terms.sweep.seeds[0],
            marks=marks,
            device=terms.device,
            threads=terms.threads,
            data=data,
            out=scratch / "run",
            run_id=f"run-{0:016x}",
            salt=bytes(32),
            budget_seconds=None,
        )
    finally:
        shutil.rmtree(scratch)
    fastest = min(seconds, default=0.0)
    return fastest, max(0.0, time.monotonic() - began - sum(seconds))


def evidence_bytes(contract, marks):
    """The bytes of one run's evidence."""
    layouts = [layout(contract) for layout in (run.mark_layout, run.state_layout)]
    of_mark = sum(_BYTES[kind] * math.prod(shape) for layout in layouts for kind, shape in layout.values())
    steps = max(marks) * contract.steps_per_epoch * len(run.STEP_COLUMNS) * _BYTES["float32"]
    return of_mark * len(marks) + steps + _FILE_OVERHEAD * (2 * len(marks) + 5)


def estimate(terms, slots, seconds_per_epoch, overhead_seconds):
    """The cost of a campaign as plain data."""
    cell_count = len(terms.sweep.arms) * len(terms.sweep.seeds)
    epochs = max(terms.sweep.marks) * cell_count
    cell_seconds = max(terms.sweep.marks) * seconds_per_epoch + overhead_seconds
    return {
        "arms": len(terms.sweep.arms),
        "seeds": len(terms.sweep.seeds),
        "cells": cell_count,
        "epochs": epochs,
        "images": epochs * terms.contract.train_count,
        "seconds": round(math.ceil(cell_count / slots) * cell_seconds, 1),
        "disk_bytes": cell_count * evidence_bytes(terms.contract, terms.sweep.marks),
    }
