"""The registry of knobs: the one place that says what an intervention may set.

Schema, ``python -m runner knobs`` and the documentation are generated from ``KNOBS``. A knob can be *inert*: the
learning rate of a frozen basis does nothing. ``effective`` puts inert knobs back to the baseline, so that two
assignments that execute the same training are the same assignment.
"""

from dataclasses import dataclass

from vqkit.errors import InternalError, Problem
from vqkit.formats.schema import nearest

DECISION_POINTS = (
    "codebook_initialization",
    "codebook_optimization",
    "codebook_maintenance",
    "encoder_commitment",
    "encoder_gradient",
    "latent_geometry",
)


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A declared, bounded quantity.

    ``choices`` for a choice; ``low`` and ``high`` (inclusive) for a number, which is an ``int`` where ``integer``.
    ``scale`` is how levels are spaced in reports. A ``candidate`` is accepted in the development phase only.
    """

    name: str
    baseline: float | int | str
    decision_point: str
    meaning: str
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    integer: bool = False
    scale: str = "linear"
    candidate: bool = False

    def __post_init__(self):
        if self.decision_point not in DECISION_POINTS or not self.accepts(self.baseline):
            raise InternalError("E_INTERNAL", f"knob {self.name}", "a consistent declaration", "another")

    @property
    def kind(self):
        """``choice``, ``integer`` or ``float``."""
        return "choice" if self.choices else "integer" if self.integer else "float"

    @property
    def domain(self):
        """The domain in words."""
        if self.choices:
            return ", ".join(self.choices)
        return f"[{self.low:g}, {self.high:g}]" + (", log scale" if self.scale == "log" else "")

    def accepts(self, value):
        """Whether ``value`` has the knob's type and lies in its domain; nothing is converted."""
        if self.choices:
            return isinstance(value, str) and value in self.choices
        if isinstance(value, bool) or not isinstance(value, int if self.integer else (int, float)):
            return False
        return self.low <= value <= self.high

    def value_schema(self):
        """The JSON Schema of one value."""
        if self.choices:
            return {"enum": list(self.choices)}
        return {"type": "integer" if self.integer else "number", "minimum": self.low, "maximum": self.high}


KNOBS = {
    knob.name: knob
    for knob in (
        Knob(
            name="projection_lr_multiplier",
            baseline=1.0,
            low=0.01,
            high=100.0,
            scale="log",
            decision_point="codebook_optimization",
            meaning="learning rate of the projection, as a multiple of the contract's",
        ),
        Knob(
            name="commitment_weight",
            baseline=0.25,
            low=0.0,
            high=10.0,
            decision_point="encoder_commitment",
            meaning="beta, the weight of the term that pulls the encoder towards its code",
        ),
        Knob(
            name="trainability",
            baseline="basis",
            choices=("basis", "coefficients", "both", "none"),
            decision_point="codebook_optimization",
            meaning="which tensors of the codebook are trained",
        ),
        Knob(
            name="basis_init",
            baseline="linear_default",
            choices=("linear_default", "orthogonal", "identity"),
            decision_point="codebook_initialization",
            meaning="how the projection starts",
        ),
        Knob(
            name="latent_normalization",
            baseline="none",
            choices=("none", "l2", "layer_norm"),
            decision_point="latent_geometry",
            meaning="l2: latents and codes on the unit sphere; layer_norm: each latent to mean 0, variance 1",
        ),
        Knob(
            name="coefficient_init",
            baseline="gaussian",
            choices=("gaussian", "uniform", "data"),
            decision_point="codebook_initialization",
            candidate=True,
            meaning="gaussian: std D^-1/2; uniform: ±1/K; data: codes start at latents of training images",
        ),
        Knob(
            name="gradient_estimator",
            baseline="straight_through",
            choices=("straight_through", "rotation"),
            decision_point="encoder_gradient",
            candidate=True,
            meaning="how the decoder's gradient reaches the encoder",
        ),
        Knob(
            name="dead_code_restart",
            baseline=0,
            low=0,
            high=4096,
            integer=True,
            decision_point="codebook_maintenance",
            candidate=True,
            meaning="codes used fewer times than this in an epoch restart at a latent; 0 is off",
        ),
        Knob(
            name="projection_warmup_steps",
            baseline=0,
            low=0,
            high=10000,
            integer=True,
            decision_point="codebook_optimization",
            candidate=True,
            meaning="steps over which the projection's learning rate rises linearly to its value",
        ),
    )
}


def assignment_schema():
    """The JSON Schema of a complete knob assignment."""
    properties = {name: knob.value_schema() for name, knob in KNOBS.items()}
    return {"type": "object", "properties": properties, "required": list(KNOBS), "additionalProperties": False}


def basis_trains(assignment):
    """Whether the projection (W and its bias) is optimized."""
    return assignment["trainability"] in ("basis", "both")


def coefficients_train(assignment):
    """Whether the coefficients C are optimized."""
    return assignment["trainability"] in ("coefficients", "both")


def inert(assignment):
    """The names of knobs that do nothing under ``assignment``, a complete one."""
    return () if basis_trains(assignment) else ("projection_lr_multiplier", "projection_warmup_steps")


def effective(assignment, baseline):
    """``assignment`` with its inert knobs put back to their value in ``baseline``; both complete, neither changed."""
    idle = inert(assignment)
    return {name: baseline[name] if name in idle else assignment[name] for name in KNOBS}


def problems(assignment, where):
    """Everything that is wrong with a complete assignment: unknown or missing names, domains, conflicts."""
    found = []
    for name, value in assignment.items():
        if name not in KNOBS:
            found.append(unknown(name, f"{where}.{name}"))
        elif not KNOBS[name].accepts(value):
            found.append(outside(KNOBS[name], value, f"{where}.{name}"))
    for name in KNOBS.keys() - assignment.keys():
        found.append(Problem(code="E_SCHEMA_MISSING_KEY", where=f"{where}.{name}", expected="the key", found="nothing"))
    if not found and assignment["dead_code_restart"] and not coefficients_train(assignment):
        found.append(
            Problem(
                code="E_KNOB_CONFLICT",
                where=f"{where}.dead_code_restart",
                expected="0, or trainability coefficients or both",
                found=f"{assignment['dead_code_restart']} with trainability {assignment['trainability']}",
            )
        )
    return found


def unknown(name, where):
    """The problem of a knob that does not exist, with the nearest one that does."""
    return Problem(
        code="E_KNOB_UNKNOWN", where=where, expected=f"one of {', '.join(KNOBS)}", found=nearest(name, KNOBS)
    )


def outside(knob, value, where):
    """The problem of a value outside a knob's domain."""
    return Problem(code="E_KNOB_DOMAIN", where=where, expected=f"{knob.kind} in {knob.domain}", found=repr(value))
