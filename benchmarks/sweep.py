"""A sweep over epoch budgets: one trajectory for all marks, against one training for each budget (Hydra's multirun)."""

import tempfile
import time
from pathlib import Path

from benchmarks import engine, timing

MULTIRUN = ("epochs=2,5,10", "seed=101,102", "multiplier=1.0,10.0")


def measure(data, device, repeats):
    """Seconds of both, start-up included, 2 arms × 2 seeds × budgets 2, 5, 10; and where the time of a cell goes."""
    with tempfile.TemporaryDirectory() as name:
        folder, number = Path(name), iter(range(1000))

        def ours():
            ours.last = folder / f"campaign{next(number)}"
            engine.sweep(folder, ours.last, data, device, "marks=[2,5,10]")

        def multirun():
            options = [f"data={data}", f"device={device}", *MULTIRUN, f"hydra.sweep.dir={folder / 'multirun'}"]
            engine.module(folder, "benchmarks.baseline", "--multirun", *options)

        seconds = {"vqkit": [], "multirun": []}
        for _ in range(repeats):
            for label, way in (("vqkit", ours), ("multirun", multirun)):
                started = time.perf_counter()
                way()
                seconds[label].append(time.perf_counter() - started)
        return {
            "vqkit_seconds": timing.quartiles(seconds["vqkit"])[1],
            "multirun_seconds": timing.quartiles(seconds["multirun"])[1],
            "multirun_over_vqkit": timing.ratios(seconds, "multirun", "vqkit"),
            "outside_training": _outside_training(ours.last),
        }


def _outside_training(folder):
    """Quartiles over cells: the share of a cell's wall time that is not training steps."""
    resources = [predicate["resources"] for predicate in engine.predicates(folder)]
    shares = [1 - of["training_seconds"] / of["wall_seconds"] for of in resources]
    return timing.quartiles(shares)


def table(row):
    """The measurement as Markdown."""
    return "\n".join(
        [
            "| sweep | seconds |",
            "|---|---:|",
            f"| vqkit: 4 cells to mark 10, measured at 2, 5, 10 | {row['vqkit_seconds']:.1f} |",
            f"| Hydra multirun: 12 jobs to 2, 5 or 10 epochs | {row['multirun_seconds']:.1f} |",
            "",
            f"Multirun's time over vqkit's: {timing.spread(row['multirun_over_vqkit'])}. Share of a cell that is not "
            f"training steps (evaluation, evidence, hashing, start-up): {timing.spread(row['outside_training'])}.",
        ]
    )
