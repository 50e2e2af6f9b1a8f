"""The decision: the smallest budget that tells interventions apart, by rules that were fixed before the data.

A mark is *responsive* for a metric when the metric is neither tied, floored nor at its ceiling there, at least one arm
improves it and at least one worsens it, each detected over the whole family and with the same sign on every seed, and
the improving arm keeps its guardrails. The budget is the smallest responsive mark; the primary metric is the
candidate with the larger standardized effect there, among those whose trial the contract's evaluation seeds suffice
for, if there is one. Where no mark is responsive the answer is a refusal that says what to change.
"""

import math

import numpy as np

from vqkit.analysis import effects as surface
from vqkit.analysis import paired, power
from vqkit.formats.calibration import CHANGES

REVERSALS_LISTED = 20


def assess(family, guard_status, labels, plan):
    """Every candidate metric at every trained mark, as plain records in the order of the contract.

    Args:
        family: ``effects.Family`` of the candidate metrics.
        guard_status: worst guardrail status [A−1, T].
        labels: of the arms on axis A−1.

    Returns:
        One dict for each metric and mark: metric, mark, state, responsive, better (arms that improve and keep their
        guardrails), worse, blocked (arms that improve but don't keep them), each list from the largest effect down.
    """
    records = []
    for metric, one in family.effects.items():
        for t, mark in enumerate(family.marks):
            if mark == 0:
                continue
            order = np.argsort(-np.abs(one.summary.mean[:, t]), kind="stable")
            detected = one.verdict[:, t] == "detected"
            better, worse = detected & (one.agreed[:, t] > 0), detected & (one.agreed[:, t] < 0)
            kept = guard_status[:, t] == "ok"
            gain, loss = sensitivity(one, t, kept)
            state = surface.mark_state(one, t, plan)
            records.append(
                {
                    "metric": metric,
                    "mark": int(mark),
                    "state": state,
                    "responsive": bool(state == "open" and (better & kept).any() and worse.any()),
                    "sensitivity": {"better": gain, "worse": loss},
                    "better": [labels[a] for a in order if better[a] and kept[a]],
                    "worse": [labels[a] for a in order if worse[a]],
                    "blocked": [labels[a] for a in order if better[a] and not kept[a]],
                }
            )
    return records


def decide(family, guard_status, labels, plan, assessed=None, fits=lambda metric, t: True):
    """The decision as plain data; see ``calibration.DECISION`` for its closed form, less the rank reversals.

    Args:
        family, guard_status, labels: as ``assess`` takes them; ``assessed`` what it returned, if it was called already.
        fits: function of a candidate and the number of a mark: whether there are evaluation seeds enough for its trial.
    """
    assessed = assess(family, guard_status, labels, plan) if assessed is None else assessed
    responsive = {metric: [] for metric in family.effects}
    for record in assessed:
        if record["responsive"]:
            responsive[record["metric"]].append(record["mark"])
    decision = {
        "status": "refused",
        "budget_mark": None,
        "primary_metric": None,
        "reasons": [],
        "known_better": [],
        "known_worse": [],
        "responsive_marks": responsive,
        "what_to_change": [],
    }
    marks = sorted(mark for found in responsive.values() for mark in found)
    if marks:
        _choose(decision, family, assessed, marks[0], labels, fits)
    else:
        _refuse(decision, family, assessed, plan)
    return decision


def note_seeds(decision, size, there, plan):
    """Add to a calibrated decision that its trial needs more evaluation seeds than the contract has.

    Args:
        size: the sample size of the primary metric, as calibration.json has it.
        there: the number of evaluation seeds.
    """
    ways = size["at_sigma_upper"]
    if decision["status"] != "calibrated" or (ways and ways["plan"] <= there):
        return
    needed = ways["plan"] if ways else None
    shown = power.detectable(there, size["sigma_upper"], plan["alpha"], plan["power"]) if size["sigma_upper"] else None
    text = f"the contract has {there} evaluation seeds, the trial needs {needed or 'more than can be named'}"
    if shown is not None and math.isfinite(shown):
        text += f"; {there} seeds would show a difference of {shown:.3g}"
    decision["reasons"].append(_reason("too_few_seeds", text, size["metric"], size["mark"]))
    text = "a contract with more evaluation seeds or a larger δ_min, declared before the data; or a less noisy metric"
    decision["what_to_change"].append(_change("add_seeds", text, needed))


def note_lost(decision, imputed_reference):
    """Add to a decision that the reference itself did not complete on some seeds."""
    if imputed_reference:
        seeds = ", ".join(map(str, imputed_reference))
        text = (
            f"the reference did not complete on seed {seeds}; its intention-to-treat value stands in every pair there"
        )
        decision["reasons"].append(_reason("imputed_reference", text))


def prescribed(calibration, assessed):
    """The decision of a confirmatory campaign: budget and metric are those of the calibration that it was planned from.

    Args:
        calibration: as campaign.json records it.
        assessed: as ``assess`` returns it.
    """
    mark, metric = calibration["budget_mark"], calibration["primary_metric"]
    here = next(one for one in assessed if (one["metric"], one["mark"]) == (metric, mark))
    text = f"{metric} at epoch {mark} was prescribed before the first run, by calibration {calibration['digest']}"
    return {
        "status": "confirmatory", "budget_mark": mark, "primary_metric": metric,
        "reasons": [_reason("prescribed", text, metric, mark)], "known_better": here["better"],
        "known_worse": here["worse"], "responsive_marks": _responsive(assessed), "what_to_change": [],
    }  # fmt: skip


def unprescribed(assessed):
    """The decision of a confirmatory campaign that no calibration prescribed anything to: none.

    Budget and metric that were chosen on the evaluation seeds would be confirmed by the data that chose them.

    Args:
        assessed: as ``assess`` returns it.
    """
    reason = "budget and metric of a confirmatory campaign are prescribed before its first run; here they were not"
    change = "plan the trial from a calibration: calibration=FILE"
    return {
        "status": "refused", "budget_mark": None, "primary_metric": None,
        "reasons": [_reason("not_prescribed", reason)], "known_better": [], "known_worse": [],
        "responsive_marks": _responsive(assessed), "what_to_change": [_change("plan_from_calibration", change)],
    }  # fmt: skip


def sensitivity(one, t, kept):
    """How strongly a metric responds at a mark: (largest improvement, largest worsening), standardized, each ≥ 0.

    Only improvements that keep their guardrails count; ``kept`` is bool [A−1].
    """
    shifts = one.standardized[:, t]
    return max(0.0, float(shifts[kept].max(initial=0.0))), max(0.0, float((-shifts).max()))


def rank_reversals(values, marks, labels):
    """Pairs of arms (the reference included) whose order at a mark is the opposite of that at the last mark.

    An order counts when it is the same on every seed. Descriptive: nothing is tested here.

    Args:
        values: metric → [A, T, S]; ``labels`` are of all A arms.

    Returns:
        (records from the largest down, at most 20; how many were found; how many orders were compared).
    """
    found, compared = [], 0
    for metric, array in values.items():
        means, last = array.mean(2), len(marks) - 1
        ahead_last = _ahead(array[:, last])
        for t, mark in enumerate(marks[:-1]):
            if mark == 0:
                continue
            compared += len(labels) * (len(labels) - 1) // 2
            for a, b in np.argwhere(_ahead(array[:, t]) & ahead_last.T):
                found.append(
                    {
                        "metric": metric,
                        "mark": int(mark),
                        "last_mark": int(marks[-1]),
                        "ahead_at_mark": labels[a],
                        "ahead_at_last": labels[b],
                        "difference_at_mark": float(means[a, t] - means[b, t]),
                        "difference_at_last": float(means[b, last] - means[a, last]),
                    }
                )
    found.sort(key=lambda one: -min(one["difference_at_mark"], one["difference_at_last"]))
    return found[:REVERSALS_LISTED], len(found), compared


def _ahead(values_AS):
    """Whether arm a lies above arm b on every seed: bool [A, A]."""
    ahead = np.ones((len(values_AS), len(values_AS)), dtype=bool)
    for seed in values_AS.T:
        ahead &= seed[:, None] > seed[None, :]
    return ahead


def _choose(decision, family, assessed, mark, labels, fits):
    """Fill in budget, primary metric and known arms."""
    t = family.marks.index(mark)
    here = {one["metric"]: one for one in assessed if one["mark"] == mark and one["responsive"]}
    strength = {metric: max(record["sensitivity"].values()) for metric, record in here.items()}
    fitting = [metric for metric in strength if fits(metric, t)]
    primary = max(fitting or strength, key=strength.get)  # the first of the contract where they are equal
    known = here[primary]
    decision.update(
        status="calibrated",
        budget_mark=mark,
        primary_metric=primary,
        known_better=known["better"],
        known_worse=known["worse"],
    )
    text = (
        f"epoch {mark} is the smallest mark with an arm that improves and one that worsens, both detected on every seed"
    )
    decision["reasons"].append(_reason("budget", text, primary, mark))
    if len(here) == 1:
        text = f"{primary} is the only candidate that responds at epoch {mark}"
        decision["reasons"].append(_reason("only_metric", text, primary, mark))
    else:
        ranking = ", ".join(
            f"{metric} {strength[metric]:.2f}" for metric in sorted(strength, key=lambda m: -strength[m])
        )
        if strength[primary] == max(strength.values()):
            text = f"{primary} has the largest standardized effect, |mean| / √(sd² + (δ_min/2)²): {ranking}"
            decision["reasons"].append(_reason("more_sensitive", text, primary, mark))
        else:
            text = f"only a trial judged by {_list(fitting)} fits the contract's evaluation seeds; effects: {ranking}"
            decision["reasons"].append(_reason("fits_seeds", text, primary, mark))
    one = family.effects[primary]
    turned = [
        label
        for label in (*known["better"], *known["worse"])
        if one.agreed[labels.index(label), t] * one.agreed[labels.index(label), -1] < 0
    ]
    if turned:
        last = family.marks[-1]
        text = f"{_list(turned)} point the other way on every seed at epoch {last}: the budget changes the answer"
        decision["reasons"].append(_reason("reversed_later", text, primary, mark))
    largest = float(one.summary.mean[:, t].max())
    if largest < one.delta:
        text = f"the largest improvement, {largest:.3g}, is below the smallest difference that matters, {one.delta:g}"
        decision["reasons"].append(_reason("below_delta_min", text, primary, mark))


def _refuse(decision, family, assessed, plan):
    """Say for each metric what stands in the way, and once what would remove it."""
    changes = {}
    if surface.underpowered(family.seeds, plan):
        least = max(plan["minimum_seeds"], power.seeds_floor(plan["alpha"]))
        text = (
            f"{family.seeds} seeds: the smallest attainable p is {family.attainable:.4g} (alpha {plan['alpha']:g}), "
            f"the contract asks for at least {plan['minimum_seeds']}"
        )
        decision["reasons"].append(_reason("underpowered", text))
        changes["add_seeds"] = _change("add_seeds", f"run at least {least} seeds", least)
    for metric, one in family.effects.items():
        mine = [record for record in assessed if record["metric"] == metric]
        states = {record["state"] for record in mine}
        for state, change, advice in (
            (
                "tied",
                "check_arms",
                "no arm differs from the reference in a single digit: check that the knobs reach it",
            ),
            ("floor", "train_longer", "the reference sits at the floor: train longer or use another reference"),
            ("ceiling", "other_metric", "the reference sits at the ceiling: use the other metric, or more codes"),
        ):
            marks = [record["mark"] for record in mine if record["state"] == state]
            if marks:
                text = f"{'all ties' if state == 'tied' else f'at its {state}'} at epoch {_list(marks)}"
                decision["reasons"].append(_reason(state, text, metric))
                if "open" not in states:
                    changes.setdefault(change, _change(change, advice))
        if "open" in states and not surface.underpowered(family.seeds, plan):
            _refuse_open(decision, changes, metric, one, mine, family, plan)
    decision["what_to_change"] = [changes[code] for code in CHANGES if code in changes]


def _refuse_open(decision, changes, metric, one, mine, family, plan):
    """What is lacking at the marks where the metric could have told arms apart."""
    mine = [record for record in mine if record["state"] == "open"]
    marks = _list([record["mark"] for record in mine])
    blocked = sorted({label for record in mine if not record["better"] for label in record["blocked"]})
    if blocked:
        text = f"improved by {_list(blocked[:6])}, whose guardrails are not ok (broken or inconclusive)"
        decision["reasons"].append(_reason("guardrail", text, metric))
        text = (
            "add milder levels of the arms that improve the metric without their guardrails; seeds, where inconclusive"
        )
        changes.setdefault("weaker_arms", _change("weaker_arms", text))
    missing = [
        word
        for word, keys in (("better", ("better", "blocked")), ("worse", ("worse",)))
        if not any(record[key] for record in mine for key in keys)
    ]
    for word in missing:
        text = f"no arm is detected as {word} on every seed at epoch {marks}"
        decision["reasons"].append(_reason(f"no_{word}_arm", text, metric))
    if not missing and not blocked:
        text = "arms that improve and arms that worsen are never detected at the same epoch"
        decision["reasons"].append(_reason("never_together", text, metric))
        changes.setdefault("train_longer", _change("train_longer", "add later marks, where both directions may show"))
    if missing:
        sigma = power.pooled_sigma(one.differences[:, -1])
        rules = one.delta, plan["alpha"], plan["power"]
        wanted = power.seeds_t(sigma, *rules) if sigma and power.feasible(sigma, *rules) else None
        if wanted and wanted > family.seeds:
            text = f"{wanted} seeds would show a difference of {one.delta:g} in {metric} with power {plan['power']:g}"
            if wanted > changes.get("add_seeds", {"seeds": 0})["seeds"]:
                changes["add_seeds"] = _change("add_seeds", text, wanted)
        text = f"add arms with stronger levels in the direction that is missing ({_list(missing)})"
        changes.setdefault("stronger_arms", _change("stronger_arms", text))


def _responsive(assessed):
    """metric → the marks at which it responds."""
    found = {record["metric"]: [] for record in assessed}
    for record in assessed:
        found[record["metric"]] += [record["mark"]] * record["responsive"]
    return found


def _reason(code, text, metric=None, mark=None):
    return {"code": code, "metric": metric, "mark": mark, "text": text}


def _change(code, text, seeds=None):
    return {"code": code, "seeds": seeds, "text": text}


def _list(values):
    return ", ".join(map(str, values))


def completion(imputed, labels, alpha):
    """Whether an arm fails more often than the reference: Fisher's exact test, Holm over the arms.

    Args:
        imputed: bool [A, S], true where a run did not complete; arm 0 is the reference.

    Returns:
        One dict an arm: arm, complete, failed, p (None for the reference), p_adjusted, fails_more.
    """
    seeds = imputed.shape[1]
    done = [int(count) for count in seeds - imputed.sum(1)]
    p = [paired.fisher_greater(done[0], seeds, count, seeds) for count in done[1:]]
    adjusted = paired.holm(p)
    records = [
        {
            "arm": labels[0],
            "complete": done[0],
            "failed": seeds - done[0],
            "p": None,
            "p_adjusted": None,
            "fails_more": False,
        }
    ]
    for label, count, raw, joint in zip(labels[1:], done[1:], p, adjusted, strict=True):
        records.append(
            {
                "arm": label,
                "complete": count,
                "failed": seeds - count,
                "p": raw,
                "p_adjusted": float(joint),
                "fails_more": bool(joint <= alpha),
            }
        )
    return records
