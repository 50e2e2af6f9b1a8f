"""Sweep definitions: plain data that names a reference, arms, seeds and marks; here they become checked interventions.

    name: calibration
    reference: reference                 # a file in configs/intervention, without .json, or a path to one
    arms:
      - {label: fast-basis, intervention: projection-lr-10}
      - {label: no-commitment, set: {commitment_weight: 0.0}, expected: {metric: utilization, direction: decrease}}
    factorial:                           # optional: an arm for every corner, for interactions
      - {label: lr-beta, levels: {projection_lr_multiplier: [0.1, 10.0], commitment_weight: [1.0, 4.0]}, expected: …}
    seeds: {count: 8}                    # the first of the phase's in the contract, or a list; or on the command line
    marks: [0, 2, 5]                     # optional: some of the contract's

Every problem of every arm is reported at once, with the file and the key it stands under.
"""

import itertools
from dataclasses import dataclass, replace
from pathlib import Path

from vqkit.errors import Problem, Refused, Rejected, VqkitError, raise_all
from vqkit.formats import canonical, digests, files, intervention, knobs, schema
from vqkit.formats.contract import CONFIGS
from vqkit.formats.schema import NAME, POSITIVE, TEXT, closed, nearest

_EXPECTED = intervention.artifact_schema()["properties"]["expected"]
_LEVELS = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "array", "minItems": 1}}
_FILE_ARM = closed(label=NAME, intervention={"type": "string"})
_INLINE_ARM = closed(
    optional=("rationale",),
    label=NAME,
    set={"type": "object", "minProperties": 1},
    expected=_EXPECTED,
    rationale=TEXT,
)
_FACTORIAL = closed(optional=("rationale",), label=NAME, levels=_LEVELS, expected=_EXPECTED, rationale=TEXT)
_DEFINITION = closed(
    optional=("factorial", "seeds", "marks"),
    name=NAME,
    reference={"type": "string"},
    arms={"type": "array", "items": {"type": "object"}},
    factorial={"type": "array", "items": _FACTORIAL},
    seeds={"type": ["object", "array"]},
    marks={"type": ["array", "null"]},
)
_SEEDS = {"type": "array", "items": schema.COUNT, "minItems": 1, "uniqueItems": True}


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One checked intervention of a sweep under its label; ``role`` is ``reference`` or ``arm``."""

    label: str
    role: str
    checked: intervention.Checked


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A resolved sweep: the reference first, then the other arms; ``seeds`` and ``marks`` as they will run."""

    name: str
    arms: tuple
    seeds: tuple
    marks: tuple

    @property
    def digest(self):
        """The digest of what the sweep compares: labels, roles and artifacts as written, in any order."""
        arms = [{"label": a.label, "role": a.role, "proposal": a.checked.raw.decode()} for a in self.arms]
        arms.sort(key=lambda arm: arm["label"])
        return digests.digest_json("campaign", {"name": self.name, "arms": arms})


def resolve(definition, contract, phase, *, where="sweep", seeds=None, marks=None, interventions=None):
    """Turn a sweep definition into checked arms, seeds and marks.

    Args:
        definition: plain data, as the module's docstring shows.
        contract: a ``Contract``.
        phase: ``development`` or ``confirmatory``.
        where: how error messages name the definition, usually its file.
        seeds, marks: override those of the definition; None keeps them.
        interventions: the folder of named artifacts; ``configs/intervention`` unless said otherwise.

    Returns:
        Sweep.

    Raises:
        Rejected: with every problem of the definition and of all its artifacts.
        Refused: where all is well-formed but a rule forbids it: E_NO_EFFECT, E_ARM_TWICE, E_SEED_FIREWALL, E_MARKS.
    """
    interventions = interventions or CONFIGS / "intervention"
    faults = schema.problems(definition, _DEFINITION, where)
    raise_all(Rejected, faults if not isinstance(definition, dict) else ())
    broken, breaches = list(faults), []
    arms = _arms(definition, contract, phase, where, interventions, broken)
    _compare(arms, phase, broken, breaches)
    found_seeds = _seeds(definition, seeds, contract, phase, where, broken, breaches)
    found_marks = _marks(definition, marks, contract, where, broken, breaches)
    raise_all(Rejected, broken + breaches if broken else ())
    raise_all(Refused, breaches)
    return Sweep(
        name=definition["name"], arms=tuple(arm for _, arm in arms), seeds=tuple(found_seeds), marks=found_marks
    )


def _arms(definition, contract, phase, where, interventions, broken):
    """(place, Arm) of every arm that can be read, reference first; faults are appended to ``broken``."""
    found = []

    def add(place, label, role, raw, translate=lambda path: path, name=None):
        try:
            checked = intervention.check(raw, contract, phase, where=name or place)
        except VqkitError as error:
            broken.extend(replace(problem, where=translate(problem.where)) for problem in error.problems)
        else:
            found.append((place, Arm(label=label, role=role, checked=checked)))

    def add_file(place, label, role, name):
        try:
            path, raw = _read_artifact(name, interventions, place)
        except VqkitError as error:
            broken.extend(error.problems)
        else:
            add(place, label, role, raw, name=path)

    def add_inline(place, key, label, levels, arm):
        paths = {f"{place}.changes[{i}]": f"{place}.{key}.{name}" for i, name in enumerate(levels)}

        def translate(path):
            return next((new for old, new in paths.items() if path.startswith(old)), path)

        try:
            raw = canonical.dumps(_artifact(levels, arm, contract))
        except VqkitError as error:  # a value that JSON can't carry
            broken.extend(replace(problem, where=f"{place}.{key}") for problem in error.problems)
        else:
            add(place, label, "arm", raw, translate)

    if isinstance(definition.get("reference"), str):
        add_file(f"{where}.reference", "reference", "reference", definition["reference"])
    for place, arm in _objects(definition, "arms", where):
        inline = "set" in arm
        faults = schema.problems(arm, _INLINE_ARM if inline else _FILE_ARM, place)
        if inline and isinstance(arm["set"], dict):
            faults += _unknown(arm["set"], f"{place}.set")
        broken.extend(faults)
        if not faults and inline:
            add_inline(place, "set", arm["label"], arm["set"], arm)
        elif not faults:
            add_file(place, arm["label"], "arm", arm["intervention"])
    for place, corner in _objects(definition, "factorial", where):
        levels = corner.get("levels")
        unknown = _unknown(levels, f"{place}.levels") if isinstance(levels, dict) else []
        broken.extend(unknown)
        if not unknown and not schema.problems(corner, _FACTORIAL, place):
            for values in itertools.product(*corner["levels"].values()):
                levels = dict(zip(corner["levels"], values, strict=True))
                add_inline(place, "levels", f"{corner['label']}.{'-'.join(map(_spelt, values))}", levels, corner)
    return found


def _unknown(levels, place):
    """The problems of knobs that do not exist; beside them, of those that do and get a value that they don't take."""
    unknown = [knobs.unknown(name, f"{place}.{name}") for name in levels if name not in knobs.KNOBS]
    known = {name: knobs.KNOBS[name] for name in levels if unknown and name in knobs.KNOBS}
    outside = [
        knobs.outside(knob, levels[name], f"{place}.{name}")
        for name, knob in known.items()
        if not isinstance(levels[name], list) and not knob.accepts(levels[name])
    ]
    return unknown + outside


def _objects(definition, key, where):
    """(place, object) for each object of a list in the definition; anything else is the schema's to report."""
    items = definition.get(key)
    return [
        (f"{where}.{key}[{i}]", item)
        for i, item in enumerate(items if isinstance(items, list) else [])
        if isinstance(item, dict)
    ]


def _read_artifact(name, interventions, place):
    """(how messages name it, bytes) of an artifact: a name in ``interventions``, or a path to a JSON file."""
    path = Path(name) if name.endswith(".json") else interventions / f"{name}.json"
    if not path.is_file():
        known = sorted(file.stem for file in interventions.glob("*.json"))
        expected = f"a path to a JSON file, or one of {', '.join(known)}"
        raise Rejected("E_FILE_MISSING", f"{place}: {name}", expected, nearest(name, known))
    return f"{place}: {path.name}", files.read_once(path, max_bytes=intervention.MAX_BYTES)


def _artifact(levels, arm, contract):
    """The artifact that an inline arm stands for."""
    baseline = contract.baseline
    return {
        "schema": "vqkit.intervention/1",
        "contract": contract.name,
        "decision_point": knobs.KNOBS[next(iter(levels))].decision_point,
        "changes": [{"knob": name, "from": baseline[name], "to": value} for name, value in levels.items()],
        "expected": arm["expected"],
        "guardrail_at_risk": None,
        "citations": [],
        "rationale": arm.get("rationale", ""),
        "previous": None,
    }


def _spelt(value):
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, (int, float)) else "x"


def _compare(arms, phase, broken, breaches):
    """Hold the arms against each other: labels and effective knobs once, and no arm that does nothing."""
    labels, executed = {}, {}
    for place, arm in arms:
        checked = arm.checked
        if arm.label in labels:
            broken.append(
                Problem(code="E_ARM_TWICE", where=f"{place}.label", expected="each label once", found=arm.label)
            )
        elif schema.problems(arm.label, NAME, place):
            broken.append(
                Problem(code="E_SCHEMA_VALUE", where=f"{place}.label", expected=NAME["pattern"], found=arm.label)
            )
        labels[arm.label] = place
        if (arm.role == "reference") != (checked.status == "reference"):
            role = "a reference that changes nothing" if arm.role == "reference" else "a change"
            found = f"{arm.label}: {len(checked.artifact['changes'])} changes"
            breaches.append(Problem(code="E_NO_EFFECT", where=place, expected=role, found=found))
            continue
        if checked.status == "no_effect" and phase == "development":
            why = f", inert here: {', '.join(checked.inert)}" if checked.inert else ""
            found = f"{arm.label} executes what `previous` does{why}"
            breaches.append(Problem(code="E_NO_EFFECT", where=place, expected="a change that executes", found=found))
            continue
        key = checked.raw if checked.status == "no_effect" else canonical.dumps(checked.effective)
        if key in executed:
            found = f"{arm.label} executes the same as {executed[key]}"
            breaches.append(Problem(code="E_ARM_TWICE", where=place, expected="other effective knobs", found=found))
        else:
            executed[key] = arm.label


def _seeds(definition, override, contract, phase, where, broken, breaches):
    """The seeds that will run."""
    place, value = ("seeds", override) if override is not None else (f"{where}.seeds", definition.get("seeds"))
    known = contract.seeds(phase)
    if isinstance(definition, dict) and override is None and "seeds" not in definition:
        broken.append(Problem(code="E_SCHEMA_MISSING_KEY", where=place, expected="the key", found="nothing"))
    if isinstance(value, dict):
        faults = schema.problems(value, closed(count=POSITIVE), place)
        if not faults and value["count"] > len(known):
            expected = f"at most the {len(known)} seeds of the {phase} phase"
            faults = [
                Problem(code="E_SCHEMA_VALUE", where=f"{place}.count", expected=expected, found=str(value["count"]))
            ]
        broken.extend(faults)
        return () if faults else known[: value["count"]]
    if not isinstance(value, (list, tuple)):
        if override is not None:
            broken.append(
                Problem(code="E_SCHEMA_TYPE", where=place, expected="a list or {count: n}", found=repr(value))
            )
        return ()
    faults = schema.problems(list(value), _SEEDS, place)
    broken.extend(faults)
    for seed in () if faults else value:
        try:
            contract.require_seed(seed, phase)
        except Refused as error:
            breaches.extend(replace(problem, where=place) for problem in error.problems)
    return value


def _marks(definition, override, contract, where, broken, breaches):
    """The marks that will be measured, ascending."""
    place, value = ("marks", override) if override is not None else (f"{where}.marks", definition.get("marks"))
    if value is None:
        return contract.marks
    if not isinstance(value, (list, tuple)):
        if override is not None:
            broken.append(Problem(code="E_SCHEMA_TYPE", where=place, expected="a list", found=repr(value)))
        return ()
    faults = schema.problems(list(value), _SEEDS, place)
    broken.extend(faults)
    try:
        return () if faults else contract.require_marks(value)
    except Refused as error:
        breaches.extend(replace(problem, where=place) for problem in error.problems)
        return ()
