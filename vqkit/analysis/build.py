"""From a loaded campaign to the plain data of calibration.json: every record that its schema names.

Floats are kept to 12 significant digits, so that the last bits of a sum don't decide a digest.
"""

import math
from dataclasses import replace

import numpy as np

from vqkit.analysis import decide, effects, guardrails, paired, power, stance, surface
from vqkit.formats.calibration import STATISTIC, table_digest
from vqkit.formats.contract import QUALITY

DIGITS = 12


def build(loaded, csv):
    """The calibration of a loaded campaign, as plain data; ``csv`` is its table as written, to be bound by digest."""
    plan, contract = loaded.contract.analysis, loaded.contract
    labels = loaded.labels
    prescribed = loaded.plan.get("calibration")
    family, rest = _families(loaded, plan, prescribed)
    candidates = replace(family, effects={metric: _of((family, rest), metric) for metric in plan["metrics"]})
    guards = [guardrails.judge(loaded.values[one["metric"]], one, plan["alpha"]) for one in plan["guardrails"]]
    status = guardrails.combined(guards, (len(labels) - 1, len(loaded.marks)))
    assessed = decide.assess(candidates, status, labels[1:], plan)
    lost = [seed for s, seed in enumerate(loaded.seeds) if loaded.imputed[0, s]]
    there = len(contract.seeds("confirmatory"))

    def fits(metric, t):
        ways = _sample_size(candidates.effects[metric], loaded, t, plan)["at_sigma_upper"]
        return ways is not None and ways["plan"] <= there

    if prescribed:
        decision = decide.prescribed(prescribed, assessed)
    elif loaded.plan["phase"] == "confirmatory":
        decision = decide.unprescribed(assessed)
    else:
        decision = decide.decide(family, status, labels[1:], plan, assessed, fits)
    decide.note_lost(decision, lost)
    values = {metric: loaded.values[metric] for metric in plan["metrics"]}
    largest, found, compared = decide.rank_reversals(values, loaded.marks, labels)
    decision["rank_reversals"] = {"found": found, "compared": compared, "largest": largest}
    at = loaded.marks.index(decision["budget_mark"]) if decision["budget_mark"] else len(loaded.marks) - 1
    sizes = [_sample_size(one, loaded, at, plan) for one in candidates.effects.values()]
    for size in sizes:
        if size["metric"] == decision["primary_metric"]:
            decide.note_seeds(decision, size, there, plan)
    value = {
        "schema": "vqkit.calibration/1",
        "campaign": {
            "name": loaded.plan["name"], "digest": loaded.digests["campaign"], "frozen": loaded.digests["frozen"],
            "unblinded": loaded.digests["unblinded"], "phase": loaded.plan["phase"],
        },
        "contract": {"name": contract.name, "digest": contract.digest},
        "analysis": {"digest": contract.analysis_digest, "plan": plan},
        "dataset": loaded.plan["dataset"],
        "device": {
            "device": loaded.plan["device"], "device_class": loaded.device_class, "threads": loaded.plan["threads"],
            "environment": loaded.plan["digests"]["environment"],
        },
        "source": loaded.plan["digests"]["source"],
        "seeds": list(loaded.seeds),
        "marks": list(loaded.marks),
        "cells": loaded.tally,
        "results": table_digest(csv),
        "test": {
            "statistic": STATISTIC, "method": family.method,
            "patterns": family.patterns, "family_cells": family.cells, "p_attainable": family.attainable,
        },
        "decision": decision,
        "assessments": assessed,
        "arms": _arms(loaded, plan),
        "effects": _effect_records([family, rest], loaded, plan),
        "guardrails": _guardrail_records(guards, loaded),
        "surface": [surface.fit(loaded, one, plan["alpha"]) for one in candidates.effects.values()],
        "sample_size": sizes,
        "confirmatory": _cost(loaded, decision, sizes, at),
        "stance": stance.stances(loaded.arms, loaded.verified, [family, rest], at),
    }  # fmt: skip
    return _rounded(value)


def _families(loaded, plan, prescribed):
    """(what decides, the rest): candidates at all trained marks, or what a calibration prescribed and no more."""
    rest = _defined(loaded, plan)
    if not prescribed:
        first = effects.compare(loaded.values, tuple(plan["metrics"]), loaded.marks, plan)
    else:
        primary, mark = prescribed["primary_metric"], prescribed["budget_mark"]
        first = effects.compare(loaded.values, (primary,), loaded.marks, plan, tested=[mark])
        rest = (*(metric for metric in plan["metrics"] if metric != primary), *rest)
    return first, effects.compare(loaded.values, rest, loaded.marks, plan)


def _of(families, metric):
    return next(family.effects[metric] for family in families if metric in family.effects)


def _defined(loaded, plan):
    """The quality metrics that have a value in every cell (imputed ones need one in the contract)."""
    return tuple(metric for metric in QUALITY if np.isfinite(loaded.values[metric]).all())


def _arms(loaded, plan):
    records = decide.completion(loaded.imputed, loaded.labels, plan["alpha"])
    return [
        {
            "label": arm["label"], "role": arm["role"], "effective": arm["effective"], "status": arm["status"],
            "complete": record["complete"], "failed": record["failed"], "p_fails_more": record["p_adjusted"],
            "fails_more": record["fails_more"],
        }
        for arm, record in zip(loaded.arms, records, strict=True)
    ]  # fmt: skip


def _effect_records(families, loaded, plan):
    """One record an arm, mark and metric."""
    blocks = []
    for family in families:
        for metric, one in family.effects.items():
            shape = one.summary.mean.shape
            low, high = paired.bootstrap_interval(one.differences.reshape(-1, family.seeds), plan["alpha"])
            boot = low.reshape(shape), high.reshape(shape)
            blocks.append((metric, one, boot, loaded.values[metric].mean(2)))
    records = []
    for a, label in enumerate(loaded.labels[1:]):
        for t, mark in enumerate(loaded.marks):
            for metric, one, boot, means in blocks:
                s, at = one.summary, (a, t)
                records.append(
                    {
                        "arm": label, "mark": mark, "metric": metric, "n": len(loaded.seeds),
                        "arm_mean": means[a + 1, t], "reference_mean": means[0, t], "mean": s.mean[at],
                        "sd": s.sd[at], "t_interval": _pair(s.low[at], s.high[at]),
                        "bootstrap_interval": _pair(boot[0][at], boot[1][at]),
                        "p": one.raw[at], "p_adjusted": one.adjusted[at],
                        "p_equivalence": one.equivalence[at] if one.delta is not None and one.verdict[at] else None,
                        "standardized": one.standardized[at], "positive": s.positive[at], "negative": s.negative[at],
                        "variance_estimable": bool(len(loaded.seeds) > 1 and not s.constant[at]),
                        "verdict": one.verdict[at],
                    }
                )  # fmt: skip
    return records


def _guardrail_records(guards, loaded):
    return [
        {
            "arm": label, "mark": mark, "metric": one.metric, "margin": one.margin, "limit": one.limit,
            "mean": one.mean[a, t], "low": one.low[a, t], "high": one.high[a, t], "relative": one.relative[a, t],
            "absolute": one.absolute[a, t], "status": one.status[a, t],
        }
        for a, label in enumerate(loaded.labels[1:])
        for t, mark in enumerate(loaded.marks)
        for one in guards
    ]  # fmt: skip


def _sample_size(one, loaded, t, plan):
    """σ of the paired differences at a mark, pooled over arms that completed on every seed, and n for it."""
    complete = ~loaded.imputed.any(1)
    used = [a for a in range(1, len(loaded.arms)) if complete[a] and complete[0]] or list(range(1, len(loaded.arms)))
    sigma = power.pooled_sigma(one.differences[[a - 1 for a in used], t])
    record = {
        "metric": one.metric, "mark": loaded.marks[t], "arms": [loaded.labels[a] for a in used],
        "df": len(loaded.seeds) - 1, "delta": one.delta, "sigma": sigma, "sigma_interval": None, "sigma_upper": None,
        "at_sigma": None, "at_sigma_upper": None,
    }  # fmt: skip
    if sigma is not None:
        low, high, upper = power.sigma_limits(sigma, record["df"], plan["alpha"])
        record["sigma_interval"], record["sigma_upper"] = [low, high], upper
        rules = one.delta, plan["alpha"], plan["power"]
        for key, value in (("at_sigma", sigma), ("at_sigma_upper", upper)):
            if power.feasible(value, *rules):
                record[key] = power.three_ways(value, *rules)
    return record


def _cost(loaded, decision, sizes, t):
    """What a trial of one arm against the reference costs: n at the upper σ, at the budget, as measured here."""
    seconds = float(np.mean(loaded.seconds)) if loaded.seconds else None
    primary = [size for size in sizes if size["metric"] == decision["primary_metric"]]
    ways = primary[0]["at_sigma_upper"] if primary else None
    epochs, seeds = decision["budget_mark"], ways["plan"] if ways else None
    hours = None
    if seconds is not None and seeds and epochs:
        at_budget = seconds * epochs / loaded.marks[-1]
        workers = loaded.plan["threads"] if loaded.plan["device"] == "cpu" else 1
        hours = 2 * seeds * at_budget * workers / 3600
    return {
        "seconds_per_cell": seconds, "measured_cells": len(loaded.seconds), "seeds": seeds,
        "cells": 2 * seeds if seeds else None, "epochs": epochs, "hours": hours,
        "unit": "GPU hours" if loaded.plan["device"] == "cuda" else "CPU hours",
    }  # fmt: skip


def _pair(low, high):
    return [low, high] if math.isfinite(low) and math.isfinite(high) else None


def _rounded(value):
    """Plain JSON values: numpy scalars unpacked, floats to 12 significant digits, NaN and infinity as null."""
    if isinstance(value, dict):
        return {key: _rounded(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(child) for child in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        return float(f"{value:.{DIGITS}g}") + 0.0 if math.isfinite(value) else None
    return value
