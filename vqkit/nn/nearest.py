"""Nearest-code search: exact, ties to the lowest index, in bounded memory.

For a latent z and codes c, all moved by one centre, |z−c|² = |z|² + s with the score s = |c|² − 2z·c, so that a matrix
product ranks the codes. A float32 score is off by at most E(c) = γ(2|z||c| + |c|²), γ = (D+8)·2⁻²⁴ (Higham, Accuracy
and Stability of Numerical Algorithms, 3.5; the rounding of the centring included). Let ŵ have the lowest computed
score. A code c that is truly nearest scores at most s(ŵ) + E(ŵ) + E(c), and neither ŵ nor c is longer than
R = |z| + |z−ŵ|, so it scores at most s(ŵ) + 6γR², taken as 8γR² for the rounding of R itself. A code far away does not
widen this range, and a huge |z| widens it only in proportion to the differences between scores. A row with one code in
range is decided. In the other rows, about one in 500 unless codes coincide, the codes in range are compared by Σ(z−c)²
in float64; what agrees to within float64 rounding is a tie. So the answer depends on no tile size, thread count, BLAS
or centre; these cost time only.

A latent with a non-finite entry gets code 0. A code with one is never nearest, unless all codes are such.
"""

import functools

import torch

from vqkit.errors import InternalError

CODES_PER_TILE = 2048
SCORES_PER_TILE = 2**19  # 2 MiB of float32: about what stays in cache between the product and the reductions
ROWS_PER_TILE = 512  # at least
DOUBTS_AT_ONCE = 2**20  # numbers of rows that wait to be settled
SETTLED_AT_ONCE = 2**18  # numbers in one step of `settle`
TINY = {torch.float32: 2.0**-110, torch.float64: 2.0**-1000}  # more than what the products lose to underflow


@torch.no_grad()
def nearest_codes(latents, codes):
    """Index [N] int64 of the code [K, D] nearest to each latent [N, D], computed from float32 inside autocast too.

    On a CPU in tiles; on CUDA by the fused Triton kernel, or in float64 tiles where Triton or what it builds with is
    missing. The CUDA ways never synchronise and have no data-dependent shapes, so a graph can capture them.
    """
    matrices = latents.ndim == codes.ndim == 2 and latents.shape[1] == codes.shape[1] > 0
    if not (matrices and 0 < len(codes) <= 2**24):  # indices are summed in float32
        found = f"{list(latents.shape)} and {list(codes.shape)}"
        raise InternalError("E_INTERNAL", "nearest_codes", "latents [N, D] and codes [K, D], 1 ≤ K ≤ 2²⁴, D ≥ 1", found)
    with torch.autocast(latents.device.type, enabled=False):
        latents, codes = latents.float(), codes.float()
        if len(latents) == 0:
            return torch.zeros(0, dtype=torch.int64, device=latents.device)
        if latents.device.type == "cpu":
            return nearest_codes_tiled(latents, codes)
        fused = fused_search()
        if fused is None:
            return nearest_codes_float64(latents, codes)
        with torch.cuda.device_of(latents):
            return fused(latents, codes, centre_of(codes), relative_slack(codes), TINY[torch.float32])


@functools.cache
def fused_search():
    """The Triton kernel, loaded where it is needed, which is not on a CPU; None with a torch without Triton, and where
    Triton can't build what launches it."""
    try:
        from vqkit.nn.nearest_triton import launchable, nearest_codes_fused
    except ImportError:
        return None
    return nearest_codes_fused if launchable() else None


def centre_of(codes):
    """A point [D] amid the codes: the median of three, because one stray code would draw the mean away."""
    a, b, c = codes[0], codes[len(codes) // 2], codes[-1]
    return torch.maximum(torch.minimum(a, b), torch.minimum(torch.maximum(a, b), c)).nan_to_num_(0, 0, 0)


def relative_slack(codes):
    """8γ for codes [K, D] in their own precision."""
    return 4 * (codes.shape[1] + 8) * torch.finfo(codes.dtype).eps


def range_of(best, z, slack):
    """The score [N] up to which a code can be nearest, from the best score s [N] and the centred latents z [N, D].

    It is s + 8γ·2(|z|² + |z−ŵ|²) ≥ s + 8γR², and |z−ŵ|² = |z|² + s.
    """
    weights = z.new_full((z.shape[1],), 4 * slack)
    return torch.addmv(best, z.square(), weights, beta=1 + 2 * slack).add_(TINY[z.dtype])


def nearest_codes_tiled(latents, codes):
    """The search on a CPU, in tiles of codes × latents.

    Codes form groups. Two reductions of each tile, over the members of a group and over the groups, give the lowest
    score of each group and of each member number. One group and one member number in range are one code in range, and a
    product with their numbers reads off which: an argmin over the tile would take as long as the matrix product itself.
    """
    (N, D), K = latents.shape, len(codes)
    members = 1 << (min(K, CODES_PER_TILE).bit_length() // 2)
    groups = -(-K // members)
    tile_codes = min(groups * members, CODES_PER_TILE)
    tile_rows = min(N, max(ROWS_PER_TILE, SCORES_PER_TILE // tile_codes))
    centre, slack = centre_of(codes), relative_slack(codes)
    starts = range(0, K, tile_codes)

    code_norms = torch.full((groups * members, 1), torch.inf)  # what only fills the last group is infinitely far
    for start in starts:
        centred = codes[start : start + tile_codes] - centre
        code_norms[start : start + len(centred), 0] = centred.square_().sum(1)
    tile = torch.zeros(tile_codes, D)
    score_buffer, lowest_buffer = torch.empty(tile_codes * tile_rows), torch.empty((groups + members) * tile_rows)
    parts = torch.cat([torch.arange(0, groups * members, members), torch.arange(members)])  # of an index
    counting = torch.stack([torch.ones(groups + members), parts]).neg_()

    index, doubts = torch.empty(N, dtype=torch.int64), []
    for row in range(0, N, tile_rows):
        z = latents[row : row + tile_rows] - centre
        n = len(z)
        lowest = lowest_buffer[: (groups + members) * n].view(-1, n)
        by_group, by_member = lowest[:groups], lowest[groups:]
        for start in starts:
            torch.sub(codes[start : start + tile_codes], centre, out=tile[: min(tile_codes, K - start)])
            norms = code_norms[start : start + tile_codes]
            scores = score_buffer[: len(norms) * n].view(len(norms), n)
            torch.addmm(norms, tile[: len(norms)], z.t(), alpha=-2, out=scores)
            scores = scores.view(-1, members, n)
            torch.amin(scores, 1, out=by_group[start // members : start // members + len(scores)])
            if start == 0:
                torch.amin(scores, 0, out=by_member)
            else:
                torch.minimum(by_member, scores.amin(0), out=by_member)
        limit = range_of(by_member.amin(0), z, slack)
        lowest.gt_(limit).sub_(1)  # −1 in range, 0 beyond; NaN is in range
        count, found = counting @ lowest
        index[row : row + n] = found
        doubtful = (count != 2).nonzero()[:, 0]
        doubts.append((doubtful + row, lowest[:, doubtful].t()))
        if row + n == N or sum(in_range.numel() for _, in_range in doubts) > DOUBTS_AT_ONCE:
            rows, in_range = map(torch.cat, zip(*doubts, strict=True))
            if len(rows):
                index[rows] = settle(latents[rows], codes, *in_range.split([groups, members], dim=1))
            doubts = []
    return index


def settle(latents, codes, groups, members):
    """Index [n] of the nearest code in float64 for latents [n, D], among the codes whose group and whose member number
    are in range: not 0 in groups [n, ·] and members [n, ·]."""
    n, (K, D) = len(latents), codes.shape
    tolerance = 1 + (D + 8) * torch.finfo(torch.float64).eps
    index = torch.full((n,), K)
    at_once = max(1, SETTLED_AT_ONCE // K)
    for first in range(0, n, at_once):
        rows = slice(first, first + at_once)
        in_range = (groups[rows].unsqueeze(2) * members[rows].unsqueeze(1)).flatten(1)[:, :K]
        row, code = in_range.nonzero().unbind(1)
        pairs = zip(row.split(SETTLED_AT_ONCE // D + 1), code.split(SETTLED_AT_ONCE // D + 1), strict=True)
        distances = torch.cat([(codes[c].double() - latents[rows][r]).square_().sum(1) for r, c in pairs])
        distances.nan_to_num_(torch.inf, torch.inf)
        best = torch.full((len(in_range),), torch.inf, dtype=torch.float64).scatter_reduce_(0, row, distances, "amin")
        near = distances <= best[row] * tolerance
        index[rows].scatter_reduce_(0, row[near], code[near], "amin")
    return index


def nearest_codes_float64(latents, codes):
    """The search as a chunked matrix product in float64, on any device: exact but for ties within its own rounding."""
    K, centre = len(codes), centre_of(codes)
    index = torch.zeros(len(latents), dtype=torch.int64, device=latents.device)
    for row in range(0, len(latents), ROWS_PER_TILE):
        z = latents[row : row + ROWS_PER_TILE].double() - centre
        best = z.new_full((len(z),), torch.inf)
        nearest = index[row : row + ROWS_PER_TILE]
        for start in range(0, K, CODES_PER_TILE):
            c = codes[start : start + CODES_PER_TILE].double() - centre
            scores = torch.addmm(c.square().sum(1, keepdim=True), c, z.t(), alpha=-2).nan_to_num_(torch.inf, torch.inf)
            lowest = scores.amin(0)
            limit = range_of(lowest, z, relative_slack(c))
            numbers = torch.arange(start, start + len(c), device=codes.device)[:, None]
            first = numbers.where(scores <= limit, K).amin(0)
            better = limit < best
            torch.where(better, first, nearest, out=nearest)
            torch.where(better, lowest, best, out=best)
    return index.where(latents.isfinite().all(1), 0)
