"""What one run leaves on disk, and the shape of every file in it.

    RUN/plan.json                        before the first step
    RUN/evidence/mark-0002.safetensors   indices [N, 8, 8], reconstruction uint8 [N, 32, 32, 3]
    RUN/evidence/state-0002.safetensors  weights
    RUN/evidence/steps.safetensors       one row a step: losses, gradient norms, latent power
    RUN/evidence/terminal.json           how the run ended
    RUN/manifest.json                    written last; without it the run is incomplete
    RUN/manifest.dsse.json               optional: who sealed it
    RUN/sealed/reveal.json               the intervention and its salt; not read before unblinding

Every layout follows from the contract and the marks alone, so that it is the same for every arm.
"""

import re

from vqkit.errors import Rejected, raise_all
from vqkit.formats import canonical, digests, knobs, schema
from vqkit.formats.contract import GRID, IMAGE, Contract
from vqkit.formats.intervention import PHASES
from vqkit.formats.schema import COUNT, DIGEST, HEX64, NAME, TEXT, closed

PLAN, MANIFEST, EVIDENCE, REVEAL = "plan.json", "manifest.json", "evidence", "sealed/reveal.json"
SIGNATURE = "manifest.dsse.json"
STEPS, TERMINAL = "steps.safetensors", "terminal.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "urn:vqkit:manifest:1"

STATE_CODES = {  # how a run ends that does not complete → the code that says so
    "nonfinite": "E_RUN_NONFINITE",
    "invalid": "E_RUN_INVALID",
    "cancelled": "E_RUN_CANCELLED",
    "budget_exceeded": "E_RUN_BUDGET",
    "error": "E_RUN_ERROR",
}
STATES = ("complete", *STATE_CODES)
STEP_COLUMNS = (
    "loss",
    "reconstruction_loss",
    "codebook_loss",
    "commitment_loss",
    "latent_power",  # mean(z²), the scale against which the commitment loss is read
    "encoder_gradient_norm",
    "decoder_gradient_norm",
    "coefficients_gradient_norm",
    "basis_gradient_norm",
)
PLAN_DIGESTS = ("source", "intervention", "proposal", "dataset", "environment", "contract")
RUN_ID = {"type": "string", "pattern": "^run-[0-9a-f]{16}$"}
MOST_THREADS = 1024
THREADS = {"type": "integer", "minimum": 1, "maximum": MOST_THREADS}
_MARKS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9999}, "uniqueItems": True}
_FILE = closed(name={"type": "string", "pattern": "^[a-z0-9_./-]{1,200}$"}, size=COUNT, sha256=HEX64)
_SCALAR = {"type": ["string", "number", "boolean", "null"]}
FACTS = {
    "type": "object",
    "additionalProperties": {"anyOf": [_SCALAR, {"type": "object", "additionalProperties": _SCALAR}]},
}

PLAN_SCHEMA = closed(
    schema={"const": "vqkit.plan/1"},
    run_id=RUN_ID,
    phase={"enum": list(PHASES)},
    contract={"type": "object"},
    dataset=closed(id=NAME, digest=DIGEST),
    seed=COUNT,
    marks=_MARKS,
    device={"enum": ["cpu", "cuda"]},
    threads=THREADS,
    environment=FACTS,
    source={"type": "array", "items": _FILE},
    digests=closed(**dict.fromkeys(PLAN_DIGESTS, DIGEST)),
)
TERMINAL_SCHEMA = closed(
    schema={"const": "vqkit.terminal/1"},
    state={"enum": list(STATES)},
    reason={"type": ["string", "null"], "maxLength": 2000},
    marks=_MARKS,
    steps=COUNT,
    steps_planned=COUNT,
    steps_applied=COUNT,
    steps_skipped=COUNT,
)
MANIFEST_SCHEMA = closed(
    _type={"const": STATEMENT_TYPE},
    subject={"type": "array", "items": closed(name={"type": "string"}, digest=closed(sha256=HEX64)), "maxItems": 4096},
    predicateType={"const": PREDICATE_TYPE},
    predicate=closed(
        schema={"const": "vqkit.manifest/1"},
        run_id=RUN_ID,
        plan=DIGEST,
        digests=closed(evidence=DIGEST, **dict.fromkeys(PLAN_DIGESTS, DIGEST)),
        evidence={"type": "array", "items": closed(name={"type": "string"}, size=COUNT), "maxItems": 4096},
        terminal=TERMINAL_SCHEMA,
        resources=closed(
            started={"type": "string", "maxLength": 40},
            ended={"type": "string", "maxLength": 40},
            wall_seconds={"type": "number", "minimum": 0},
            training_seconds={"type": "number", "minimum": 0},
            images_per_second={"type": "number", "minimum": 0},
            peak_memory_bytes=COUNT,
        ),
    ),
)
REVEAL_SCHEMA = closed(
    schema={"const": "vqkit.reveal/1"},
    run_id=RUN_ID,
    salt=HEX64,
    proposal=TEXT | {"maxLength": 1 << 18},
    effective=knobs.assignment_schema(),
    status={"enum": ["reference", "effective", "no_effect"]},
)


def mark_file(mark):
    """The name of the evidence file of a mark."""
    return f"mark-{mark:04d}.safetensors"


def state_file(mark):
    """The name of the file with the weights at a mark."""
    return f"state-{mark:04d}.safetensors"


def evidence_names(marks):
    """Every file that evidence of these measured marks consists of; no other may be there."""
    return [*(name(mark) for mark in marks for name in (mark_file, state_file)), STEPS, TERMINAL]


def is_evidence_name(name):
    """Whether ``name`` is of the closed list, for any mark."""
    return name in (STEPS, TERMINAL) or re.fullmatch(r"(mark|state)-[0-9]{4}\.safetensors", name) is not None


def index_dtype(contract):
    """uint16 where every code has an index below 2^16, else uint32."""
    return "uint16" if contract.codes <= 1 << 16 else "uint32"


def mark_layout(contract):
    """The tensors of a mark file."""
    n = contract.evaluation_count
    return {
        "indices": (index_dtype(contract), (n, GRID, GRID)),
        "reconstruction": ("uint8", (n, IMAGE, IMAGE, 3)),
    }


def state_layout(contract):
    """The tensors of a state file, by torch's conventions: conv [out, in, 4, 4], transposed conv [in, out, 4, 4]."""
    k, d, h = contract.codes, contract.latent_dim, contract.hidden
    shapes = {
        "encoder.down1.weight": (h, 3, 4, 4),
        "encoder.down1.bias": (h,),
        "encoder.down2.weight": (h, h, 4, 4),
        "encoder.down2.bias": (h,),
        "encoder.out.weight": (d, h, 3, 3),
        "encoder.out.bias": (d,),
        "quantizer.coefficients": (k, d),
        "quantizer.projection.weight": (d, d),
        "quantizer.projection.bias": (d,),
        "decoder.inp.weight": (h, d, 3, 3),
        "decoder.inp.bias": (h,),
        "decoder.up1.weight": (h, h, 4, 4),
        "decoder.up1.bias": (h,),
        "decoder.up2.weight": (h, 3, 4, 4),
        "decoder.up2.bias": (3,),
    }
    return {name: ("float32", shape) for name, shape in shapes.items()}


def steps_layout(steps):
    """The tensors of the step log."""
    return dict.fromkeys(STEP_COLUMNS, ("float32", (steps,)))


def run_id(salt, of_arm, seed):
    """The opaque name of a run: ``run-`` and 16 hex digits that say nothing without the salt.

    ``of_arm`` holds the salted digests of the arm. The proposal's is covered too, so that an arm without effect, which
    a confirmatory campaign runs and keeps, has runs of its own beside the reference's.
    """
    digest = digests.digest("run_id", salt, canonical.dumps({**of_arm, "seed": seed}))
    return f"run-{digest.removeprefix('sha256:')[:16]}"


def parse_plan(data):
    """The plan in ``data`` (canonical bytes) and its contract; raises ``Rejected`` with every problem."""
    plan = canonical.loads_canonical(data, where=PLAN)
    raise_all(Rejected, schema.problems(plan, PLAN_SCHEMA, PLAN))
    return plan, Contract(plan["contract"])


def parse_terminal(data):
    """The terminal statement in ``data``; raises ``Rejected``."""
    terminal = canonical.loads_canonical(data, where=TERMINAL)
    raise_all(Rejected, schema.problems(terminal, TERMINAL_SCHEMA, TERMINAL))
    return terminal


def parse_manifest(data):
    """The manifest in ``data``; raises ``Rejected``."""
    manifest = canonical.loads_canonical(data, where=MANIFEST)
    raise_all(Rejected, schema.problems(manifest, MANIFEST_SCHEMA, MANIFEST))
    return manifest


def parse_reveal(data):
    """The reveal in ``data``; raises ``Rejected``."""
    reveal = canonical.loads_canonical(data, where=REVEAL)
    raise_all(Rejected, schema.problems(reveal, REVEAL_SCHEMA, REVEAL))
    return reveal


def build_manifest(plan_bytes, plan, entries, terminal, resources):
    """The manifest of a run.

    Args:
        plan_bytes, plan: the plan as written and as parsed.
        entries: (name, size, sha256 hex) of every evidence file.
        terminal: the terminal statement.
        resources: as ``MANIFEST_SCHEMA`` names them.
    """
    entries = sorted(entries)
    return {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": name, "digest": {"sha256": sha256}} for name, _, sha256 in entries],
        "predicateType": PREDICATE_TYPE,
        "predicate": {
            "schema": "vqkit.manifest/1",
            "run_id": plan["run_id"],
            "plan": digests.digest("plan", plan_bytes),
            "digests": {**plan["digests"], "evidence": digests.digest_files("evidence", entries)},
            "evidence": [{"name": name, "size": size} for name, size, _ in entries],
            "terminal": terminal,
            "resources": resources,
        },
    }
