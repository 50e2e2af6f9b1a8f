"""Guardrails in three values: ``ok``, ``broken`` or ``inconclusive``; never ok for want of evidence.

Two questions for each arm, mark and guardrail, and the worse answer counts:

* Is the arm no worse than the reference by more than the margin? Paired differences, oriented so that more is better,
  with one-sided t limits at level 1 − α: ``ok`` when the lower limit is at or above −margin, ``broken`` when the upper
  limit is below it.
* Does the arm stay on the right side of the absolute limit? ``ok`` when every run does, ``broken`` when the mean
  doesn't, else ``inconclusive``.

Guardrails are gates, each passed on its own, so there is no adjustment for their number.
"""

from dataclasses import dataclass

import numpy as np
from scipy import stats

from vqkit.analysis.paired import is_constant, require_finite
from vqkit.formats.calibration import GUARDRAIL_STATUSES as STATUSES
from vqkit.formats.contract import QUALITY


@dataclass(frozen=True)
class Guardrail:
    """One guardrail over arms × marks [A−1, T]; differences are arm − reference, not oriented."""

    metric: str
    margin: float
    limit: float
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    relative: np.ndarray
    absolute: np.ndarray
    status: np.ndarray


def judge(values_ATS, guard, alpha):
    """One guardrail for every arm against the reference (arm 0).

    Args:
        values_ATS: the guardrail's metric, float64 [A, T, S].
        guard: its entry in the contract: metric, margin, limit.
        alpha: level of each one-sided limit.
    """
    values = require_finite(values_ATS, f"guardrail {guard['metric']}")
    sign, n = QUALITY[guard["metric"]], values.shape[2]
    oriented = sign * (values[1:] - values[:1])
    mean = oriented.mean(2)
    constant = is_constant(oriented)
    half = _half_width(oriented, constant, alpha) if n >= 2 else np.full(mean.shape, np.nan)
    relative = np.full(mean.shape, "inconclusive", dtype=object)
    with np.errstate(invalid="ignore"):
        relative[mean - half >= -guard["margin"]] = "ok"
        relative[mean + half < -guard["margin"]] = "broken"
    absolute = against_limit(values[1:], guard)
    status = np.where(_rank(relative) >= _rank(absolute), relative, absolute)
    low, high = (mean - half, mean + half) if sign > 0 else (-mean - half, -mean + half)
    return Guardrail(
        guard["metric"], guard["margin"], guard["limit"], sign * mean, low, high, relative, absolute, status
    )


def against_limit(values_ATS, guard):
    """The absolute question alone, for any arms: statuses [A, T]."""
    room = QUALITY[guard["metric"]] * (values_ATS - guard["limit"])
    return np.where((room >= 0).all(2), "ok", np.where(room.mean(2) < 0, "broken", "inconclusive")).astype(object)


def combined(guardrails, shape):
    """The worst status over all guardrails [A−1, T]; ``ok`` where the contract has none."""
    worst = np.zeros(shape, dtype=int)
    for one in guardrails:
        worst = np.maximum(worst, _rank(one.status))
    return np.array(STATUSES, dtype=object)[worst]


def _half_width(oriented, constant, alpha):
    error = np.where(constant, 0.0, oriented.std(2, ddof=1)) / np.sqrt(oriented.shape[2])
    return stats.t.ppf(1 - alpha, oriented.shape[2] - 1) * error


def _rank(statuses):
    ranks = np.zeros(statuses.shape, dtype=int)
    for rank, status in enumerate(STATUSES):
        ranks[statuses == status] = rank
    return ranks
