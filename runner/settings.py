"""Types and ranges of the options, in one table; held before anything is written or started.

A rule is (what is expected, in words; whether a value is that).
"""

from vqkit.errors import Problem
from vqkit.formats.intervention import PHASES
from vqkit.formats.run import MOST_THREADS
from vqkit.formats.schema import nearest

EXACT = 2**53 - 1  # the largest integer that JSON carries exactly


def _integer(low, high=EXACT):
    expected = f"an integer ≥ {low}" if high == EXACT else f"an integer from {low} to {high}"
    return expected, lambda value: type(value) is int and low <= value <= high


def _one_of(*names):
    return f"one of {', '.join(names)}", lambda value: value in names


def _or_null(rule):
    return f"null or {rule[0]}", lambda value: value is None or rule[1](value)


def _are_distinct(value):
    return isinstance(value, list) and value != [] and all(map(COUNT[1], value)) and len({*value}) == len(value)


def _are_flags(value):
    return isinstance(value, dict) and all(isinstance(name, str) and _is_plain(one) for name, one in value.items())


def _is_plain(value):
    return type(value) in (str, bool) or (type(value) in (int, float) and -EXACT <= value <= EXACT)


COUNT = _integer(0)
POSITIVE = ("a number > 0", lambda value: type(value) in (int, float) and 0 < value <= EXACT)
NAME = ("a name", lambda value: isinstance(value, str) and value != "")
PATH = ("a path", NAME[1])
DISTINCT = ("a list of one or more distinct integers ≥ 0", _are_distinct)
OPTIONS = {
    "intervention": _or_null(PATH),
    "seed": _or_null(COUNT),
    "seeds": _or_null(DISTINCT),
    "marks": _or_null(DISTINCT),
    "data": PATH,
    "root": PATH,
    "out": _or_null(PATH),
    "calibration": _or_null(PATH),
    "device": _one_of("cpu", "cuda"),
    "threads": _integer(1, MOST_THREADS),
    "phase": _one_of(*PHASES),
    "budget_seconds": _or_null(POSITIVE),
    "preset": _or_null(NAME),
    "dry_run": ("true or false", lambda value: type(value) is bool),
}
LOCAL = {"slots": _or_null(_integer(1)), "timeout_seconds": POSITIVE}
SLURM = LOCAL | {
    "cluster": _one_of("slurm", "local"),
    "partition": _or_null(NAME),
    "account": _or_null(NAME),
    "time_minutes": _integer(1),
    "cpus": _or_null(_integer(1)),
    "gpus": _or_null(COUNT),
    "memory_gb": _or_null(POSITIVE),
    "additional_parameters": ("a mapping of names to texts, finite numbers, true or false", _are_flags),
    "poll_seconds": POSITIVE,
}
EXECUTORS = {"local": LOCAL, "slurm": SLURM, "ray": LOCAL | {"address": _or_null(NAME)}}


def problems(values, rules=OPTIONS, *, prefix="", code="E_CONFIG"):
    """A ``Problem`` for each of ``values`` that breaks the rule of its name; those without a rule are not looked at."""
    return [
        Problem(code=code, where=f"{prefix}{name}", expected=rules[name][0], found=repr(value))
        for name, value in values.items()
        if name in rules and not rules[name][1](value)
    ]


def executor_problems(executor):
    """The problems of an executor's options, those between two of them included."""
    name = executor.get("name")
    if not isinstance(name, str) or name not in EXECUTORS:
        expected = f"one of {', '.join(EXECUTORS)}"
        return [Problem(code="E_CONFIG", where="executor.name", expected=expected, found=nearest(str(name), EXECUTORS))]
    if {"name", *EXECUTORS[name]} != executor.keys():
        found = f"executor.name={name} with {', '.join(key for key in executor if key != 'name')}"
        return [Problem(code="E_CONFIG", where="executor", expected=f"executor={name}", found=found)]
    found = problems(executor, EXECUTORS[name], prefix="executor.")
    if not found and name == "slurm" and executor["time_minutes"] * 60 <= executor["timeout_seconds"]:
        # a cell that does not fit would be cut off by Slurm, not by its own limit, and be done again for ever
        expected = f"more than the {executor['timeout_seconds']:g} s of executor.timeout_seconds"
        minutes = executor["time_minutes"]
        found = [
            Problem(
                code="E_CONFIG",
                where="executor.time_minutes",
                expected=expected,
                found=f"{minutes} minutes, {minutes * 60} s",
            )
        ]
    return found
