"""python -m benchmarks [--device cuda] [--only NAME …]: measure, and write it to benchmarks/RESULTS.md."""

import argparse
import os
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import analysis, engine, evaluation, nearest, sweep, timing, training
from vqkit.data import resolve

RESULTS = Path(__file__).parent / "RESULTS.md"
HEAD = """\
# Measured

Written by `make bench`. Ratios are taken side by side, in turn, in one run: median (lower–upper quartile); above 1
vqkit is faster."""


def main():
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", nargs="+", choices=tuple(SECTIONS), default=tuple(SECTIONS))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--root", type=Path, default=Path("data"), help="where datasets are prepared")
    chosen = parser.parse_args()
    data = resolve("patches", chosen.root).folder.resolve()
    cores = os.cpu_count() or 1
    threads = sorted({1, cores}) if chosen.device == "cpu" else [1]
    written = {}
    for name in chosen.only:
        title, measure = SECTIONS[name]
        how = f"`python -m benchmarks --device {chosen.device} --only {name} --repeats {chosen.repeats}`"
        written[title] = f"Measured {datetime.now(UTC):%Y-%m-%d} by {how}.\n\n{measure(chosen, data, threads)}"
        _write(chosen.device, timing.machine(chosen.device), written)
    print(RESULTS.read_text())


def _training(chosen, data, threads):
    return training.table(training.measure(data, chosen.device, threads, chosen.repeats))


def _sweep(chosen, data, _):
    return sweep.table(sweep.measure(data, chosen.device, max(1, chosen.repeats // 3)))


def _engine(chosen, data, _):
    slots = engine.measure_slots(data, chosen.device, max(1, chosen.repeats // 3))
    return f"{engine.slots_table(slots)}\n\n{engine.large_table(engine.measure_large(data))}"


def _nearest(chosen, _, threads):
    parts = []
    for count in threads:
        parts += [f"{count} thread{'s' * (count > 1)}, D = {nearest.D}:"]
        parts += [nearest.table(nearest.measure_apart(chosen.device, count, chosen.repeats), chosen.device)]
    return "\n\n".join(parts)


def _evaluation(chosen, data, _):
    return evaluation.table(evaluation.measure(data, chosen.repeats))


def _analysis(*_):
    return analysis.table(analysis.measure())


SECTIONS = {
    "training": ("A training step", _training),
    "sweep": ("A sweep over epoch budgets", _sweep),
    "engine": ("The sweep engine", _engine),
    "nearest": ("Nearest-code search", _nearest),
    "evaluation": ("The evaluator", _evaluation),
    "analysis": ("The analysis", _analysis),
}


def _write(device, machine, written):
    """Put sections of a device, title → text, into RESULTS.md; what another section or device has there stays, unless
    it was measured on another machine."""
    devices = {}
    for part in RESULTS.read_text().split("\n## ")[1:] if RESULTS.exists() else []:
        head, *sections = part.rstrip().split("\n\n### ")
        devices[head] = dict(section.split("\n\n", 1) for section in sections)
    head = f"{device}: {machine}"
    devices = {other: found for other, found in devices.items() if other == head or not other.startswith(f"{device}:")}
    found = devices.get(head, {}) | written
    devices[head] = {title: found[title] for title, _ in SECTIONS.values() if title in found}
    lines = [HEAD]
    for head, found in sorted(devices.items()):
        lines += [f"## {head}", *(f"### {title}\n\n{text}" for title, text in found.items())]
    RESULTS.write_text("\n\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
