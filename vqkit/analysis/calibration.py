"""calibration.json: what a campaign decided, in a closed form that a later campaign and a machine can rely on.

``build`` computes it from a loaded campaign; ``encode`` and ``parse`` hold it against the schema and against itself
(every arm, mark and metric that is named must exist), and write or accept canonical bytes only. Floats are kept to
12 significant digits, so that the last bits of a sum don't decide a digest.
"""

import math

import numpy as np

from vqkit.analysis import decide, effects, guardrails, load, paired, power, stance, surface
from vqkit.errors import Problem, Rejected, raise_all
from vqkit.formats import campaign, canonical, digests, knobs, schema
from vqkit.formats.contract import METRICS, QUALITY
from vqkit.formats.intervention import PHASES
from vqkit.formats.schema import COUNT, DIGEST, NAME, POSITIVE, TEXT, closed

NAME_ON_DISK = "calibration.json"
DIGITS = 12

_NUMBER = {"type": "number"}
_MAYBE = {"type": ["number", "null"]}
_P = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_METRIC = {"enum": [*METRICS, *QUALITY]}
_CANDIDATE = {"enum": list(METRICS)}
_MAYBE_CANDIDATE = {"enum": [*METRICS, None]}
_MAYBE_COUNT = {"type": ["integer", "null"], "minimum": 0}
_NAMES = {"type": "array", "items": NAME, "uniqueItems": True}
_KNOB = {"enum": list(knobs.KNOBS)}


def _list(item):
    return {"type": "array", "items": item}


REASON = closed(code={"enum": list(decide.REASONS)}, metric=_MAYBE_CANDIDATE, mark=_MAYBE_COUNT, text=TEXT)
CHANGE = closed(code={"enum": list(decide.CHANGES)}, seeds=_MAYBE_COUNT, text=TEXT)
REVERSAL = closed(
    metric=_CANDIDATE, mark=COUNT, last_mark=COUNT, ahead_at_mark=NAME, ahead_at_last=NAME,
    difference_at_mark=_NUMBER, difference_at_last=_NUMBER,
)  # fmt: skip
DECISION = closed(
    status={"enum": ["calibrated", "refused"]},
    budget_mark=_MAYBE_COUNT,
    primary_metric=_MAYBE_CANDIDATE,
    reasons=_list(REASON),
    known_better=_NAMES,
    known_worse=_NAMES,
    responsive_marks={
        "type": "object",
        "propertyNames": _CANDIDATE,
        "additionalProperties": {"type": "array", "items": POSITIVE, "uniqueItems": True},
    },
    rank_reversals=closed(found=COUNT, compared=COUNT, largest=_list(REVERSAL)),
    what_to_change=_list(CHANGE),
)
ASSESSMENT = closed(
    metric=_CANDIDATE, mark=POSITIVE, state={"enum": ["open", "tied", "floor", "ceiling"]},
    responsive={"type": "boolean"}, sensitivity=closed(better=_NUMBER, worse=_NUMBER),
    better=_NAMES, worse=_NAMES, blocked=_NAMES,
)  # fmt: skip
EFFECT = closed(
    arm=NAME, mark=COUNT, metric=_METRIC, n=POSITIVE, arm_mean=_NUMBER, reference_mean=_NUMBER,
    mean=_NUMBER, sd=_MAYBE, t_interval={"oneOf": [{"type": "null"}, {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}]},
    bootstrap_interval={"oneOf": [{"type": "null"}, {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}]},
    p=_P, p_adjusted=_P, p_equivalence=_P, standardized=_NUMBER,
    positive=COUNT, negative=COUNT, variance_estimable={"type": "boolean"},
    verdict={"enum": [*effects.VERDICTS, None]},
)  # fmt: skip
GUARDRAIL = closed(
    arm=NAME, mark=COUNT, metric={"enum": list(QUALITY)}, margin=_NUMBER, limit=_NUMBER, mean=_NUMBER,
    low=_MAYBE, high=_MAYBE, relative={"enum": list(guardrails.STATUSES)}, absolute={"enum": list(guardrails.STATUSES)},
    status={"enum": list(guardrails.STATUSES)},
)  # fmt: skip
WAYS = closed(normal=POSITIVE, t=POSITIVE, permutation_floor=POSITIVE, plan=POSITIVE)
SAMPLE_SIZE = closed(
    metric=_CANDIDATE, mark=COUNT, arms=_NAMES, df=COUNT, delta=_NUMBER, sigma=_MAYBE,
    sigma_interval={"oneOf": [{"type": "null"}, {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}]},
    sigma_upper=_MAYBE, at_sigma={"oneOf": [{"type": "null"}, WAYS]}, at_sigma_upper={"oneOf": [{"type": "null"}, WAYS]},
)  # fmt: skip
COST = closed(
    seconds_per_cell=_MAYBE, measured_cells=COUNT, seeds=_MAYBE_COUNT, cells=_MAYBE_COUNT, epochs=_MAYBE_COUNT,
    hours=_MAYBE, unit={"enum": ["GPU hours", "CPU hours"]},
)  # fmt: skip
TERM = closed(name={"type": "string", "maxLength": 200}, estimate=_NUMBER, se=_MAYBE, low=_MAYBE, high=_MAYBE)
SURFACE = closed(
    metric=_CANDIDATE, status={"enum": ["fitted", "not_estimable"]}, note=TEXT, knobs=_list(_KNOB),
    interactions=_list(_list(_KNOB)), missing_interactions=_list(_list(_KNOB)), excluded=_NAMES,
    observations=COUNT, r_squared=_MAYBE, terms=_list(TERM),
)  # fmt: skip
STANCE = closed(
    arm=NAME, metric=_METRIC, expected={"enum": list(stance.DIRECTIONS)}, mark=COUNT,
    stance={"enum": [*stance.STANCES, None]}, reason={"enum": list(stance.REASONS)},
)  # fmt: skip
SCHEMA = closed(
    schema={"const": "vqkit.calibration/1"},
    campaign=closed(name=NAME, digest=DIGEST, frozen=DIGEST, unblinded=DIGEST, phase={"enum": list(PHASES)}),
    contract=closed(name=NAME, digest=DIGEST),
    analysis=closed(digest=DIGEST, plan={"type": "object"}),
    dataset=closed(id=NAME, digest=DIGEST),
    device=closed(device={"enum": ["cpu", "cuda"]}, threads=POSITIVE, environment=DIGEST),
    source=DIGEST,
    seeds=_list(COUNT),
    marks=_list(COUNT),
    cells=closed(planned=COUNT, complete=COUNT, failed=COUNT, missing=COUNT),
    test=closed(
        statistic={"const": "step-down max-|T|, T = sqrt(n) mean / sqrt(sd^2 + delta_min^2)"},
        method={"enum": ["exact", "monte_carlo"]},
        patterns=POSITIVE,
        family_cells=COUNT,
        p_attainable=_P,
    ),  # fmt: skip
    decision=DECISION,
    assessments=_list(ASSESSMENT),
    arms=_list(
        closed(
            label=NAME,
            role={"enum": ["reference", "arm"]},
            effective=knobs.assignment_schema(),
            status={"enum": ["reference", "effective", "no_effect"]},
            complete=COUNT,
            failed=COUNT,
            p_fails_more=_P,
            fails_more={"type": "boolean"},
        )
    ),  # fmt: skip
    effects=_list(EFFECT),
    guardrails=_list(GUARDRAIL),
    surface=_list(SURFACE),
    sample_size=_list(SAMPLE_SIZE),
    confirmatory=COST,
    stance=_list(STANCE),
)


def build(loaded):
    """The calibration of a loaded campaign, as plain data."""
    plan, contract = loaded.contract.analysis, loaded.contract
    labels = loaded.labels
    family = effects.compare(loaded.values, tuple(plan["metrics"]), loaded.marks, plan)
    quality = effects.compare(loaded.values, _defined(loaded, plan), loaded.marks, plan)
    guards = [guardrails.judge(loaded.values[one["metric"]], one, plan["alpha"]) for one in plan["guardrails"]]
    status = guardrails.combined(guards, (len(labels) - 1, len(loaded.marks)))
    assessed = decide.assess(family, status, labels[1:], plan)
    lost = [seed for s, seed in enumerate(loaded.seeds) if loaded.imputed[0, s]]
    decision = decide.decide(family, status, labels[1:], plan, assessed, lost)
    candidates = {metric: loaded.values[metric] for metric in plan["metrics"]}
    largest, found, compared = decide.rank_reversals(candidates, loaded.marks, labels)
    decision["rank_reversals"] = {"found": found, "compared": compared, "largest": largest}
    for record in assessed:
        better, worse = decide.sensitivity(family.effects[record["metric"]], loaded.marks.index(record["mark"]))
        record["sensitivity"] = {"better": better, "worse": worse}
    at = loaded.marks.index(decision["budget_mark"]) if decision["budget_mark"] else len(loaded.marks) - 1
    sizes = [_sample_size(one, loaded, at, plan) for one in family.effects.values()]
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
            "device": loaded.plan["device"], "threads": loaded.plan["threads"],
            "environment": loaded.plan["digests"]["environment"],
        },
        "source": loaded.plan["digests"]["source"],
        "seeds": list(loaded.seeds),
        "marks": list(loaded.marks),
        "cells": loaded.tally,
        "test": {
            "statistic": "step-down max-|T|, T = sqrt(n) mean / sqrt(sd^2 + delta_min^2)", "method": family.method,
            "patterns": family.patterns, "family_cells": family.cells, "p_attainable": family.attainable,
        },
        "decision": decision,
        "assessments": assessed,
        "arms": _arms(loaded, plan),
        "effects": _effect_records([family, quality], loaded, plan),
        "guardrails": _guardrail_records(guards, loaded),
        "surface": [surface.fit(loaded, one, plan["alpha"]) for one in family.effects.values()],
        "sample_size": sizes,
        "confirmatory": _cost(loaded, decision, sizes, at),
        "stance": stance.stances(loaded.arms, loaded.verified, [family, quality], at),
    }  # fmt: skip
    return _rounded(value)


def encode(value):
    """Canonical bytes; raises ``Rejected`` where the value is not of the schema or names what does not exist."""
    raise_all(Rejected, _problems(value))
    return canonical.dumps(value)


def parse(data, where=NAME_ON_DISK):
    """A calibration from its bytes; raises ``Rejected`` with every problem."""
    value = canonical.loads_canonical(data, where=where, max_bytes=campaign.MAX_BYTES)
    raise_all(Rejected, _problems(value))
    return value


def sentence(value):
    """The decision in one or two sentences, with the cells that it rests on."""
    decision, cells = value["decision"], value["cells"]
    counts = f"{cells['complete']} of {cells['planned']} cells complete, {cells['failed']} failed, {cells['missing']} missing"
    if decision["status"] == "refused":
        why = "; ".join(reason["text"] for reason in decision["reasons"])
        what = "; ".join(change["text"] for change in decision["what_to_change"])
        return f"Refused ({counts}): {why}. To change: {what}."
    size = next(size for size in value["sample_size"] if size["metric"] == decision["primary_metric"])
    ways = size["at_sigma_upper"]
    plan = f"{ways['plan']} seeds for a difference of {size['delta']:g}" if ways else "an unknown number of seeds"
    return (
        f"Calibrated ({counts}): train {decision['budget_mark']} epochs, judge by {decision['primary_metric']}, "
        f"plan {plan}. Better: {', '.join(decision['known_better'])}. Worse: {', '.join(decision['known_worse'])}."
    )


def digest(data):
    """The digest of calibration.json as written."""
    return digests.digest("calibration", data)


def _problems(value):
    found = schema.problems(value, SCHEMA, NAME_ON_DISK)
    return found or list(_dangling(value))


def _dangling(value):
    """Names of arms, marks and metrics that this calibration does not have, and a decision that contradicts itself."""

    def bad(where, expected, actual):
        return Problem(code="E_SCHEMA_VALUE", where=f"{NAME_ON_DISK}.{where}", expected=expected, found=str(actual))

    labels = [arm["label"] for arm in value["arms"]]
    roles = [arm["role"] for arm in value["arms"]]
    if len(set(labels)) != len(labels) or roles.count("reference") != 1:
        yield bad("arms", "different labels and one reference", f"{len(labels)} arms")
    decision, marks = value["decision"], set(value["marks"])
    metrics = set(value["analysis"]["plan"].get("metrics", ()))
    named = [("decision.known_better", decision["known_better"]), ("decision.known_worse", decision["known_worse"])]
    named += [
        (f"{key}[{i}].arm", [record["arm"]])
        for key in ("effects", "guardrails", "stance")
        for i, record in enumerate(value[key])
    ]
    named += [
        (f"assessments[{i}]", record["better"] + record["worse"] + record["blocked"])
        for i, record in enumerate(value["assessments"])
    ]
    named += [
        (f"decision.rank_reversals.largest[{i}]", [record["ahead_at_mark"], record["ahead_at_last"]])
        for i, record in enumerate(decision["rank_reversals"]["largest"])
    ]
    known = set(labels)
    for where, used in named:
        for label in used:
            if label not in known:
                yield bad(where, "an arm of this calibration", label)
    for key in ("effects", "guardrails", "stance", "assessments"):
        for i, record in enumerate(value[key]):
            if record["mark"] not in marks:
                yield bad(f"{key}[{i}].mark", f"one of {sorted(marks)}", record["mark"])
    cells = value["cells"]
    if cells["planned"] != cells["complete"] + cells["failed"] + cells["missing"]:
        yield bad("cells", "planned = complete + failed + missing", cells)
    yield from _incoherent(decision, metrics, bad)


def _incoherent(decision, metrics, bad):
    chosen = decision["budget_mark"], decision["primary_metric"]
    if decision["status"] == "refused":
        if (
            chosen != (None, None)
            or decision["known_better"]
            or decision["known_worse"]
            or not decision["what_to_change"]
        ):
            yield bad("decision", "a refusal without a choice and with something to change", chosen)
    elif None in chosen:
        yield bad("decision", "a budget and a primary metric", chosen)
    elif chosen[0] not in decision["responsive_marks"].get(chosen[1], []):
        yield bad("decision.budget_mark", f"a responsive mark of {chosen[1]}", chosen[0])
    elif not decision["known_better"] or not decision["known_worse"]:
        yield bad("decision", "a known-better and a known-worse arm", "none")
    for metric in {*decision["responsive_marks"], *filter(None, [chosen[1]])} - metrics:
        yield bad("decision", f"metrics of the analysis plan ({', '.join(sorted(metrics))})", metric)


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
                        "arm_mean": means[a + 1, t], "reference_mean": means[0, t], "mean": s.mean[at], "sd": s.sd[at],
                        "t_interval": _pair(s.low[at], s.high[at]), "bootstrap_interval": _pair(boot[0][at], boot[1][at]),
                        "p": one.raw[at], "p_adjusted": one.adjusted[at],
                        "p_equivalence": one.equivalence[at] if one.delta is not None and mark else None,
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
        for key, value in (("at_sigma", sigma), ("at_sigma_upper", upper)):
            record[key] = power.three_ways(value, one.delta, plan["alpha"], plan["power"])
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
