"""How many seeds a confirmatory trial needs, three ways, and what a number of seeds can see.

The spread σ is that of paired differences, the difference δ is declared beforehand and never taken from the pilot.
A pilot's own spread is uncertain, so every answer is given with σ and with its upper limit (Browne 1995).
"""

import math

import numpy as np
from scipy import stats

from vqkit.analysis import paired
from vqkit.errors import Problem, UsageError, raise_all

UPPER_LEVEL = 0.8
MOST_SEEDS = 100_000
SIMULATIONS = 2_000
MOST_SIMULATED = 200  # seeds; beyond, the sign-flip test and the t-test agree


def require_sizes(**sizes):
    """Raise ``UsageError``, with all that is wrong, unless sigma, delta > 0 and alpha, power lie between 0 and 1, of
    those that are given.

    The limits keep squares and quantiles finite in float64.
    """
    limits = {"sigma": (1e-50, 1e50), "delta": (1e-50, 1e50), "alpha": (1e-12, 1), "power": (0, 1)}
    problems = [
        Problem(code="E_USAGE", where=name, expected=f"a number between {low:g} and {high:g}", found=str(sizes[name]))
        for name, (low, high) in limits.items()
        if name in sizes and not low < sizes[name] < high
    ]
    raise_all(UsageError, problems)


def seeds_normal(sigma, delta, alpha, power):
    """ceil((z_{1−α/2} + z_power)² σ² / δ²): the textbook formula, too small for few seeds."""
    require_sizes(sigma=sigma, delta=delta, alpha=alpha, power=power)
    return max(1, math.ceil((stats.norm.ppf(1 - alpha / 2) + stats.norm.ppf(power)) ** 2 * (sigma / delta) ** 2 - 1e-9))


def t_power(seeds, sigma, delta, alpha):
    """Power of the two-sided paired t-test: noncentral t with S − 1 degrees of freedom; 0 for one seed."""
    if seeds < 2:
        return 0.0
    edge = stats.t.ppf(1 - alpha / 2, seeds - 1)
    shift = math.sqrt(seeds) * delta / sigma
    if shift > 35:  # scipy's noncentral t loses its digits out there, where the answer is 1
        return 1.0
    return float(stats.nct.sf(edge, seeds - 1, shift) + stats.nct.cdf(-edge, seeds - 1, shift))


def feasible(sigma, delta, alpha, power):
    """Whether ``MOST_SEEDS`` are enough; beyond, no number of seeds is worth naming."""
    return t_power(MOST_SEEDS, sigma, delta, alpha) >= power


def seeds_t(sigma, delta, alpha, power):
    """The smallest number of seeds at which the paired t-test has the power asked for."""
    require_sizes(sigma=sigma, delta=delta, alpha=alpha, power=power)
    if not feasible(sigma, delta, alpha, power):
        expected = f"a difference that {MOST_SEEDS} seeds can show"
        raise UsageError("E_USAGE", "delta", expected, f"{delta} at sigma {sigma}")
    low, high = 1, 2
    while t_power(high, sigma, delta, alpha) < power:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if t_power(middle, sigma, delta, alpha) < power else (low, middle)
    return high


def seeds_floor(alpha):
    """The smallest number of seeds whose sign-flip test can reach α at all: 2^(1−S) ≤ α."""
    return 1 + math.ceil(math.log2(1 / alpha) - 1e-12)


def seeds_needed(sigma, delta, alpha, power):
    """What to plan with: at least the t solution and the permutation floor, and enough for the sign-flip test itself.

    From there up the sign-flip test is simulated until its power is not below the one asked for by more than two
    Monte Carlo standard errors; where its patterns can't be listed any more it has the power of the t-test.
    """
    seeds = max(seeds_t(sigma, delta, alpha, power), seeds_floor(alpha))
    while 2 ** (seeds - 1) <= paired.EXACT_PATTERNS:
        found, error = simulate(seeds, sigma, delta, alpha)
        if found + 2 * error >= power:
            break
        seeds += 1
    return seeds


def detectable(seeds, sigma, alpha, power):
    """The δ that the paired t-test shows with the power asked for; infinity for one seed."""
    require_sizes(sigma=sigma, alpha=alpha, power=power)
    if seeds < 2:
        return math.inf
    low, high = 0.0, sigma
    while t_power(seeds, sigma, high, alpha) < power:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_power(seeds, sigma, middle, alpha) < power else (low, middle)
    return high


def sigma_limits(sigma, df, alpha):
    """(lower, upper) χ² limits of σ at level 1 − α, and its one-sided 80 % upper limit; inf without freedom."""
    if df < 1:
        return 0.0, math.inf, math.inf
    scale = sigma * math.sqrt(df)
    low, high = (scale / math.sqrt(stats.chi2.ppf(q, df)) for q in (1 - alpha / 2, alpha / 2))
    return low, high, scale / math.sqrt(stats.chi2.ppf(1 - UPPER_LEVEL, df))


def pooled_sigma(differences_AS):
    """σ of paired differences: root mean square of the arms' sd; arms whose differences are all equal say nothing.

    None where nothing can be estimated (one seed, or every arm constant).
    """
    cells = paired.require_finite(differences_AS, "paired differences")
    varying = cells[~paired.is_constant(cells)] if cells.shape[1] > 1 else cells[:0]
    return float(np.sqrt(varying.var(1, ddof=1).mean())) if len(varying) else None


def simulate(seeds, sigma, delta, alpha, *, simulations=SIMULATIONS, stream=paired.STREAM):
    """Power of the sign-flip test itself for one comparison, by simulation with normal differences.

    Returns:
        (power, its Monte Carlo standard error).
    """
    draws = np.random.default_rng(stream).normal(delta, sigma, (simulations, seeds))
    hits = single_p(draws) <= alpha
    share = float(hits.mean())
    return share, math.sqrt(share * (1 - share) / simulations)


def single_p(differences_CS):
    """Two-sided sign-flip p of each cell on its own [C], by the size of the sum."""
    cells = paired.require_finite(differences_CS, "sign-flip test")
    signs, _ = paired.sign_patterns(cells.shape[1])
    count, observed = np.zeros(len(cells)), np.abs(cells.sum(1)) * (1 - paired.TIE)
    for block in np.array_split(signs, 1 + signs.shape[0] * len(cells) // (1 << 22)):
        count += (np.abs(block @ cells.T) >= observed).sum(0)
    return count / len(signs)


def three_ways(sigma, delta, alpha, power):
    """n by the normal formula, by the t solution, the permutation floor, and what to plan with."""
    return {
        "normal": seeds_normal(sigma, delta, alpha, power),
        "t": seeds_t(sigma, delta, alpha, power),
        "permutation_floor": seeds_floor(alpha),
        "plan": seeds_needed(sigma, delta, alpha, power),
    }


def curve(sigma, delta, alpha, seeds):
    """Power of the t-test at each number of seeds [len(seeds)], with 0 where the sign-flip test can't reach α."""
    return [t_power(n, sigma, delta, alpha) if n >= seeds_floor(alpha) else 0.0 for n in seeds]


def answer(sigma, delta, alpha, power, seeds=None):
    """Everything that ``power`` prints: n three ways for δ, or what ``seeds`` can see, with simulated power."""
    require_sizes(sigma=sigma, delta=delta, alpha=alpha, power=power)
    ways = three_ways(sigma, delta, alpha, power)
    used = seeds or ways["plan"]
    simulated, error = simulate(used, sigma, delta, alpha) if used <= MOST_SIMULATED else (None, None)
    return {
        "sigma": sigma, "delta": delta, "alpha": alpha, "power": power, "seeds": used, "seeds_given": seeds is not None,
        **ways, "p_attainable": paired.attainable_p(used), "t_power": t_power(used, sigma, delta, alpha),
        "simulated_power": simulated, "simulation_error": error,
    }  # fmt: skip


def sentence(found):
    """``answer`` in words."""
    lines = [f"sigma {found['sigma']:g}, alpha {found['alpha']:g} two-sided, power {found['power']:g}, paired by seed"]
    if found["seeds_given"]:
        lines.append(f"{found['seeds']} seeds show a difference of {found['delta']:.4g} or more")
    else:
        lines.append(
            f"delta {found['delta']:g} needs: normal formula {found['normal']}, t solution {found['t']}, "
            f"permutation floor {found['permutation_floor']}; plan {found['plan']} seeds"
        )
    lines.append(f"at {found['seeds']} seeds the smallest attainable sign-flip p is {found['p_attainable']:.4g}")
    if found["simulated_power"] is not None:
        lines.append(
            f"power there: t-test {found['t_power']:.3f}, sign-flip test {found['simulated_power']:.3f} "
            f"± {found['simulation_error']:.3f} ({SIMULATIONS} simulated trials)"
        )
    return "\n".join(lines)
