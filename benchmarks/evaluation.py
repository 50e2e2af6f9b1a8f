"""The evaluator on one core: runs verified to V3 a second, the share of sha256, and the replay of V4."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import timing
from evaluator.held import Held
from evaluator.verify import climb
from vqkit.formats import files, run

REFERENCE = Path(__file__).parents[1] / "configs" / "intervention" / "reference.json"


def measure(data, repeats):
    """Seconds of V3 and V4 of one quick-v1 run with all its marks, and of sha256 over the same bytes."""
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "run"
        options = [f"intervention={REFERENCE}", "contract=quick-v1", "seed=101", "device=cpu", f"data={data}"]
        environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
        command = [sys.executable, "-m", "runner", "run", *options, f"out={out}"]
        subprocess.run(command, cwd=name, env=environment, check=True, capture_output=True)
        held = Held(data=Path(data))
        evidence = [files.read_once(path) for path in sorted((out / run.EVIDENCE).iterdir())]
        ways = {
            "V3": lambda: climb(out, held, level="V3"),
            "V4": lambda: climb(out, held, level="V4"),
            "sha256": lambda: [hashlib.sha256(content).digest() for content in evidence],
        }
        affinity = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {min(affinity)})
        try:
            seconds = timing.rounds(ways, repeats)
        finally:
            os.sched_setaffinity(0, affinity)
        share = [a / b for a, b in zip(seconds["sha256"], seconds["V3"], strict=True)]
        extra = [b - a for a, b in zip(seconds["V3"], seconds["V4"], strict=True)]
        return {
            "runs_per_second": timing.quartiles([1 / one for one in seconds["V3"]]),
            "sha256_share": timing.quartiles(share),
            "replay_seconds": timing.quartiles(extra),
            "evidence_mib": sum(map(len, evidence)) / 2**20,
        }


def table(row):
    """The measurement as Markdown."""
    return "\n".join(
        [
            "| evaluator, one core, quick-v1 with 4 marks | |",
            "|---|---:|",
            f"| runs verified to V3 and scored a second | {timing.spread(row['runs_per_second'])} |",
            f"| share of sha256 in that | {timing.spread(row['sha256_share'])} |",
            f"| V4 on 64 images at each of 4 marks, seconds on top | {timing.spread(row['replay_seconds'])} |",
            f"| evidence of one run, MiB | {row['evidence_mib']:.1f} |",
        ]
    )
