"""Nearest-code search against ``torch.cdist(...).argmin`` and, on a CPU, faiss-cpu's IndexFlatL2: time and peak memory.

    python -m benchmarks.nearest [--device cuda] [--threads 2] [--repeats 7]

Times are taken in turn, one round of all ways after another, so that what else runs on the machine meets all alike; a
ratio is taken within a round, and the median of the rounds is given with the lower and upper quartile. Memory is the
peak of a process of its own over what was resident with the inputs in place, or that of torch's allocator on CUDA.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path

import faiss
import torch

from benchmarks import timing
from vqkit.nn.nearest import nearest_codes

D = 64
LATENTS = 8192
CDIST_MATRIX = 2**29  # numbers: cdist's distances may take 2 GiB, so fewer latents at K = 262,144
CODES = (128, 1024, 8192, 65536, 262144)
PAUSE = 0.4  # seconds; faiss brings an OpenMP of its own, whose threads spin for 0.2 s after each call
BASELINES = {"cpu": ("cdist", "faiss"), "cuda": ("cdist",)}


def inputs(K, device="cpu"):
    """Standard normal latents [N, D] and codes [K, D], the same in each process."""
    generator = torch.Generator().manual_seed(K)
    N = min(LATENTS, CDIST_MATRIX // K)
    return (torch.randn(rows, D, generator=generator).to(device) for rows in (N, K))


def searches(codes):
    """The ways, from latents to indices; faiss holds its copy of the codes before the clock starts."""
    ways = {
        "vqkit": lambda latents: nearest_codes(latents, codes),
        "cdist": lambda latents: torch.cdist(latents, codes).argmin(1),
    }
    if codes.device.type == "cpu":
        index = faiss.IndexFlatL2(D)
        index.add(codes.numpy())
        ways["faiss"] = lambda latents: index.search(latents.numpy(), 1)
    return ways


def set_threads(threads):
    torch.set_num_threads(threads)
    faiss.omp_set_num_threads(threads)


def peak_memory_cuda(search, latents):
    """MiB that one search takes over its inputs, on the device."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    search(latents)
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def peak_memory(way, K, threads):
    """MiB that one search takes over its inputs, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.nearest", "--memory-of", way, "--codes", str(K)]
    done = subprocess.run([*command, "--threads", str(threads)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def memory(field):
    """MiB of this process in a line of Linux's account: resident (VmRSS) or the most that ever was (VmHWM)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) / 2**10


def print_peak_memory(way, K):
    latents, codes = inputs(K)
    search = searches(codes)[way]
    searches(codes[:64].clone())[way](latents[:64])  # libraries loaded, threads started
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of making the inputs
    resident = memory("VmRSS")
    search(latents)
    print(memory("VmHWM") - resident)


def measure(device, threads, repeats):
    """One row for each K: seconds and peak MiB of each way, and each baseline's time over ours (quartiles)."""
    set_threads(threads)
    rows = []
    for K in CODES:
        latents, codes = inputs(K, device)
        ways = searches(codes)
        calls = {name: partial(search, latents) for name, search in ways.items()}
        seconds = timing.rounds(calls, repeats, device, PAUSE)
        row = {"codes": K, "latents": len(latents), "dimension": D, "threads": threads, "repeats": repeats}
        for name in ways:
            row[f"{name}_seconds"] = statistics.median(seconds[name])
            on_cuda = device == "cuda"
            row[f"{name}_peak_mib"] = (
                peak_memory_cuda(ways[name], latents) if on_cuda else peak_memory(name, K, threads)
            )
        for name in BASELINES[device]:
            row[f"{name}_over_vqkit"] = timing.ratios(seconds, name, "vqkit")
        rows.append(row)
    return rows


def measure_apart(device, threads, repeats):
    """``measure`` in a process of its own, where nothing has been trained and memory is allocated as usual."""
    options = ["--device", device, "--threads", str(threads), "--repeats", str(repeats), "--json"]
    command = [sys.executable, "-m", "benchmarks.nearest", *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def table(rows, device):
    """The rows as a Markdown table."""
    baselines = BASELINES[device]
    ratios = " | ".join(f"{name} / vqkit (quartiles)" for name in baselines)
    lines = [
        f"| K | N | vqkit ms | {ratios} | MiB: vqkit | {' | '.join(baselines)} |",
        f"|{'---:|' * (4 + 2 * len(baselines))}",
    ]
    for row in rows:
        ratios = (timing.spread(row[f"{name}_over_vqkit"]) for name in baselines)
        peaks = (f"{row[f'{name}_peak_mib']:.0f}" for name in ("vqkit", *baselines))
        cells = (f"{row['codes']:,}", f"{row['latents']:,}", f"{1000 * row['vqkit_seconds']:.1f}", *ratios, *peaks)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(prog="benchmarks.nearest", description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=tuple(BASELINES), default="cpu")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="rows as JSON instead of a table")
    parser.add_argument(
        "--memory-of", choices=("vqkit", *BASELINES["cpu"]), help="only print the peak MiB of one search"
    )
    parser.add_argument("--codes", type=int, default=CODES[-1], help="K for --memory-of")
    options = parser.parse_args()
    set_threads(options.threads)
    if options.memory_of:
        print_peak_memory(options.memory_of, options.codes)
        return
    rows = measure(options.device, options.threads, options.repeats)
    print(json.dumps(rows) if options.json else table(rows, options.device))


if __name__ == "__main__":
    main()
