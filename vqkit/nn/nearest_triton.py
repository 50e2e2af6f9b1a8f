"""Nearest-code search on CUDA: distance and running minimum in one kernel, nothing of size N×K in memory.

The method and its error bound are those of ``vqkit.nn.nearest``. ``scan`` finds each row's best code in float32 and
whether a second one is in range; ``settle`` compares all codes in float64 for the rows where one is, and ends at once
for the others. Both run over the whole shape whatever the values are, so nothing waits for the device.
"""

import os
import shutil
import sysconfig
from pathlib import Path

import torch
import triton
import triton.language as tl

ROWS = tl.constexpr(64)
CODES = tl.constexpr(64)
SCAN_OPTIONS = {"num_warps": 8, "num_stages": 2}  # 33 KB of shared memory, no spilled register on sm_80 and sm_90


def launchable():
    """Whether Triton can build the module that launches kernels: it takes a C compiler and Python's headers."""
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    return compiler is not None and (Path(sysconfig.get_paths()["include"]) / "Python.h").is_file()


@triton.jit
def scan(latents, codes, centre, index, doubtful, N, K, D, slack, tiny, WIDTH: tl.constexpr):
    """The best code of ROWS latents by score, never in TF32, and whether any other one can be nearest."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    row_starts = rows.to(tl.int64)[:, None] * D
    columns = tl.arange(0, WIDTH)
    squared_norms = tl.zeros([ROWS], tl.float32)
    for d in range(0, D, WIDTH):
        inside = d + columns < D
        middle = tl.load(centre + d + columns, mask=inside, other=0.0)
        in_rows = (rows < N)[:, None] & inside[None, :]
        z = tl.load(latents + row_starts + d + columns[None, :], mask=in_rows, other=0.0) - middle[None, :]
        squared_norms += tl.sum(z * z, 1)

    best = tl.full([ROWS], float("inf"), tl.float32)
    second = tl.full([ROWS], float("inf"), tl.float32)
    nearest = tl.zeros([ROWS], tl.int32)
    numbers = tl.arange(0, CODES)
    for start in range(0, K, CODES):
        real = start + numbers < K
        code_starts = (start + numbers).to(tl.int64)[:, None] * D
        products = tl.zeros([ROWS, CODES], tl.float32)
        norms = tl.zeros([CODES], tl.float32)
        for d in range(0, D, WIDTH):
            inside = d + columns < D
            middle = tl.load(centre + d + columns, mask=inside, other=0.0)
            in_rows = (rows < N)[:, None] & inside[None, :]
            z = tl.load(latents + row_starts + d + columns[None, :], mask=in_rows, other=0.0) - middle[None, :]
            in_codes = real[:, None] & inside[None, :]
            c = tl.load(codes + code_starts + d + columns[None, :], mask=in_codes, other=0.0) - middle[None, :]
            products = tl.dot(z, tl.trans(c), products, input_precision="ieee")
            norms += tl.sum(c * c, 1)
        scores = tl.where(real[None, :], norms[None, :] - 2 * products, float("inf"))
        scores = tl.where(scores == scores, scores, float("-inf"))  # NaN must not go unseen
        lowest = tl.min(scores, 1)
        place = tl.min(tl.where(scores == lowest[:, None], numbers[None, :], CODES), 1)
        others = tl.min(tl.where(numbers[None, :] == place[:, None], float("inf"), scores), 1)
        second = tl.where(lowest < best, tl.minimum(best, others), tl.minimum(second, lowest))
        nearest = tl.where(lowest < best, start + place, nearest)
        best = tl.minimum(best, lowest)

    limit = best + 2 * slack * (2 * squared_norms + best) + tiny
    decided = (second > limit) & (best > float("-inf"))
    tl.store(index + rows, nearest.to(tl.int64), mask=rows < N)
    tl.store(doubtful + rows, 1 - decided.to(tl.int8), mask=rows < N)


@triton.jit
def settle(latents, codes, index, doubtful, K, D, tolerance, WIDTH: tl.constexpr):
    """The nearest code of one doubtful latent by Σ(z−c)² in float64; a lower index wins within the tolerance."""
    row = tl.program_id(0).to(tl.int64)
    if tl.load(doubtful + row) != 0:
        columns = tl.arange(0, WIDTH)
        numbers = tl.arange(0, CODES)
        best = tl.full([1], float("inf"), tl.float64)
        nearest = tl.zeros([1], tl.int32)
        for start in range(0, K, CODES):
            real = start + numbers < K
            code_starts = (start + numbers).to(tl.int64)[:, None] * D
            distances = tl.zeros([CODES], tl.float64)
            for d in range(0, D, WIDTH):
                inside = d + columns < D
                z = tl.load(latents + row * D + d + columns, mask=inside, other=0.0).to(tl.float64)
                in_codes = real[:, None] & inside[None, :]
                c = tl.load(codes + code_starts + d + columns[None, :], mask=in_codes, other=0.0).to(tl.float64)
                difference = tl.where(inside[None, :], z[None, :] - c, 0.0)
                distances += tl.sum(difference * difference, 1)
            distances = tl.where(real & (distances == distances), distances, float("inf"))
            lowest = tl.min(distances, 0)
            place = tl.min(tl.where(distances <= lowest + lowest * tolerance, numbers, CODES), 0)
            better = lowest + lowest * tolerance < best
            nearest = tl.where(better, start + place, nearest)
            best = tl.where(better, lowest, best)
        tl.store(index + row + tl.arange(0, 1), nearest.to(tl.int64))


def nearest_codes_fused(latents, codes, centre, slack, tiny):
    """Index [N] int64 of the nearest code [K, D] of each latent [N, D], with the bound's ``slack`` and ``tiny``."""
    latents, codes = latents.contiguous(), codes.contiguous()
    (N, D), K = latents.shape, len(codes)
    width = 16 if D <= 16 else 32
    index = torch.empty(N, dtype=torch.int64, device=latents.device)
    doubtful = torch.empty(N, dtype=torch.int8, device=latents.device)
    grid = (triton.cdiv(N, ROWS.value),)
    scan[grid](latents, codes, centre, index, doubtful, N, K, D, slack, tiny, WIDTH=width, **SCAN_OPTIONS)
    tolerance = (D + 8) * torch.finfo(torch.float64).eps
    settle[(N,)](latents, codes, index, doubtful, K, D, tolerance, WIDTH=width)
    return index
