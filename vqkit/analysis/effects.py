"""The response surface: every arm at every mark against the reference, one family of metrics at a time.

A family is arms × trained marks × its metrics, tested jointly. The candidate metrics of the contract are one family;
the quality metrics, which decide nothing, are another. Mark 0 is measured before the first step: it is described,
never tested, and never a candidate for a budget.

Shapes: values [A, T, S] with the reference as arm 0; effects [A−1, T] in the order of the other arms.
"""

from dataclasses import dataclass

import numpy as np

from vqkit.analysis import paired
from vqkit.analysis.paired import Summary

SPREAD_FLOOR = 0.5  # s₀ of the tests as a part of δ; see ``paired``


@dataclass(frozen=True, kw_only=True)
class Effects:
    """Effects of one metric over arms × marks; tests and verdicts are NaN or None at mark 0.

    ``delta`` is the smallest difference that matters, None where the contract declares none. ``standardized`` is
    mean / √(sd² + s₀²): the mean in units of the spread of paired differences, finite when that spread is nil.
    ``reference`` is the reference's mean at each mark [T].
    """

    metric: str
    delta: float | None
    differences: np.ndarray
    reference: np.ndarray
    summary: Summary
    standardized: np.ndarray
    raw: np.ndarray
    adjusted: np.ndarray
    equivalence: np.ndarray
    verdict: np.ndarray

    @property
    def agreed(self):
        """+1 or −1 where every seed has that sign, else 0 [A−1, T]."""
        n = self.differences.shape[2]
        return (self.summary.positive == n).astype(int) - (self.summary.negative == n).astype(int)


@dataclass(frozen=True, kw_only=True)
class Family:
    """The effects of several metrics that were tested together."""

    effects: dict
    marks: tuple
    seeds: int
    attainable: float
    method: str
    patterns: int
    cells: int


def compare(values, metrics, marks, plan, tested=None):
    """Test a family.

    Args:
        values: metric → float64 [A, T, S], finite.
        metrics: the family's, in order.
        marks: the epochs of axis T.
        plan: the contract's ``analysis``.
        tested: the marks that are tested; None takes those above 0.
    """
    differences = {metric: paired.require_finite(values[metric][1:] - values[metric][:1], metric) for metric in metrics}
    trained = np.flatnonzero(np.isin(marks, tested) if tested else np.array(marks) > 0)
    deltas = {metric: smallest_difference(metric, plan) for metric in metrics}
    arms, seeds = differences[metrics[0]].shape[0], differences[metrics[0]].shape[2]
    cells = np.concatenate([differences[metric][:, trained].reshape(-1, seeds) for metric in metrics])
    per_metric = arms * len(trained)
    scale = np.repeat([SPREAD_FLOOR * (deltas[metric] or 0.0) for metric in metrics], per_metric)
    test = paired.sign_flip(cells, scale)
    effects = {}
    for i, metric in enumerate(metrics):
        part = slice(i * per_metric, (i + 1) * per_metric)
        raw, adjusted = (_spread(p[part], arms, trained, len(marks)) for p in (test.raw, test.adjusted))
        effects[metric] = _effects(
            metric, deltas[metric], differences[metric], values[metric], raw, adjusted, trained, plan
        )
    return Family(
        effects=effects,
        marks=tuple(marks),
        seeds=seeds,
        attainable=test.attainable,
        method=test.method,
        patterns=test.patterns,
        cells=len(cells),
    )


def smallest_difference(metric, plan):
    """δ of a metric: the contract's δ_min, else its guardrail's margin where that is above 0, else None."""
    if metric in plan["delta_min"]:
        return plan["delta_min"][metric]
    margins = [guard["margin"] for guard in plan["guardrails"] if guard["metric"] == metric and guard["margin"] > 0]
    return margins[0] if margins else None


def underpowered(seeds, plan):
    """Whether this number of seeds can't support any verdict: below the contract's minimum, or no p reaches α."""
    return seeds < plan["minimum_seeds"] or paired.attainable_p(seeds) > plan["alpha"]


def mark_state(effects, t, plan):
    """``open``, or why a metric can't tell arms apart at a mark: ``tied``, ``floor``, ``ceiling``.

    Floor and ceiling are judged on the reference's mean: at the floor no arm can worsen, at the ceiling none improve.
    """
    if not effects.differences[:, t].any():
        return "tied"
    if effects.reference[t] <= plan["floor"].get(effects.metric, -np.inf):
        return "floor"
    return "ceiling" if effects.reference[t] >= plan["ceiling"].get(effects.metric, np.inf) else "open"


def _effects(metric, delta, differences, values, raw, adjusted, trained, plan):
    arms, count, seeds = differences.shape
    flat = differences.reshape(-1, seeds)
    summary = paired.summarize(flat, plan["alpha"])
    summary = Summary(**{name: array.reshape(arms, count) for name, array in vars(summary).items()})
    spread = np.sqrt(np.nan_to_num(summary.sd) ** 2 + (SPREAD_FLOOR * (delta or 0.0)) ** 2)
    standardized = np.divide(summary.mean, spread, out=np.zeros_like(summary.mean), where=spread > 0)
    equivalence = np.ones((arms, count))
    if delta is not None:
        equivalence = paired.equivalence_p(flat, delta).reshape(arms, count)
    means = values.mean(2)
    return Effects(
        metric=metric, delta=delta, differences=differences, reference=means[0], summary=summary,
        standardized=standardized, raw=raw, adjusted=adjusted, equivalence=equivalence,
        verdict=_verdicts(metric, means, adjusted, equivalence, trained, plan, seeds),
    )  # fmt: skip


def _verdicts(metric, means, adjusted, equivalence, trained, plan, seeds):
    """One verdict a cell. A later line overrules an earlier one; "not detected" is never "no effect"."""
    verdict = np.full(adjusted.shape, "inconclusive", dtype=object)
    verdict[equivalence <= plan["alpha"]] = "equivalent"
    with np.errstate(invalid="ignore"):
        verdict[adjusted <= plan["alpha"]] = "detected"
    if underpowered(seeds, plan):
        verdict[:] = "underpowered"
    floor, ceiling = plan["floor"].get(metric, -np.inf), plan["ceiling"].get(metric, np.inf)
    verdict[(means[1:] <= floor) & (means[:1] <= floor)] = "void_floor"
    verdict[(means[1:] >= ceiling) & (means[:1] >= ceiling)] = "void_ceiling"
    verdict[:, np.setdiff1d(np.arange(verdict.shape[1]), trained)] = None
    return verdict


def _spread(tested, arms, trained, marks):
    """Flat results of the trained marks as [A−1, T], NaN elsewhere."""
    full = np.full((arms, marks), np.nan)
    full[:, trained] = tested.reshape(arms, len(trained))
    return full
