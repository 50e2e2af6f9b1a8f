"""Paired differences by seed: exact joint sign-flip tests, intervals, equivalence.

Everything that scipy answers wrongly without a word (NaN, constant differences, one seed, all zero) is caught here,
before a call. Shapes: C cells (an arm at a mark for a metric), S seeds.

The statistic of a cell is a moderated t, √S·mean / √(sd² + s₀²), with s₀ a quarter of δ_min, the smallest difference
that matters, which the contract declared before the data (the idea is that of Tusher, Tibshirani and Chu 2001). For one
cell alone every statistic that grows with |mean| gives the same sign-flip p; s₀ only says how the cells of a family
compare. With s₀ = 0 it is Student's t, under which, at 6 seeds, cells of no interest whose differences happen to be of
one size outrank real effects; with a large s₀ a single lost run outranks them. Simulated over both situations a
quarter of δ_min finds more than Student's t from 6 to 12 seeds, and stays finite where all differences are equal.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from vqkit.errors import Refused

EXACT_PATTERNS = 1 << 14  # sign patterns up to a common sign: exact for at most 15 seeds
MONTE_CARLO_DRAWS = 20_000
BOOTSTRAP_DRAWS = 10_000
STREAM = 20_240_229  # seeds the Monte Carlo patterns and the bootstrap, so that the same scores give the same bytes
TIE = 1e-9  # relative: a permuted statistic this close below the observed one counts as equal to it
_CHUNK = 1 << 22  # elements of one block of patterns × cells


@dataclass(frozen=True)
class SignFlip:
    """Joint sign-flip test of a family of cells.

    Attributes:
        raw: p of each cell alone [C].
        adjusted: p over the family, step-down max-|T| (Westfall and Young 1993) [C].
        attainable: the smallest p that this number of seeds can give.
        method: ``exact`` or ``monte_carlo``.
        patterns: how many sign patterns were looked at, up to a common sign.
    """

    raw: np.ndarray
    adjusted: np.ndarray
    attainable: float
    method: str
    patterns: int


def require_finite(differences, where):
    """``differences`` as float64; raise ``Refused`` for NaN, infinity or no seed at all.

    ``scipy.stats.permutation_test`` gives p = 0 for a NaN; nothing here gets that far.
    """
    array = np.asarray(differences, dtype=np.float64)
    if array.size and (array.shape[-1] < 1 or not np.isfinite(array).all()):
        raise Refused(
            "E_ANALYSIS_INPUT", where, "finite differences", f"{int((~np.isfinite(array)).sum())} that are not"
        )
    return array


def is_constant(cells):
    """Whether all differences of a cell (last axis) are equal, up to the rounding of values near 1: then they have no
    variance to estimate, and a t-test would give p = 0."""
    spread = cells.max(-1) - cells.min(-1)
    return spread <= 1e-12 * np.maximum(1.0, np.abs(cells).max(-1))


def attainable_p(seeds):
    """The smallest two-sided p of a sign-flip test: 2 of 2^seeds patterns, or what 20,000 draws can show."""
    exact = min(1.0, 2.0 ** (1 - seeds))
    return exact if 2 ** (seeds - 1) <= EXACT_PATTERNS else max(exact, 1 / (MONTE_CARLO_DRAWS + 1))


def sign_patterns(seeds):
    """±1 [patterns, seeds] and whether they are all there are.

    Two-sided statistics don't change with a common sign, so the first seed keeps its own. The first row is the
    pattern that was observed.
    """
    if 2 ** (seeds - 1) <= EXACT_PATTERNS:
        numbers = np.arange(2 ** (seeds - 1))
        return 1.0 - 2.0 * ((numbers[:, None] >> np.arange(seeds)[::-1]) & 1), True
    draws = np.random.default_rng(STREAM).integers(0, 2, (MONTE_CARLO_DRAWS, seeds))
    return np.vstack([np.ones(seeds), 1.0 - 2.0 * draws]), False


def sign_flip(differences_CS, scale_C):
    """Test all cells together, whole seeds flipped jointly over the family, two-sided.

    Args:
        differences_CS: float64 [C, S], finite.
        scale_C: s₀ of each cell, ≥ 0.
    """
    cells = require_finite(differences_CS, "sign-flip test")
    n = cells.shape[1]
    squares, scale = (cells**2).sum(1), np.broadcast_to(np.asarray(scale_C, dtype=np.float64) ** 2, len(cells))
    signs, exact = sign_patterns(n)
    threshold = _squared_statistic(cells.sum(1)[None], squares, scale, n)[0] * (1 - TIE)
    order = np.argsort(threshold, kind="stable")
    raw, joint = np.zeros(len(cells), dtype=np.int64), np.zeros(len(cells), dtype=np.int64)
    block = max(1, _CHUNK // max(1, len(cells)))
    for start in range(0, len(signs), block):
        flipped = _squared_statistic(signs[start : start + block] @ cells.T, squares, scale, n)
        raw += (flipped >= threshold).sum(0)
        joint[order] += (np.maximum.accumulate(flipped[:, order], axis=1) >= threshold[order]).sum(0)
    adjusted = joint / len(signs)
    strongest_first = order[::-1]
    adjusted[strongest_first] = np.maximum.accumulate(adjusted[strongest_first])
    method = "exact" if exact else "monte_carlo"
    return SignFlip(raw / len(signs), adjusted, attainable_p(n), method, len(signs))


def _squared_statistic(sums_PC, squares_C, scale_C, n):
    """T² of each pattern and cell, in place of the sums.

    Σd² does not change under flips, so the variance follows from the sum. It is kept above a trace of Σd², so that
    equal differences, whose variance is rounding error, have one large finite statistic.
    """
    explained = np.square(sums_PC, out=sums_PC)
    explained /= n
    noise = squares_C - explained
    noise /= max(1, n - 1)
    noise += scale_C
    np.maximum(noise, scale_C + np.maximum(1e-12 * squares_C, np.finfo(np.float64).tiny), out=noise)
    return np.divide(explained, noise, out=explained)


@dataclass(frozen=True)
class Summary:
    """Means and intervals of cells; NaN where something can't be estimated.

    ``sd`` is NaN for one seed; ``t``, ``p_t``, ``low`` and ``high`` (level 1 − alpha) are NaN also where all
    differences are equal: then the variance is not estimable and no interval is honest.
    """

    mean: np.ndarray
    sd: np.ndarray
    t: np.ndarray
    p_t: np.ndarray
    low: np.ndarray
    high: np.ndarray
    positive: np.ndarray
    negative: np.ndarray
    constant: np.ndarray


def summarize(differences_CS, alpha):
    """Mean, sd, Student's t and its interval, and how many seeds point each way."""
    cells = require_finite(differences_CS, "paired differences")
    n = cells.shape[1]
    mean = cells.mean(1)
    constant = is_constant(cells)
    blank = np.full(len(cells), np.nan)
    sd = blank if n < 2 else np.where(constant, 0.0, cells.std(1, ddof=1))
    usable = ~constant & (n >= 2)
    t, p, half = blank.copy(), blank.copy(), blank.copy()
    if usable.any():
        error = sd[usable] / np.sqrt(n)
        t[usable] = mean[usable] / error
        p[usable] = 2 * stats.t.sf(np.abs(t[usable]), n - 1)
        half[usable] = stats.t.ppf(1 - alpha / 2, n - 1) * error
    positive, negative = (cells > 0).sum(1), (cells < 0).sum(1)
    return Summary(mean, sd, t, p, mean - half, mean + half, positive, negative, constant)


def equivalence_p(differences_CS, bound_C):
    """Two one-sided tests against ±bound: the larger p of the two [C] (Schuirmann 1987).

    Student's t; where all differences are equal, the one-sided sign-flip test of the shifted differences, whose p is
    2^−S when every one of them lies inside the bounds and 1 when not.
    """
    cells = require_finite(differences_CS, "equivalence test")
    n = cells.shape[1]
    bound = np.broadcast_to(np.asarray(bound_C, dtype=np.float64), len(cells))
    mean, constant = cells.mean(1), is_constant(cells)
    p = np.where(constant & (np.abs(mean) < bound), 2.0**-n, 1.0)
    usable = ~constant & (n >= 2)
    if usable.any():
        error = cells[usable].std(1, ddof=1) / np.sqrt(n)
        nearest = bound[usable] - np.abs(mean[usable])
        p[usable] = stats.t.sf(nearest / error, n - 1)
    return p


def bootstrap_interval(differences_CS, alpha):
    """Percentile interval of the mean over resampled seeds, whole seeds drawn jointly: (low [C], high [C]).

    Plain percentile intervals are too short for few seeds by √((S−1)/S) and z/t; the level is widened so that they
    aren't (expanded percentile interval, Hesterberg 2015). NaN for one seed or where all differences are equal.
    """
    cells = require_finite(differences_CS, "bootstrap")
    n = cells.shape[1]
    low, high = np.full(len(cells), np.nan), np.full(len(cells), np.nan)
    usable = np.flatnonzero(~is_constant(cells)) if n >= 2 else np.empty(0, dtype=int)
    if not len(usable):
        return low, high
    tail = stats.norm.sf(np.sqrt(n / (n - 1)) * stats.t.ppf(1 - alpha / 2, n - 1))
    weights = np.random.default_rng(STREAM).multinomial(n, np.full(n, 1 / n), BOOTSTRAP_DRAWS) / n
    for part in np.array_split(usable, max(1, len(usable) * BOOTSTRAP_DRAWS // _CHUNK)):
        means = weights @ cells[part].T
        low[part], high[part] = np.quantile(means, [tail, 1 - tail], axis=0)
    return low, high


def holm(p):
    """Holm's adjusted p-values of a list (Holm 1979), for tests that have no joint distribution."""
    p = np.asarray(p, dtype=np.float64)
    if not np.isfinite(p).all() or (p < 0).any() or (p > 1).any():
        raise Refused("E_ANALYSIS_INPUT", "Holm's adjustment", "p-values in [0, 1]", str(p.tolist()))
    order = np.argsort(p, kind="stable")
    stepped = np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(1, stepped)
    return adjusted


def fisher_greater(hits, trials, other_hits, other_trials):
    """One-sided Fisher exact test that the first proportion is the larger one; counts must make a table."""
    table = [[hits, trials - hits], [other_hits, other_trials - other_hits]]
    if any(type(count) is not int or count < 0 for row in table for count in row) or not trials or not other_trials:
        raise Refused("E_ANALYSIS_INPUT", "Fisher's exact test", "counts of hits within trials", str(table))
    return float(stats.fisher_exact(table, alternative="greater").pvalue)
