"""What ``make sweep`` runs where nothing else is said: the contract, the device and the data that can be had here.

``preset=auto`` takes cifar10-v1 on CUDA where the data allow it, and quick-v1 otherwise; any other preset is the name
of a contract. A contract or a device on the command line wins over the preset.
"""

import sys
import textwrap
from pathlib import Path

from runner import config
from runner.data import Progress
from vqkit.data import resolve
from vqkit.errors import Refused

LARGE, SMALL = "cifar10-v1", "quick-v1"


def choose(argv, host):
    """Resolve preset and data.

    Args:
        argv: ``key=value`` arguments of ``sweep``, ``preset=`` among them or not.
        host: a ``Host``.

    Returns:
        (argv without the preset, with contract and device spelt out if there was one; a ``vqkit.data.Resolved``).
    """
    given = {key: value for key, _, value in (argument.partition("=") for argument in argv)}
    kept = [argument for argument in argv if not argument.startswith("preset=")]
    chosen = config.options(kept, config.SWEEP_OPTIONS, beside=("preset",))
    progress = Progress()
    try:
        data = resolve(chosen["data"], Path(chosen["root"]), download=True, progress=progress)
    finally:
        progress.close()
    if data.notice:
        _announce(data.notice)
    if "preset" in given:
        has_cuda = host.cuda_devices() > 0
        contract = _contract(data, has_cuda) if given["preset"] == "auto" else given["preset"]
        defaults = {"contract": contract, "device": "cuda" if has_cuda else "cpu"}
        kept += [f"{key}={value}" for key, value in defaults.items() if key not in given]
        print(f"preset {given['preset']}: {' '.join(kept)}", file=sys.stderr)
    return kept, data


def _contract(data, has_cuda):
    if not has_cuda:
        return SMALL
    try:
        config.locked_contract(LARGE).require_dataset(data.id)
    except Refused:
        return SMALL
    return LARGE


def _announce(text):
    rule = "*" * 100
    print(rule, textwrap.fill(text, len(rule), break_long_words=False), rule, sep="\n", file=sys.stderr)
