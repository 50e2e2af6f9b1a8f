"""A calibration in sentences, for terminal and report."""


def decision(value):
    """The decision in one sentence, with the cells that it rests on; of a refusal the reasons are in ``reasons``."""
    chosen, cells = value["decision"], value["cells"]
    lost = f"{cells['failed']} failed, {cells['missing']} missing"
    counts = f"{cells['complete']} of {cells['planned']} cells complete, {lost}"
    if chosen["status"] == "refused":
        found = {
            "development": "no mark can be shown to tell interventions apart",
            "confirmatory": "a confirmatory campaign doesn't choose the budget and the metric that it is judged by",
        }
        return f"Refused ({counts}): {found[value['campaign']['phase']]}."
    asked = f"{chosen['primary_metric']} at epoch {chosen['budget_mark']}"
    if chosen["status"] == "confirmatory":
        verdicts = ", ".join(
            f"{one['arm']} {one['mean']:+.3g} {(one['verdict'] or 'not tested').replace('_', ' ')}"
            for one in value["effects"]
            if (one["metric"], one["mark"]) == (chosen["primary_metric"], chosen["budget_mark"])
        )
        return f"Confirmatory ({counts}): {asked}, as prescribed: {verdicts}."
    size = next(size for size in value["sample_size"] if size["metric"] == chosen["primary_metric"])
    ways = size["at_sigma_upper"]
    plan = f"{ways['plan']} seeds" if ways else "an unknown number of seeds"
    return (
        f"Calibrated ({counts}): train {chosen['budget_mark']} epochs, judge by {chosen['primary_metric']}, "
        f"plan {plan} for a difference of {size['delta']:g}."
    )


def reasons(value):
    """Why, as sentences: what holds for several metrics alike is said once, what concerns one begins with its name."""
    grouped = {}
    for reason in value["decision"]["reasons"]:
        grouped.setdefault((reason["code"], reason["text"]), []).append(reason["metric"])
    lines = []
    for (code, text), metrics in grouped.items():
        named = [metric for metric in metrics if metric and metric not in text]
        chosen = code in (
            "budget",
            "reversed_later",
            "below_delta_min",
            "prescribed",
            "too_few_seeds",
            "fits_seeds",
        )  # these speak of the decision, not of a metric
        lines.append(f"{' and '.join(named)}: {text}" if named and not chosen else text)
    return lines


def changes(value):
    """What would have to change, as sentences."""
    return [change["text"] for change in value["decision"]["what_to_change"]]


def in_words(value):
    """The decision for a terminal, as lines."""
    chosen = value["decision"]
    lines = [decision(value), *(f"  {line}" for line in reasons(value))]
    for word in ("better", "worse"):
        labels = chosen[f"known_{word}"]
        if labels:
            more = f" and {len(labels) - 12} more" if len(labels) > 12 else ""
            kind = "detected as" if chosen["status"] == "confirmatory" else "known"
            lines.append(f"  {kind} {word}: {', '.join(labels[:12])}{more}")
    return [*lines, *(f"  to change: {line}" for line in changes(value))]
