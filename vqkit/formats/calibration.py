"""calibration.json: what a campaign decided, in a closed form that a later campaign and a machine can rely on.

The analysis writes it; a confirmatory campaign is planned from it.

``encode`` and ``parse`` hold it against the schema and against itself (every arm, mark and metric that is named must
exist, and the decision must not contradict itself), and write or accept canonical bytes only.
"""

from vqkit.errors import Problem, Rejected, raise_all
from vqkit.formats import campaign, canonical, digests, knobs, schema
from vqkit.formats.contract import METRICS, QUALITY
from vqkit.formats.intervention import PHASES
from vqkit.formats.schema import COUNT, DIGEST, NAME, POSITIVE, TEXT, closed

NAME_ON_DISK = "calibration.json"
STATUSES = ("calibrated", "refused", "confirmatory")  # the last: budget and metric were prescribed by another one
REASONS = (
    "budget", "only_metric", "more_sensitive", "below_delta_min", "reversed_later", "imputed_reference", "prescribed",
    "too_few_seeds", "fits_seeds",
    "underpowered", "tied", "floor", "ceiling", "guardrail", "no_better_arm", "no_worse_arm", "never_together",
    "not_prescribed",
)  # fmt: skip
CHANGES = (
    "add_seeds", "train_longer", "other_metric", "weaker_arms", "stronger_arms", "check_arms", "plan_from_calibration",
)  # fmt: skip
VERDICTS = ("detected", "equivalent", "inconclusive", "underpowered", "void_floor", "void_ceiling")
GUARDRAIL_STATUSES = ("ok", "inconclusive", "broken")  # from best to worst
STANCES = ("supported", "contradicted", "inconclusive")
STANCE_REASONS = (
    "as_expected",  # detected in the direction expected, or equivalent where no change was
    "opposite",  # detected in the other direction, or detected where no change was expected
    "equivalent",  # a change was expected, and one as large as δ is excluded
    "not_detected",
    "underpowered",
    "void",  # at the floor or the ceiling
    "no_effect",  # the manipulation changed nothing that executes
    "unverified",  # some run of the arm or of the reference did not pass verification
)
DIRECTIONS = ("increase", "decrease", "no_change")
STATISTIC = "step-down max-|T|, T = sqrt(n) mean / sqrt(sd^2 + (delta_min / 2)^2)"

_NUMBER = {"type": "number"}
_MAYBE = {"type": ["number", "null"]}
_P = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_METRIC = {"enum": [*METRICS, *QUALITY]}
_CANDIDATE = {"enum": list(METRICS)}
_MAYBE_CANDIDATE = {"enum": [*METRICS, None]}
_MAYBE_COUNT = {"type": ["integer", "null"], "minimum": 0}
_NAMES = {"type": "array", "items": NAME, "uniqueItems": True}
_KNOB = {"enum": list(knobs.KNOBS)}
_INTERVAL = {"anyOf": [{"type": "null"}, {"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}]}


def _list(item):
    return {"type": "array", "items": item}


REASON = closed(code={"enum": list(REASONS)}, metric=_MAYBE_CANDIDATE, mark=_MAYBE_COUNT, text=TEXT)
CHANGE = closed(code={"enum": list(CHANGES)}, seeds=_MAYBE_COUNT, text=TEXT)
REVERSAL = closed(
    metric=_CANDIDATE, mark=COUNT, last_mark=COUNT, ahead_at_mark=NAME, ahead_at_last=NAME,
    difference_at_mark=_NUMBER, difference_at_last=_NUMBER,
)  # fmt: skip
DECISION = closed(
    status={"enum": list(STATUSES)},
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
    mean=_NUMBER, sd=_MAYBE, t_interval=_INTERVAL,
    bootstrap_interval=_INTERVAL,
    p=_P, p_adjusted=_P, p_equivalence=_P, standardized=_NUMBER,
    positive=COUNT, negative=COUNT, variance_estimable={"type": "boolean"},
    verdict={"enum": [*VERDICTS, None]},
)  # fmt: skip
GUARDRAIL = closed(
    arm=NAME, mark=COUNT, metric={"enum": list(QUALITY)}, margin=_NUMBER, limit=_NUMBER, mean=_NUMBER,
    low=_MAYBE, high=_MAYBE, relative={"enum": list(GUARDRAIL_STATUSES)}, absolute={"enum": list(GUARDRAIL_STATUSES)},
    status={"enum": list(GUARDRAIL_STATUSES)},
)  # fmt: skip
WAYS = closed(normal=POSITIVE, t=POSITIVE, permutation_floor=POSITIVE, plan=POSITIVE)
SAMPLE_SIZE = closed(
    metric=_CANDIDATE, mark=COUNT, arms=_NAMES, df=COUNT, delta=_NUMBER, sigma=_MAYBE,
    sigma_interval=_INTERVAL, sigma_upper=_MAYBE, at_sigma={"anyOf": [{"type": "null"}, WAYS]},
    at_sigma_upper={"anyOf": [{"type": "null"}, WAYS]},
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
    arm=NAME, metric=_METRIC, expected={"enum": list(DIRECTIONS)}, mark=COUNT,
    stance={"enum": [*STANCES, None]}, reason={"enum": list(STANCE_REASONS)},
)  # fmt: skip
SCHEMA = closed(
    schema={"const": "vqkit.calibration/1"},
    campaign=closed(name=NAME, digest=DIGEST, frozen=DIGEST, unblinded=DIGEST, phase={"enum": list(PHASES)}),
    contract=closed(name=NAME, digest=DIGEST),
    analysis=closed(digest=DIGEST, plan={"type": "object"}),
    dataset=closed(id=NAME, digest=DIGEST),
    device=closed(
        device={"enum": ["cpu", "cuda"]},
        device_class={"anyOf": [TEXT, {"type": "null"}]},
        threads=POSITIVE,
        environment=DIGEST,
    ),
    source=DIGEST,
    seeds=_list(COUNT),
    marks=_list(COUNT),
    cells=closed(planned=COUNT, complete=COUNT, failed=COUNT, missing=COUNT),
    results=DIGEST,
    test=closed(
        statistic={"const": STATISTIC},
        method={"enum": ["exact", "monte_carlo"]},
        patterns=POSITIVE,
        family_cells=COUNT,
        p_attainable=_P,
    ),
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
    ),
    effects=_list(EFFECT),
    guardrails=_list(GUARDRAIL),
    surface=_list(SURFACE),
    sample_size=_list(SAMPLE_SIZE),
    confirmatory=COST,
    stance=_list(STANCE),
)


def encode(value):
    """Canonical bytes; raises ``Rejected`` where the value is not of the schema or names what does not exist."""
    raise_all(Rejected, _problems(value))
    return canonical.dumps(value)


def parse(data, where=NAME_ON_DISK):
    """A calibration from its bytes; raises ``Rejected`` with every problem."""
    value = canonical.loads_canonical(data, where=where, max_bytes=campaign.MAX_BYTES)
    raise_all(Rejected, _problems(value))
    return value


def table_digest(csv):
    """The digest of results.csv as written."""
    return digests.digest("results", csv)


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
    elif decision["status"] == "confirmatory":
        pass  # what was prescribed needs no support from this campaign
    elif chosen[0] not in decision["responsive_marks"].get(chosen[1], []):
        yield bad("decision.budget_mark", f"a responsive mark of {chosen[1]}", chosen[0])
    elif not decision["known_better"] or not decision["known_worse"]:
        yield bad("decision", "a known-better and a known-worse arm", "none")
    for metric in {*decision["responsive_marks"], *filter(None, [chosen[1]])} - metrics:
        yield bad("decision", f"metrics of the analysis plan ({', '.join(sorted(metrics))})", metric)
