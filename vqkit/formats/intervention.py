"""Interventions: the JSON artifact through which a decision enters a run, and nothing else does.

``check`` reads the artifact strictly, holds it against the registry and a contract, and says what would execute.
"""

from dataclasses import dataclass

from vqkit.errors import Problem, Rejected, raise_all
from vqkit.formats import canonical, digests, knobs, schema
from vqkit.formats.contract import METRICS, QUALITY, within
from vqkit.formats.schema import NAME, TEXT, closed

MAX_BYTES = 1 << 18
PHASES = ("development", "confirmatory")


def artifact_schema():
    """The JSON Schema of ``vqkit.intervention/1``, generated from the knob registry."""
    value = {"type": ["number", "string"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "vqkit.intervention/1",
        **closed(
            schema={"const": "vqkit.intervention/1"},
            contract=NAME,
            decision_point={"enum": list(knobs.DECISION_POINTS)},
            changes={
                "type": "array",
                "items": closed(knob={"type": "string"}, **{"from": value, "to": value}),
                "maxItems": len(knobs.KNOBS),
            },
            expected=closed(
                metric={"enum": [*METRICS, *QUALITY]}, direction={"enum": ["increase", "decrease", "no_change"]}
            ),
            guardrail_at_risk={"enum": [*QUALITY, None]},
            citations={
                "type": "array",
                "items": closed(id={"type": "string", "maxLength": 200}, knob={"type": "string"}),
                "maxItems": 100,
            },
            rationale=TEXT,
            previous={"anyOf": [{"type": "null"}, {"type": "object"}]},
        ),
    }


@dataclass(frozen=True, kw_only=True)
class Checked:
    """An artifact that passed: what it says, and what it would execute.

    ``status`` is ``reference`` (no changes), ``effective``, or ``no_effect`` (the effective knobs equal those before).
    """

    raw: bytes
    artifact: dict
    effective: dict
    inert: tuple
    status: str

    def digests(self, salt):
        """The salted ``intervention`` and ``proposal`` digests; ``salt`` is 32 bytes."""
        return {
            "intervention": digests.digest_json("intervention", self.effective, salt),
            "proposal": digests.digest("proposal", salt, self.raw),
        }


def check(raw, contract, phase="development", *, where="intervention"):
    """Check one artifact against the registry and a contract.

    Args:
        raw: the bytes of the artifact.
        contract: a ``Contract``; its baseline is what ``previous: null`` means.
        phase: ``development`` or ``confirmatory``; candidate knobs are accepted in the first only.
        where: how error messages name the artifact.

    Returns:
        Checked.

    Raises:
        Rejected: with every problem of the artifact.
    """
    artifact, problems = canonical.parse(raw, where=where, max_bytes=MAX_BYTES)
    unreadable = {problem.where for problem in problems}
    malformed = schema.problems(artifact, artifact_schema(), where)
    problems += [problem for problem in malformed if problem.where not in unreadable]
    raise_all(Rejected, problems + _meaning_problems(artifact, contract, phase, where))
    previous = _previous(artifact, contract)
    changed = {change["knob"]: change["to"] for change in artifact["changes"]}
    assignment = {**previous, **changed}
    raise_all(Rejected, knobs.problems(assignment, f"{where}.changes"))
    effective = knobs.effective(assignment, contract.baseline)
    if not changed:
        status = "reference"
    else:
        status = "no_effect" if effective == knobs.effective(previous, contract.baseline) else "effective"
    return Checked(raw=bytes(raw), artifact=artifact, effective=effective, inert=knobs.inert(assignment), status=status)


def _previous(artifact, contract):
    """The assignment before the changes."""
    return contract.baseline if artifact["previous"] is None else artifact["previous"]


def _meaning_problems(artifact, contract, phase, where):
    """What the schema can't see. Parts that the schema has refused already are passed over here."""
    schema_of = artifact_schema()["properties"]

    def well_formed(value, key):
        return not schema.problems(value, schema_of[key], where)

    parts = {key: artifact.get(key) for key in schema_of} if isinstance(artifact, dict) else {}
    if not parts:
        return []
    problems = []
    if well_formed(parts["contract"], "contract") and parts["contract"] not in (contract.name, "any"):
        expected = f"{contract.name} or any"
        problems.append(
            Problem(code="E_CONTRACT_NAME", where=f"{where}.contract", expected=expected, found=parts["contract"])
        )
    previous = contract.baseline
    if isinstance(parts["previous"], dict):
        previous = parts["previous"]
        problems += knobs.problems(previous, f"{where}.previous")
    changes = [
        (i, change)
        for i, change in enumerate(parts["changes"] if isinstance(parts["changes"], list) else [])
        if well_formed([change], "changes")
    ]
    problems += _change_problems(changes, previous, contract, phase, where)
    points = {knobs.KNOBS[change["knob"]].decision_point for _, change in changes if change["knob"] in knobs.KNOBS}
    if points and well_formed(parts["decision_point"], "decision_point") and parts["decision_point"] not in points:
        expected = " or ".join(sorted(points))
        place = f"{where}.decision_point"
        problems.append(
            Problem(code="E_KNOB_DECISION_POINT", where=place, expected=expected, found=parts["decision_point"])
        )
    changed = {change["knob"] for _, change in changes}
    for i, citation in enumerate(parts["citations"] if isinstance(parts["citations"], list) else []):
        if well_formed([citation], "citations") and citation["knob"] not in changed:
            place = f"{where}.citations[{i}].knob"
            expected = "a knob that is changed"
            problems.append(Problem(code="E_CITATION", where=place, expected=expected, found=citation["knob"]))
    return problems


def _change_problems(changes, previous, contract, phase, where):
    """Every problem of the (index, change) pairs, change by change."""
    seen = set()
    for i, change in changes:
        name, place = change["knob"], f"{where}.changes[{i}]"
        knob = knobs.KNOBS.get(name)
        if knob is None:
            yield knobs.unknown(name, f"{place}.knob")
            continue
        if name in seen:
            yield Problem(code="E_KNOB_TWICE", where=f"{place}.knob", expected="each knob once", found=name)
        seen.add(name)
        bounds = contract.allowed(name, phase)
        if bounds is None:
            found = f"{name} in the {phase} phase"
            yield Problem(code="E_KNOB_NOT_ALLOWED", where=f"{place}.knob", expected="an allowed knob", found=found)
        if not knob.accepts(change["to"]):
            yield knobs.outside(knob, change["to"], f"{place}.to")
        elif bounds is not None and not within(bounds, change["to"]):
            yield Problem(
                code="E_KNOB_DOMAIN", where=f"{place}.to", expected=f"within {bounds}", found=repr(change["to"])
            )
        if name in previous and (change["from"] != previous[name] or isinstance(change["from"], bool)):
            yield Problem(
                code="E_KNOB_FROM", where=f"{place}.from", expected=repr(previous[name]), found=repr(change["from"])
            )
