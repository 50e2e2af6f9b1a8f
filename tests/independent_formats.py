"""What the other verifier reads: strict JSON, digests and closed schemas, after docs/FORMATS.md alone.

Part of ``independent_verifier``; shares no code with vqkit.
"""

import hashlib
import json
import math
import re
from decimal import Decimal

BIG, MIB = 2**53 - 1, 2**20
SIX = ("source", "intervention", "proposal", "dataset", "environment", "contract")
METRICS = ("normalized_perplexity", "utilization", "mse", "psnr", "ssim")
QUALITY = METRICS[2:]


class Bad(Exception):
    """What a strict reader refuses."""


def need(ok, why="refused"):
    if not ok:
        raise Bad(why)


# JSON


def _integer(literal):
    need(len(literal) < 20 and literal != "-0" and abs(int(literal)) <= BIG, "integer literal")
    return int(literal)


def _float(literal):
    value = float(literal)
    need(math.isfinite(value) and not BIG < abs(value) < 1e21, "number literal")
    need(value or (literal[0] != "-" and not re.search("[1-9]", re.split("[eE]", literal)[0])), "zero literal")
    return value


def _pairs(pairs):
    need(len({key for key, _ in pairs}) == len(pairs) and all(key.isascii() for key, _ in pairs), "keys")
    return dict(pairs)


def _walk(value, level=0):
    need(level <= 32, "depth")
    if isinstance(value, str):
        value.encode()  # refuses a lone surrogate
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _walk(child, level + 1)


def parse(raw, is_canonical=True):
    need(len(raw) <= 4 * MIB, "size")
    hooks = {"parse_int": _integer, "parse_float": _float, "parse_constant": lambda literal: need(False, literal)}
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_pairs, **hooks)
        _walk(value)
    except (ValueError, RecursionError) as error:
        raise Bad(str(error)) from None
    need(not is_canonical or canonical(value) == raw, "not canonical")
    return value


def number(value):
    """A number as ECMAScript writes it."""
    if type(value) is int or value == 0:
        return str(int(value))
    parts = Decimal(repr(value)).normalize().as_tuple()
    digits = "".join(map(str, parts.digits))
    k = len(digits)
    n = k + parts.exponent
    if 0 < n <= 21:
        text = digits.ljust(n, "0") if k <= n else f"{digits[:n]}.{digits[n:]}"
    elif -6 < n <= 0:
        text = f"0.{'0' * -n}{digits}"
    else:
        text = digits[0] + ("." + digits[1:] if k > 1 else "") + f"e{n - 1:+d}"
    return "-" * parts.sign + text


def spelled(value):
    if isinstance(value, list):
        return "[" + ",".join(map(spelled, value)) + "]"
    if isinstance(value, dict):  # all keys are ASCII
        return "{" + ",".join(f"{spelled(key)}:{spelled(value[key])}" for key in sorted(value)) + "}"
    return number(value) if type(value) in (int, float) else json.dumps(value, ensure_ascii=False)


def canonical(value):
    return spelled(value).encode()


# Digests


def sha(data):
    return hashlib.sha256(data).hexdigest()


def digest(kind, *parts):
    framed = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return "sha256:" + sha(f"vqkit.{kind}/1\n".encode() + framed)


def files_digest(kind, files):
    """``files``: {name, size, sha256} of each, in any order."""
    return digest(kind, canonical(sorted(files, key=lambda file: file["name"])))


def entry(name, data):
    return {"name": name, "sha256": sha(data), "size": len(data)}


# Schemas: a dict is a closed object, a list of one an array, a callable a test, anything else the constant


def fits(value, schema):
    if isinstance(schema, dict):
        return (
            isinstance(value, dict) and value.keys() == schema.keys() and all(fits(value[k], schema[k]) for k in schema)
        )
    if isinstance(schema, list):
        return isinstance(value, list) and all(fits(child, schema[0]) for child in value)
    return bool(schema(value)) if callable(schema) else type(value) is type(schema) and value == schema


def integer(low=0, high=BIG):
    return lambda v: type(v) is int and low <= v <= high


def real(low=-math.inf, high=math.inf, above=-math.inf, below=math.inf):
    return lambda v: type(v) in (int, float) and low <= v <= high and above < v < below


def string(most):
    return lambda v: isinstance(v, str) and len(v) <= most


def pattern(regex):
    return lambda v: isinstance(v, str) and re.fullmatch(regex, v) is not None


def one_of(*choices):
    return lambda v: isinstance(v, str) and v in choices


def different(test, least=0):
    return lambda v: fits(v, [test]) and len({canonical(child) for child in v}) == len(v) >= least


def scalar(value):
    return value is None or isinstance(value, (str, bool, int, float))


def facts(value):
    inner = (child if isinstance(child, dict) else {"": child} for child in value.values())
    return all(scalar(leaf) for child in inner for leaf in child.values())


HEX, NAME, COUNT = pattern("[0-9a-f]{64}"), pattern("[a-z0-9][a-z0-9._-]{0,63}"), integer()
DIGEST, RUN_ID = pattern("sha256:[0-9a-f]{64}"), pattern("run-[0-9a-f]{16}")
MARKS = different(integer(0, 9999))
KNOBS = {
    "projection_lr_multiplier": real(0.01, 100),
    "commitment_weight": real(0, 10),
    "trainability": one_of("basis", "coefficients", "both", "none"),
    "basis_init": one_of("linear_default", "orthogonal", "identity"),
    "latent_normalization": one_of("none", "l2", "layer_norm"),
    "coefficient_init": one_of("gaussian", "uniform", "data"),
    "gradient_estimator": one_of("straight_through", "rotation"),
    "dead_code_restart": integer(0, 4096),
    "projection_warmup_steps": integer(0, 10000),
}
CANDIDATES = ("coefficient_init", "gradient_estimator", "dead_code_restart", "projection_warmup_steps")
INTEGERS = CANDIDATES[2:]
NUMBERS = ("projection_lr_multiplier", "commitment_weight", *INTEGERS)


def knobs(value):
    return fits(value, KNOBS) and (value["dead_code_restart"] == 0 or value["trainability"] in ("coefficients", "both"))


def bounds(value, candidates, baseline):
    def fine(knob, bound):
        if knob not in KNOBS or (knob in CANDIDATES) != candidates:
            return False
        if knob not in NUMBERS:
            return fits(bound, {"choices": different(KNOBS[knob], 1)}) and baseline[knob] in bound["choices"]
        if not fits(bound, {"low": real(), "high": real()}):
            return False
        edges = [math.trunc(edge) if knob in INTEGERS else edge for edge in bound.values()]
        return all(map(KNOBS[knob], edges)) and bound["low"] <= baseline[knob] <= bound["high"]

    return isinstance(value, dict) and all(fine(knob, bound) for knob, bound in value.items())


def is_contract(c):
    def numbers(needed, test):
        return lambda v: isinstance(v, dict) and needed() <= v.keys() <= set(METRICS) and all(map(test, v.values()))

    def measured():
        return set(c["analysis"]["metrics"])

    def guarded():
        return measured() | {rail["metric"] for rail in c["analysis"]["guardrails"]}

    positive, share, split = real(above=0), real(above=0, below=1), {"rule": "first", "count": integer(1)}
    shape = {
        "schema": "vqkit.contract/1",
        "name": NAME,
        "data": {
            "datasets": lambda v: v == "any" or (fits(v, [NAME]) and v != []),
            "train": split,
            "evaluation": split,
        },
        "model": {"codes": integer(2, 262144), "latent_dim": integer(1), "hidden": integer(1)},
        "training": {
            "optimizer": "adam",
            "learning_rate": positive,
            "betas": lambda v: fits(v, [real(0, below=1)]) and len(v) == 2,
            "epsilon": positive,
            "batch_size": integer(1),
            "precision": "float32",
        },
        "marks": lambda v: MARKS(v) and len(v) > 1 and v[0] == 0 and v == sorted(v),
        "seeds": {"development": different(COUNT, 1), "evaluation": different(COUNT, 1)},
        "knobs": {
            "baseline": knobs,
            "allowed": lambda v: bounds(v, False, c["knobs"]["baseline"]),
            "candidates": lambda v: bounds(v, True, c["knobs"]["baseline"]),
        },
        "analysis": {
            "metrics": different(one_of(*METRICS[:2]), 1),
            "guardrails": [{"metric": one_of(*QUALITY), "margin": real(0), "limit": real()}],
            "intention_to_treat": numbers(guarded, real()),
            "delta_min": numbers(measured, positive),
            "floor": numbers(measured, real()),
            "ceiling": numbers(measured, real()),
            "alpha": share,
            "power": share,
            "minimum_seeds": integer(1),
        },
    }
    if not fits(c, shape) or set(c["seeds"]["development"]) & set(c["seeds"]["evaluation"]):
        return False
    return c["data"]["train"]["count"] % c["training"]["batch_size"] == 0


PLAN = {
    "schema": "vqkit.plan/1",
    "run_id": RUN_ID,
    "phase": one_of("development", "confirmatory"),
    "contract": is_contract,
    "dataset": {"id": NAME, "digest": DIGEST},
    "seed": COUNT,
    "marks": MARKS,
    "device": one_of("cpu", "cuda"),
    "threads": integer(1, 1024),
    "environment": lambda v: isinstance(v, dict) and facts(v),
    "source": [{"name": pattern("[a-z0-9_./-]{1,200}"), "size": COUNT, "sha256": HEX}],
    "digests": dict.fromkeys(SIX, DIGEST),
}
TERMINAL = {
    "schema": "vqkit.terminal/1",
    "state": one_of("complete", "nonfinite", "invalid", "cancelled", "budget_exceeded", "error"),
    "reason": lambda v: v is None or string(2000)(v),
    "marks": MARKS,
    **dict.fromkeys(("steps", "steps_planned", "steps_applied", "steps_skipped"), COUNT),
}
FILE = pattern(r"steps\.safetensors|terminal\.json|(mark|state)-[0-9]{4}\.safetensors")
MANIFEST = {
    "_type": "https://in-toto.io/Statement/v1",
    "subject": [{"name": FILE, "digest": {"sha256": HEX}}],
    "predicateType": "urn:vqkit:manifest:1",
    "predicate": {
        "schema": "vqkit.manifest/1",
        "run_id": RUN_ID,
        "plan": DIGEST,
        "digests": dict.fromkeys((*SIX, "evidence"), DIGEST),
        "evidence": [{"name": FILE, "size": COUNT}],
        "terminal": TERMINAL,
        "resources": {
            **dict.fromkeys(("started", "ended"), string(40)),
            **dict.fromkeys(("wall_seconds", "training_seconds", "images_per_second"), real(0)),
            "peak_memory_bytes": COUNT,
        },
    },
}
CARD = {
    "schema": "vqkit.dataset/1",
    "id": NAME,
    "source": string(20000),
    "train": COUNT,
    "evaluation": COUNT,
    "digest": DIGEST,
}
