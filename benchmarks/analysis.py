"""The analysis of a large campaign on one core: CPU seconds of `calibrate` and of `report`."""

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"
ARMS, SEEDS = 625, 16  # with the reference; 10,000 cells

FABRICATE = """
import sys
from pathlib import Path
import simulate
arms, seeds, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
planned = [
    simulate.arm(f"arm-{i:03d}", 0.01 * (i % 40 - 20), knobs={"commitment_weight": round(0.3 + i / 100, 4)})
    for i in range(arms - 1)
]
simulate.write_campaign(folder, planned, seeds=seeds, exhibits={"reference", "arm-039", "arm-000"})
"""


def measure():
    """Seconds of CPU of each command over a made-up campaign (see ``tests/analysis/simulate.py``)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "campaign"
        paths = [str(TESTS.parent), str(TESTS), str(TESTS / "analysis")]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
        making = [sys.executable, "-c", FABRICATE, str(ARMS), str(SEEDS), str(folder)]
        subprocess.run(making, env=environment, check=True)
        rows = {}
        for command in ("calibrate", "report"):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            running = [sys.executable, "-m", "vqkit.analysis", command, str(folder)]
            subprocess.run(running, env=environment, check=True, capture_output=True, preexec_fn=_one_core)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            rows[command] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return rows


def _one_core():
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def table(row):
    """The measurement as Markdown."""
    return "\n".join(
        [
            f"| analysis of {ARMS * SEEDS:,} cells, {ARMS} arms × {SEEDS} seeds × 4 marks, one core | CPU seconds |",
            "|---|---:|",
            f"| calibrate | {row['calibrate']:.1f} |",
            f"| report | {row['report']:.1f} |",
            f"| both | {row['calibrate'] + row['report']:.1f} |",
        ]
    )
