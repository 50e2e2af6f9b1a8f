"""From the command line and ``configs/`` to plain options.

Hydra composes; nothing here is ever instantiated from a config. What the contract freezes can't be overridden, under
any name: the refusal says which field it is.
"""

import functools
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from runner import settings
from vqkit.errors import Problem, Refused, UsageError, raise_all
from vqkit.formats import contract as contracts
from vqkit.formats.knobs import KNOBS
from vqkit.formats.schema import nearest

RUN_OPTIONS = (
    "intervention", "contract", "seed", "device", "threads", "data", "root", "marks", "phase", "out", "budget_seconds",
)  # fmt: skip
SWEEP_OPTIONS = (
    "sweep", "contract", "seeds", "device", "threads", "data", "root", "marks", "phase", "out", "executor",
    "budget_seconds", "dry_run", "calibration",
)  # fmt: skip
TEXT = ("intervention", "data", "root", "out", "calibration")  # paths: taken as they are, outside Hydra's grammar
OPEN = "executor.additional_parameters"  # takes keys that configs/ does not have
ALIASES = {
    "lr": "training.learning_rate",
    "codebook_size": "model.codes",
    "num_embeddings": "model.codes",
    "embedding_dim": "model.latent_dim",
    "epochs": "marks",
    "dataset": "data.datasets",
}


def options(arguments, allowed, beside=()):
    """Compose ``key=value`` arguments into a plain dict of the ``allowed`` options.

    Args:
        arguments: as on the command line.
        allowed: ``RUN_OPTIONS`` or ``SWEEP_OPTIONS``.
        beside: options that the command takes, too, but the caller has taken out; errors name them.

    Raises:
        Refused: E_CONTRACT_FROZEN for every argument that would change the contract.
        UsageError: E_USAGE for every unknown or malformed argument; E_CONFIG for every value of another type or range
            than ``settings`` has it.
    """
    frozen, unknown, texts, overrides, known = [], [], {}, [], (*allowed, *beside)
    base = _base()
    for argument in arguments:
        key, equals, value = argument.partition("=")
        name = key.lstrip("+~")
        field = _frozen_field(name, base["contract"], allowed)
        if field:
            found = f"{argument} (a knob is set by an intervention)" if field.startswith("knobs.") else argument
            frozen.append(
                Problem(
                    code="E_CONTRACT_FROZEN", where=f"contract.{field}", expected="the contract's value", found=found
                )
            )
        elif not equals or name.split(".")[0] not in allowed or key != name:
            found = nearest(f"{name.split('.')[0]}=", [f"{option}=" for option in known], shown=argument)
            expected = f"key=value with a key of {', '.join(known)}"
            unknown.append(Problem(code="E_USAGE", where="arguments", expected=expected, found=found))
        elif name in TEXT or (name == "sweep" and value.endswith((".yaml", ".yml"))):
            texts[name] = value
        else:
            overrides.append(f"++{argument}" if name.startswith(OPEN) else argument)
    raise_all(Refused, frozen)
    raise_all(UsageError, unknown)
    composed = _compose(overrides) | texts
    if isinstance(composed["sweep"], str):
        composed["sweep"] = load_yaml(Path(composed["sweep"]))
    chosen = {key: composed[key] for key in allowed}
    executor = settings.executor_problems(chosen["executor"]) if "executor" in chosen else []
    raise_all(UsageError, settings.problems(chosen) + executor)
    return chosen


def locked_contract(name):
    """The contract of that name, held against ``LOCK.json``."""
    return require_locked(contracts.CONFIGS / "contract" / f"{name}.yaml", name)


def require_locked(path, name):
    """A contract file, validated and held against ``LOCK.json``."""
    known = sorted(file.stem for file in path.parent.glob("*.yaml"))
    if name not in known:
        raise UsageError("E_CONTRACT_UNKNOWN", "contract", f"one of {', '.join(known)}", nearest(name, known))
    contract = contracts.Contract(load_yaml(path))
    contracts.require_locked(contract, contracts.read_lock(path.parent))
    return contract


def composed_contract(options):
    """The contract that was composed, held against ``LOCK.json``."""
    contract = contracts.Contract(options["contract"])
    contracts.require_locked(contract, contracts.read_lock())
    return contract


def load_yaml(path):
    """A YAML file as plain data, duplicate keys refused."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UsageError("E_CONFIG", str(path), "a YAML file", str(error)) from None


@functools.cache
def _base():
    """What is composed of no arguments; to be read only."""
    return _compose([])


def _compose(overrides):
    try:
        with initialize_config_dir(str(contracts.CONFIGS), version_base="1.3"):
            return OmegaConf.to_container(compose("config", overrides), resolve=True)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UsageError("E_CONFIG", "configs", "options that compose", str(error)) from None


def _frozen_field(name, contract, allowed):
    """The contract's field that an argument of this name would change, or None."""
    if name.startswith("contract."):
        return name.removeprefix("contract.")
    fields = dict(_leaves(contract, ""))
    if name in KNOBS:
        return f"knobs.baseline.{name}"
    if name in allowed:
        return None
    if name in ALIASES:
        return ALIASES[name]
    for field in fields:
        if name == field or field.endswith(f".{name}") or field.startswith(f"{name}."):
            return field
    return None


def _leaves(value, path):
    if not isinstance(value, dict):
        yield path, value
        return
    for key, child in value.items():
        yield from _leaves(child, f"{path}.{key}" if path else key)
