"""The fitted response surface: paired differences over log level × log epoch for each numeric knob (statsmodels).

The response is the difference to the reference of the same seed and mark, so seeds and plain training time cancel and
the surface is 0 at the reference by construction: no intercept, no term without a knob. For a knob with level x
(log10 of level / baseline; log10(1 + level) for a knob whose baseline is 0) and epoch e (log2, centred) the terms are
x, x², x·e and x²·e, as far as there are levels and marks for them. Interactions between two knobs are fitted where
arms exist that move both. The design is the same for every seed, so the joint least-squares estimate is the mean of
the estimates of each seed alone; their spread gives standard errors that hold whatever the correlation inside a seed,
with t limits on S − 1 degrees of freedom.
"""

import math
from itertools import combinations

import numpy as np
import statsmodels.api as sm

from vqkit.analysis import paired
from vqkit.formats import knobs


def position(name, level, baseline):
    """A level on the log axis of its knob, 0 at the baseline; None where log level does not exist."""
    if baseline == 0:
        return math.log10(1 + level)
    return math.log10(level / baseline) if level > 0 else None


def fit(loaded, effects, alpha):
    """Fit one metric.

    Returns:
        A dict: metric, status (``fitted`` or ``not_estimable``), note, knobs, interactions (pairs that could be
        estimated), missing_interactions (pairs that no arm moves together), excluded arms, observations, r_squared,
        and terms (name, estimate, se, low, high; se and limits None where they are not estimable).
    """
    baseline = loaded.arms[0]["effective"]
    placed, excluded = _place(loaded.arms, baseline)
    names = [name for name in knobs.KNOBS if any(name in where for where in placed.values())]
    corner = {pair for where in placed.values() for pair in combinations([n for n in names if n in where], 2)}
    pairs = [pair for pair in combinations(names, 2) if pair in corner]
    result = {
        "metric": effects.metric, "status": "not_estimable", "note": "", "knobs": names,
        "interactions": [list(pair) for pair in pairs],
        "missing_interactions": [list(pair) for pair in combinations(names, 2) if pair not in corner],
        "excluded": excluded, "observations": 0, "r_squared": None, "terms": [],
    }  # fmt: skip
    trained = [t for t, mark in enumerate(loaded.marks) if mark > 0]
    if not names:
        return result | {"note": "no arm changes numeric knobs alone"}
    terms = _terms(placed, names, pairs, loaded.marks, trained)
    rows = [(a, t) for a in placed for t in trained]
    epochs = _epochs(loaded.marks, trained)
    design = np.array([[value(placed[a], epochs[t]) for _, value in terms] for a, t in rows])
    seeds = len(loaded.seeds)
    response = np.array([effects.differences[a - 1, t] for a, t in rows])
    seeds = response.shape[1]
    result["observations"] = response.size
    if np.linalg.matrix_rank(design) < design.shape[1] or len(design) <= design.shape[1]:
        return result | {"note": "the arms' levels and the marks do not tell the terms apart"}
    if not response.any():
        return result | {"note": "all differences are zero"}
    joint = sm.OLS(response.T.reshape(-1), np.tile(design, (seeds, 1))).fit()
    alone = np.linalg.lstsq(design, response, rcond=None)[0]
    spread = paired.summarize(alone, alpha)
    result["terms"] = [
        {
            "name": name,
            "estimate": float(joint.params[i]),
            "se": _known(spread.sd[i] / math.sqrt(seeds)),
            "low": _known(spread.low[i]),
            "high": _known(spread.high[i]),
        }
        for i, (name, _) in enumerate(terms)
    ]
    note = f"{len(terms)} terms over {len(rows)} cells of arm and mark, {seeds} seeds"
    return result | {"status": "fitted", "note": note, "r_squared": float(1 - joint.ssr / (response**2).sum())}


def predict_at(surface, name, x, mark, marks):
    """The fitted effect of one knob alone at a position and a mark, from a surface as ``fit`` returns it."""
    trained = [t for t, epoch in enumerate(marks) if epoch > 0]
    e = _epochs(marks, trained)[marks.index(mark)]
    values = {name: x, f"{name}^2": x * x, f"{name}:epoch": x * e, f"{name}^2:epoch": x * x * e}
    return sum(term["estimate"] * values[term["name"]] for term in surface["terms"] if term["name"] in values)


def _place(arms, baseline):
    """Arm index → {knob: position} for arms that move numeric knobs only; labels of those that can't be placed."""
    placed, excluded = {}, []
    for a, arm in enumerate(arms[1:], start=1):
        moved = {name: arm["effective"][name] for name in knobs.KNOBS if arm["effective"][name] != baseline[name]}
        numeric = [name for name in moved if not knobs.KNOBS[name].choices]
        where = {name: position(name, moved[name], baseline[name]) for name in numeric}
        if not moved or len(numeric) < len(moved) or None in where.values():
            excluded.append(arm["label"])
        else:
            placed[a] = where
    return placed, excluded


def _terms(placed, names, pairs, marks, trained):
    """(name, function of an arm's positions and the centred log epoch) for every term that the arms can carry."""
    terms = []
    for name in names:
        levels = {where[name] for where in placed.values() if name in where}
        powers = (1, 2) if len(levels) > 1 else (1,)
        for power in powers:
            label = name if power == 1 else f"{name}^2"
            terms.append((label, lambda where, e, n=name, p=power: where.get(n, 0.0) ** p))
            if len(trained) > 1:
                terms.append((f"{label}:epoch", lambda where, e, n=name, p=power: where.get(n, 0.0) ** p * e))
    for first, second in pairs:
        terms.append((f"{first}:{second}", lambda where, e, a=first, b=second: where.get(a, 0.0) * where.get(b, 0.0)))
    return terms


def _epochs(marks, trained):
    """log2 of each trained mark, centred; keyed by the mark's index."""
    logs = {t: math.log2(marks[t]) for t in trained}
    centre = sum(logs.values()) / len(logs) if logs else 0.0
    return {t: value - centre for t, value in logs.items()}


def _known(value):
    return float(value) if math.isfinite(value) else None
