"""From the command line and ``configs/`` to plain options.

Hydra composes; nothing here is ever instantiated from a config. What the contract freezes can't be overridden, under
any name: the refusal says which field it is.
"""

import copy
import functools
import io
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner import settings
from vqkit.errors import Problem, Refused, Rejected, UsageError, raise_all
from vqkit.formats import contract as contracts
from vqkit.formats import files
from vqkit.formats.knobs import KNOBS
from vqkit.formats.schema import nearest

RUN_OPTIONS = (
    "intervention", "contract", "seed", "device", "threads", "data", "root", "marks", "phase", "out", "budget_seconds",
)  # fmt: skip
SWEEP_OPTIONS = (
    "sweep", "preset", "contract", "seeds", "device", "threads", "data", "root", "marks", "phase", "out", "executor",
    "budget_seconds", "dry_run", "calibration",
)  # fmt: skip
GROUPS = {"contract": "E_CONTRACT_UNKNOWN", "sweep": "E_CONFIG", "executor": "E_CONFIG"}  # → code of an unknown name
TEXT = ("intervention", "data", "root", "out", "calibration")  # paths: taken as they are, outside Hydra's grammar
MAX_BYTES = 1 << 20  # of a YAML file
OPEN = "executor.additional_parameters"  # takes keys that configs/ does not have
ALIASES = {
    "lr": "training.learning_rate",
    "codebook_size": "model.codes",
    "num_embeddings": "model.codes",
    "embedding_dim": "model.latent_dim",
    "epochs": "marks",
    "dataset": "data.datasets",
}


def options(arguments, allowed, needed=()):
    """Compose ``key=value`` arguments into a plain dict of the ``allowed`` options.

    Args:
        arguments: as on the command line.
        allowed: ``RUN_OPTIONS`` or ``SWEEP_OPTIONS``.
        needed: those that have no default.

    Raises:
        UsageError: with everything that is wrong: E_USAGE for an unknown, malformed, repeated or missing argument,
            E_CONTRACT_UNKNOWN, E_CONFIG for any other value of another type or range than ``settings`` has it.
        Refused: E_CONTRACT_FROZEN for every argument that would change the contract, where nothing else is wrong.
        Rejected: for the file of a sweep that can't be read.
    """
    given, wrong, frozen = _split(arguments, allowed)
    groups = {key: given.pop(key) for key in GROUPS if key in given}
    file = groups.pop("sweep") if groups.get("sweep", "").endswith((".yaml", ".yml")) else None
    unknown = {key: _unknown(key, name) for key, name in groups.items() if name not in names(key)}
    composed = copy.deepcopy(_compose(*(f"{key}={name}" for key, name in groups.items() if key not in unknown)))
    for key, text in given.items():
        *path, name = key.split(".", 2)
        place = functools.reduce(lambda value, step: value.get(step), path, composed)
        if isinstance(place, dict):
            place[name] = text if key in TEXT else _value(text)
    chosen = {key: composed[key] for key in allowed}
    wrong += [*unknown.values(), *settings.problems(chosen)]
    if "executor" in chosen and "executor" not in unknown:
        wrong += settings.executor_problems(chosen["executor"])
    missing = [key for key in needed if chosen[key] is None]
    wrong += [Problem(code="E_USAGE", where=key, expected=f"{key}=VALUE", found="nothing") for key in missing]
    raise_all(UsageError, wrong + frozen if wrong else ())
    raise_all(Refused, frozen)
    return chosen | ({"sweep": load_yaml(Path(file))} if file else {})


def locked_contract(name, folder=contracts.CONFIGS / "contract"):
    """The contract of that name in ``folder``, validated and held against the ``LOCK.json`` there."""
    contract = contracts.Contract(load_yaml(contract_file(name, folder)))
    contracts.require_locked(contract, contracts.read_lock(folder))
    return contract


def contract_file(name, folder=contracts.CONFIGS / "contract"):
    """The file of the contract of that name; raises ``UsageError`` (E_CONTRACT_UNKNOWN) where there is none."""
    if name not in names("contract", folder):
        raise UsageError([_unknown("contract", name, folder)])
    return folder / f"{name}.yaml"


def composed_contract(options):
    """The contract that was composed, held against ``LOCK.json``."""
    contract = contracts.Contract(options["contract"])
    contracts.require_locked(contract, contracts.read_lock())
    return contract


def names(group, folder=None):
    """What can be chosen from a group of configs."""
    return sorted(path.stem for path in (folder or contracts.CONFIGS / group).glob("*.yaml"))


def load_yaml(path):
    """A YAML file as plain data, duplicate keys refused; raises ``Rejected`` (E_FILE_…, E_YAML)."""
    raw = files.read_once(path.resolve(), max_bytes=MAX_BYTES)
    try:
        return OmegaConf.to_container(OmegaConf.load(io.StringIO(raw.decode())), resolve=True)
    except (OSError, ValueError, RecursionError, YAMLError, OmegaConfBaseException) as error:
        raise Rejected("E_YAML", str(path), "a YAML file", _one_line(error)) from None


def _split(arguments, allowed):
    """(key → text of its value, the problems of other arguments, those of arguments that would change the contract)."""
    executor = dict(argument.partition("=")[::2] for argument in arguments).get("executor", "local")
    inner = settings.EXECUTORS.get(executor) or set().union(*settings.EXECUTORS.values())
    known = [*allowed, *(f"executor.{key}" for key in sorted(inner) if "executor" in allowed)]
    given, wrong, frozen = {}, [], []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        name = key.lstrip("+~-")
        field = _frozen_field(name)
        if field:
            found = f"{argument} (a knob is set by an intervention)" if field.startswith("knobs.") else argument
            where, expected = f"contract.{field}", "the contract's value"
            frozen.append(Problem(code="E_CONTRACT_FROZEN", where=where, expected=expected, found=found))
        elif not equals or not (key in known or (OPEN in known and key.removeprefix(f"{OPEN}.") not in ("", key))):
            expected, found = f"key=value with a key of {', '.join(known)}", nearest(name, known, shown=argument)
            wrong.append(Problem(code="E_USAGE", where="arguments", expected=expected, found=found))
        elif key in given:
            wrong.append(Problem(code="E_USAGE", where=key, expected="the key once", found=f"{argument} after another"))
        else:
            given[key] = text
    return given, wrong, frozen


def _value(text):
    """The value that a text stands for in Hydra's grammar; what it can't read is a text."""
    try:
        override = OverridesParser.create().parse_override(f"value={text}")
    except (HydraException, ValueError):  # ValueError: more digits than Python takes for an integer
        return text
    return text if override.is_sweep_override() else override.value()


def _unknown(group, name, folder=None):
    """The problem of a name that a group does not have."""
    known = names(group, folder)
    expected = f"one of {', '.join(known)}{' or a file that ends in .yaml' if group == 'sweep' else ''}"
    return Problem(code=GROUPS[group], where=group, expected=expected, found=nearest(name, known))


@functools.cache
def _compose(*overrides):
    """What Hydra composes of choices from groups; to be read only."""
    try:
        with initialize_config_dir(str(contracts.CONFIGS), version_base="1.3"):
            return OmegaConf.to_container(compose("config", list(overrides)), resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError("E_CONFIG", "configs", "files that compose", _one_line(error)) from None


def _one_line(error):
    return " ".join(str(error).split())[:500]


def _frozen_field(name):
    """The contract's field that an argument of this name would change, or None."""
    if name.startswith("contract."):
        return name.removeprefix("contract.")
    if name in KNOBS:
        return f"knobs.baseline.{name}"
    if name in (*RUN_OPTIONS, *SWEEP_OPTIONS):
        return None
    if name in ALIASES:
        return ALIASES[name]
    for field in _contract_fields():
        if name == field or field.endswith(f".{name}") or field.startswith(f"{name}."):
            return field
    return None


@functools.cache
def _contract_fields():
    """The dotted names of everything that a contract sets; they all set the same."""
    return list(_leaves(load_yaml(contract_file(names("contract")[0])), ""))


def _leaves(value, path):
    if not isinstance(value, dict):
        yield path
        return
    for key, child in value.items():
        yield from _leaves(child, f"{path}.{key}" if path else key)
