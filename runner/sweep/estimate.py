"""What a campaign will cost: cells, epochs, images, time from a short probe, disk from the layouts."""

import math
import shutil
import tempfile
import time
from pathlib import Path

from vqkit.formats import run
from vqkit.formats.contract import Contract

_BYTES = {"uint8": 1, "uint16": 2, "uint32": 4, "float32": 4}
_FILE_OVERHEAD = 4096  # headers, plan, manifest: small against the arrays


def probe(terms, host, data):
    """Train the reference to its first mark behind 0; returns what ``timed`` does."""
    marks = sorted({0, min((mark for mark in terms.sweep.marks if mark), default=0)})
    artifact = terms.sweep.arms[0].checked.raw.decode()
    numbers = terms.sweep.seeds[0], marks, terms.device, terms.threads
    return host.probe(terms.contract.spec, artifact, terms.phase, *numbers, str(data))


def timed(execute, spec, artifact, phase, seed, marks, device, threads, data):
    """Train to the last mark in a temporary folder that is removed again. Arguments but the first are plain data.

    Returns:
        [seconds for one epoch, seconds for everything else in a run, None or why it did not complete].
    """
    contract, seconds = Contract(spec), []
    began, scratch = time.monotonic(), Path(tempfile.mkdtemp(prefix="vqkit-probe-"))
    try:
        terminal = execute(
            lambda event: seconds.append(contract.train_count / event["images_per_second"]),
            intervention=artifact.encode(),
            contract=contract,
            phase=phase,
            seed=seed,
            marks=tuple(marks),
            device=device,
            threads=threads,
            data=Path(data),
            out=scratch / "run",
            run_id=f"run-{0:016x}",
            salt=bytes(32),
            budget_seconds=None,
        )
    finally:
        shutil.rmtree(scratch)
    reason = None if terminal["state"] == "complete" else f"{terminal['state']}: {terminal['reason']}"
    return [min(seconds, default=0.0), max(0.0, time.monotonic() - began - sum(seconds)), reason]


def evidence_bytes(contract, marks):
    """The bytes of one run's evidence."""
    layouts = [layout(contract) for layout in (run.mark_layout, run.state_layout)]
    of_mark = sum(_BYTES[kind] * math.prod(shape) for layout in layouts for kind, shape in layout.values())
    steps = max(marks) * contract.steps_per_epoch * len(run.STEP_COLUMNS) * _BYTES["float32"]
    return of_mark * len(marks) + steps + _FILE_OVERHEAD * (2 * len(marks) + 5)


def estimate(terms, slots, seconds_per_epoch, overhead_seconds, reason):
    """The cost of a campaign as plain data; ``seconds`` is None, and ``reason`` says why, where the probe failed."""
    cell_count = len(terms.sweep.arms) * len(terms.sweep.seeds)
    epochs = max(terms.sweep.marks) * cell_count
    cell_seconds = max(terms.sweep.marks) * seconds_per_epoch + overhead_seconds
    return {
        "arms": len(terms.sweep.arms),
        "seeds": len(terms.sweep.seeds),
        "cells": cell_count,
        "epochs": epochs,
        "images": epochs * terms.contract.train_count,
        "seconds": round(math.ceil(cell_count / slots) * cell_seconds, 1) if reason is None else None,
        "reason": reason,
        "disk_bytes": cell_count * evidence_bytes(terms.contract, terms.sweep.marks),
    }
