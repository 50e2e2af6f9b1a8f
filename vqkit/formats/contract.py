"""Contracts: the frozen rules of one evaluation, locked by digest.

A contract is plain data (``configs/contract/NAME.yaml``); ``LOCK.json`` beside it binds each name to a digest. The
runner embeds the whole contract in every plan, so that an evaluator that holds only ``LOCK.json`` can tell whether a
run was made under the rules that the name stands for.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from vqkit.errors import Problem, Refused, Rejected, raise_all
from vqkit.formats import canonical, digests, files, knobs, schema
from vqkit.formats.schema import COUNT, NAME, POSITIVE, closed

CONFIGS = Path(__file__).parents[2] / "configs"
IMAGE = 32  # pixels a side
GRID = 8  # latents a side, after two strides of 2
METRICS = ("normalized_perplexity", "utilization")
QUALITY = {"mse": -1, "psnr": 1, "ssim": 1}  # metric → sign of better

_PER_METRIC = {
    "type": "object",
    "propertyNames": {"enum": [*METRICS, *QUALITY]},
    "additionalProperties": {"type": "number"},
}
_SELECTION = closed(rule={"enum": ["first"]}, count=POSITIVE)
_SEEDS = {"type": "array", "items": COUNT, "minItems": 1, "uniqueItems": True}
_ALLOWED = {
    "type": "object",
    "propertyNames": {"enum": list(knobs.KNOBS)},
    "additionalProperties": {
        "anyOf": [
            closed(low={"type": "number"}, high={"type": "number"}),
            closed(choices={"type": "array", "items": {"type": "string"}, "minItems": 1, "uniqueItems": True}),
        ]
    },
}

SCHEMA = closed(
    schema={"const": "vqkit.contract/1"},
    name=NAME,
    data=closed(
        datasets={"anyOf": [{"const": "any"}, {"type": "array", "items": NAME, "minItems": 1}]},
        train=_SELECTION,
        evaluation=_SELECTION,
    ),
    model=closed(codes={"type": "integer", "minimum": 2, "maximum": 1 << 18}, latent_dim=POSITIVE, hidden=POSITIVE),
    training=closed(
        optimizer={"const": "adam"},
        learning_rate={"type": "number", "exclusiveMinimum": 0},
        betas={
            "type": "array",
            "items": {"type": "number", "minimum": 0, "exclusiveMaximum": 1},
            "minItems": 2,
            "maxItems": 2,
        },
        epsilon={"type": "number", "exclusiveMinimum": 0},
        batch_size=POSITIVE,
        precision={"const": "float32"},
    ),
    marks={
        "type": "array",
        "items": {"type": "integer", "minimum": 0, "maximum": 9999},
        "minItems": 2,
        "uniqueItems": True,
    },
    seeds=closed(development=_SEEDS, evaluation=_SEEDS),
    knobs=closed(baseline=knobs.assignment_schema(), allowed=_ALLOWED, candidates=_ALLOWED),
    analysis=closed(
        metrics={"type": "array", "items": {"enum": list(METRICS)}, "minItems": 1, "uniqueItems": True},
        guardrails={
            "type": "array",
            "items": closed(
                metric={"enum": list(QUALITY)}, margin={"type": "number", "minimum": 0}, limit={"type": "number"}
            ),
        },
        intention_to_treat=_PER_METRIC,
        delta_min=_PER_METRIC,
        floor=_PER_METRIC,
        ceiling=_PER_METRIC,
        alpha={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        power={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        minimum_seeds=POSITIVE,
    ),
)


@dataclass(frozen=True)
class Contract:
    """A validated contract. ``spec`` is the plain data as digested; the properties are what code reads."""

    spec: dict

    def __post_init__(self):
        raise_all(Rejected, schema.problems(self.spec, SCHEMA, "contract") or list(_contradictions(self.spec)))

    @property
    def name(self):
        return self.spec["name"]

    @cached_property
    def digest(self):
        """The digest of the contract in full."""
        return digests.digest_json("contract", self.spec)

    @cached_property
    def analysis_digest(self):
        """The digest of the analysis plan alone."""
        return digests.digest_json("analysis", self.spec["analysis"])

    @property
    def codes(self):
        """K, the number of codes."""
        return self.spec["model"]["codes"]

    @property
    def latent_dim(self):
        """D, the length of a latent and of a code."""
        return self.spec["model"]["latent_dim"]

    @property
    def hidden(self):
        """h, the channels of the hidden convolutions."""
        return self.spec["model"]["hidden"]

    @property
    def training(self):
        return self.spec["training"]

    @property
    def marks(self):
        """All marks, in epochs, ascending from 0."""
        return tuple(self.spec["marks"])

    @property
    def train_count(self):
        return self.spec["data"]["train"]["count"]

    @property
    def evaluation_count(self):
        return self.spec["data"]["evaluation"]["count"]

    @property
    def steps_per_epoch(self):
        return self.train_count // self.training["batch_size"]

    @property
    def baseline(self):
        """The complete knob assignment of the reference."""
        return dict(self.spec["knobs"]["baseline"])

    @property
    def analysis(self):
        return self.spec["analysis"]

    def seeds(self, phase):
        """The seeds of a phase: ``development`` or ``confirmatory``."""
        return tuple(self.spec["seeds"]["development" if phase == "development" else "evaluation"])

    def require_seed(self, seed, phase):
        """Raise ``Refused`` unless ``seed`` belongs to ``phase``."""
        if seed not in self.seeds(phase):
            known = ", ".join(map(str, self.seeds(phase)))
            raise Refused("E_SEED_FIREWALL", "seed", f"a seed of the {phase} phase ({known})", str(seed))

    def require_marks(self, marks):
        """The marks to measure, ascending: ``marks``, or all where it is None; raise ``Refused`` for any other mark."""
        wanted = self.marks if marks is None else tuple(sorted(set(marks)))
        if not wanted or not set(wanted) <= set(self.marks):
            raise Refused("E_MARKS", "marks", f"some of {list(self.marks)}", str(list(wanted)))
        return wanted

    def require_dataset(self, dataset_id):
        """Raise ``Refused`` unless the contract allows the dataset."""
        allowed = self.spec["data"]["datasets"]
        if allowed != "any" and dataset_id not in allowed:
            raise Refused("E_DATASET_NOT_ALLOWED", "data", f"one of {', '.join(allowed)}", dataset_id)

    def allowed(self, name, phase):
        """The bounds of a knob as the contract narrows them, or None where it may not vary in this phase."""
        section = self.spec["knobs"]
        bounds = section["allowed"].get(name)
        if bounds is None and phase == "development":
            bounds = section["candidates"].get(name)
        return bounds


def within(bounds, value):
    """Whether a knob value of the right type lies within a contract's ``bounds``."""
    return value in bounds["choices"] if "choices" in bounds else bounds["low"] <= value <= bounds["high"]


def read_lock(folder=None, *, file=None):
    """``LOCK.json``: contract name → digest; of ``folder`` (the shipped one where None), or any ``file``."""
    path = file or (folder or CONFIGS / "contract") / "LOCK.json"
    lock = canonical.loads(files.read_once(path, max_bytes=canonical.MAX_BYTES), where="LOCK.json")
    expected = {"type": "object", "propertyNames": NAME, "additionalProperties": schema.DIGEST}
    raise_all(Rejected, schema.problems(lock, expected, "LOCK.json"))
    return lock


def require_locked(contract, lock):
    """Raise ``Refused`` unless ``lock`` binds the contract's name to its digest."""
    expected = lock.get(contract.name)
    if expected is None:
        known = ", ".join(sorted(lock))
        raise Refused("E_CONTRACT_LOCK", f"contract {contract.name}", f"a locked name ({known})", "no lock")
    if expected != contract.digest:
        raise Refused("E_CONTRACT_LOCK", f"contract {contract.name}", expected, contract.digest)


def _contradictions(spec):
    """What no single field shows: divisibility, order, disjoint seeds, bounds inside the registry's."""

    def bad(where, expected, found):
        return Problem(code="E_CONTRACT_INVALID", where=f"contract.{where}", expected=expected, found=str(found))

    count, batch = spec["data"]["train"]["count"], spec["training"]["batch_size"]
    if count % batch:
        yield bad("data.train.count", f"a multiple of the batch size {batch}", count)
    if spec["marks"] != sorted(spec["marks"]) or spec["marks"][0] != 0:
        yield bad("marks", "ascending from 0", spec["marks"])
    both = set(spec["seeds"]["development"]) & set(spec["seeds"]["evaluation"])
    if both:
        yield bad("seeds", "development and evaluation seeds disjoint", sorted(both))
    yield from knobs.problems(spec["knobs"]["baseline"], "contract.knobs.baseline")
    for section in ("allowed", "candidates"):
        for name, bounds in spec["knobs"][section].items():
            knob = knobs.KNOBS[name]
            if knob.candidate != (section == "candidates"):
                yield bad(f"knobs.{section}.{name}", "candidate knobs under candidates, others under allowed", section)
            edges = bounds.get("choices") or [bounds["low"], bounds["high"]]
            if not all(
                knob.accepts(int(edge) if knob.integer and not isinstance(edge, str) else edge) for edge in edges
            ):
                yield bad(f"knobs.{section}.{name}", f"bounds inside {knob.domain}", edges)
            elif not within(bounds, spec["knobs"]["baseline"][name]):
                yield bad(f"knobs.{section}.{name}", "bounds that hold the baseline", edges)
    needed = {*spec["analysis"]["metrics"]}
    guarded = {guardrail["metric"] for guardrail in spec["analysis"]["guardrails"]}
    for key in ("intention_to_treat", "delta_min", "floor", "ceiling"):
        missing = (needed | guarded if key == "intention_to_treat" else needed) - spec["analysis"][key].keys()
        if missing:
            yield bad(f"analysis.{key}", f"a value for {', '.join(sorted(missing))}", "none")
    for metric, value in spec["analysis"]["delta_min"].items():
        if value <= 0:
            yield bad(f"analysis.delta_min.{metric}", "a difference above 0", value)
