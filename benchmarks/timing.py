"""What all measurements share: rounds in turn, quartiles, and a line that says on which machine."""

import os
import platform
import re
import statistics
import time
from pathlib import Path

import torch


def rounds(ways, repeats, device="cpu", pause=0.0):
    """Seconds of every way in every round: name → list.

    Args:
        ways: name → function without arguments. All are called once before the clock starts, then one after another in
            each round, so that what else runs on the machine meets all alike.
        device: on ``cuda`` the clock waits for the device.
        pause: seconds before each call, for the threads of the last one to fall asleep.
    """

    def finish():
        if device == "cuda":
            torch.cuda.synchronize()

    for way in ways.values():
        way()
    seconds = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            finish()
            time.sleep(pause)
            started = time.perf_counter()
            way()
            finish()
            seconds[name].append(time.perf_counter() - started)
    return seconds


def quartiles(values):
    """Lower quartile, median and upper quartile."""
    return tuple(statistics.quantiles(values, n=4, method="inclusive")) if len(values) > 1 else (values[0],) * 3


def each(seconds, theirs, ours):
    """The time of ``theirs`` over that of ``ours`` in each round."""
    return [b / a for a, b in zip(seconds[ours], seconds[theirs], strict=True)]


def ratios(seconds, theirs, ours):
    """Quartiles of ``each``."""
    return quartiles(each(seconds, theirs, ours))


def spread(values):
    """Quartiles as people read them: median (lower–upper)."""
    low, middle, high = values
    return f"{middle:.2f} ({low:.2f}–{high:.2f})"


def machine(device):
    """One line: processor, cores, memory, card, versions."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    memory = int(re.search(r"MemTotal:\s*(\d+)", Path("/proc/meminfo").read_text())[1]) / 2**20
    parts = [cpu[1] if cpu else platform.processor(), f"{os.cpu_count()} cores", f"{memory:.0f} GiB"]
    if device == "cuda":
        parts.append(f"{torch.cuda.get_device_name(0)}, CUDA {torch.version.cuda}")
    return ", ".join([*parts, f"Python {platform.python_version()}", f"torch {torch.__version__}"])
