"""Stance: does authentic evidence support, contradict or leave open what an arm's author expected?

Apart from verification, in another vocabulary. An arm has a stance only where every run of it and of the reference
passed verification; for the others the stance is null and the reason says so. The result is read at the calibrated
budget for every arm alike, or at the last mark where the calibration was refused.
"""

SIGNS = {"increase": 1, "decrease": -1, "no_change": 0}


def stances(arms, verified, families, t):
    """One record for each arm but the reference.

    Args:
        arms: as in unblinded.json, the reference first.
        verified: bool [A, S].
        families: ``effects.Family`` objects that together hold every metric that can be expected.
        t: the index of the mark at which the result is read.
    """
    effects = {metric: one for family in families for metric, one in family.effects.items()}
    records = []
    for a, arm in enumerate(arms[1:]):
        metric, direction = arm["expected"]["metric"], arm["expected"]["direction"]
        one = effects.get(metric)
        if not (verified[0].all() and verified[a + 1].all()) or one is None:
            stance, reason = None, "unverified"
        elif arm["status"] == "no_effect":
            stance, reason = "inconclusive", "no_effect"
        else:
            stance, reason = judge(one.verdict[a, t], float(one.summary.mean[a, t]), SIGNS[direction])
        records.append(
            {
                "arm": arm["label"],
                "metric": metric,
                "expected": direction,
                "mark": int(families[0].marks[t]),
                "stance": stance,
                "reason": reason,
            }
        )
    return records


def judge(verdict, mean, expected):
    """(stance, reason) of one verdict; ``expected`` is +1, −1 or 0 for no change."""
    if verdict == "detected":
        agrees = expected != 0 and (mean > 0) == (expected > 0)
        return ("supported", "as_expected") if agrees else ("contradicted", "opposite")
    if verdict == "equivalent":
        return ("contradicted", "equivalent") if expected else ("supported", "as_expected")
    if verdict in ("void_floor", "void_ceiling"):
        return "inconclusive", "void"
    return "inconclusive", "underpowered" if verdict == "underpowered" else "not_detected"
