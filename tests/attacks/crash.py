"""What is left after a kill at each write boundary, enumerated once for all who ask."""

import functools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).with_name("boundaries.py")


@functools.cache
def enumerated(what, data):
    """One dict a boundary of ``what`` (run or score); the last one is the work that was not killed."""
    with tempfile.TemporaryDirectory(prefix="vqkit-crash-") as folder:
        command = [sys.executable, str(SCRIPT), what, folder, str(data)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["boundary"] for line in lines] == list(range(1, len(lines) + 1))
    assert [line["died"] for line in lines] == [True] * (len(lines) - 1) + [False]
    return lines
