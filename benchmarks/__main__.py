"""python -m benchmarks [--device cuda] [--only NAME …]: measure and write benchmarks/RESULTS.md."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import analysis, engine, evaluation, nearest, sweep, timing, training
from vqkit.data import resolve

RESULTS = Path(__file__).parent / "RESULTS.md"
SECTIONS = ("training", "sweep", "engine", "nearest", "evaluation", "analysis")


def main():
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--root", type=Path, default=Path("data"), help="where datasets are prepared")
    chosen = parser.parse_args()
    data = resolve("patches", chosen.root).folder.resolve()
    cores = os.cpu_count() or 1
    threads = sorted({1, cores}) if chosen.device == "cpu" else [1]
    parts = [
        f"## {chosen.device}: {timing.machine(chosen.device)}",
        f"Measured {datetime.now(UTC):%Y-%m-%d} by `python -m benchmarks --device {chosen.device} "
        f"--repeats {chosen.repeats}`. Ratios are taken side by side, in turn, in one run: "
        "median (lower–upper quartile); above 1 vqkit is faster.",
    ]
    if "training" in chosen.only:
        rows = training.measure(data, chosen.device, threads, chosen.repeats)
        parts += ["### A training step", training.table(rows)]
    if "sweep" in chosen.only:
        rounds = max(1, chosen.repeats // 3)
        parts += ["### A sweep over epoch budgets", sweep.table(sweep.measure(data, chosen.device, rounds))]
    if "engine" in chosen.only:
        rounds = max(1, chosen.repeats // 3)
        parts += ["### The sweep engine", engine.slots_table(engine.measure_slots(data, chosen.device, rounds))]
        parts += [engine.large_table(engine.measure_large(data))]
    if "nearest" in chosen.only:
        parts += ["### Nearest-code search"]
        for count in threads:
            parts += [f"{count} thread{'s' * (count > 1)}, D = {nearest.D}:"]
            parts += [nearest.table(nearest.measure(chosen.device, count, chosen.repeats), chosen.device)]
    if "evaluation" in chosen.only:
        parts += ["### The evaluator", evaluation.table(evaluation.measure(data, chosen.repeats))]
    if "analysis" in chosen.only:
        parts += ["### The analysis", analysis.table(analysis.measure())]
    text = "\n\n".join(parts)
    print(text)
    if set(chosen.only) == set(SECTIONS):
        _write(chosen.device, text)


def _write(device, text):
    """Put the section of a device into RESULTS.md; that of the other stays."""
    head = "# Measured\n\nWritten by `make bench`."
    old = RESULTS.read_text().split("\n\n## ") if RESULTS.exists() else [head]
    kept = [f"## {part}".rstrip() for part in old[1:] if not part.startswith(f"{device}:")]
    RESULTS.write_text("\n\n".join([head, *sorted([*kept, text])]) + "\n")


if __name__ == "__main__":
    main()
