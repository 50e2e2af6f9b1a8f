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
from vqkit.errors import Refused, UsageError
from vqkit.formats.schema import nearest

AUTO = "auto"
LARGE, SMALL = "cifar10-v1", "quick-v1"


def choose(argv, host):
    """Resolve preset and data.

    Args:
        argv: ``key=value`` arguments of ``sweep``, ``preset=`` among them or not.
        host: a ``Host``.

    Returns:
        (the options as ``config.options`` gives them, the preset resolved; a ``vqkit.data.Resolved``).
    """
    chosen = config.options(argv, config.SWEEP_OPTIONS)
    known = (AUTO, *config.names("contract"))
    if chosen["preset"] not in (None, *known):
        expected = f"one of {', '.join(known)}"
        raise UsageError("E_CONTRACT_UNKNOWN", "preset", expected, nearest(chosen["preset"], known))
    progress = Progress()
    try:
        data = resolve(chosen["data"], Path(chosen["root"]), download=True, progress=progress)
    finally:
        progress.close()
    if data.notice:
        _announce(data.notice)
    if chosen["preset"] is not None:
        has_cuda = host.cuda_devices() > 0
        contract = _contract(data, has_cuda) if chosen["preset"] == AUTO else chosen["preset"]
        given = {argument.partition("=")[0] for argument in argv}
        defaults = {"contract": contract, "device": "cuda" if has_cuda else "cpu"}
        argv = [*argv, *(f"{key}={value}" for key, value in defaults.items() if key not in given)]
        print(f"sweep {' '.join(argv)}", file=sys.stderr)
        chosen = config.options(argv, config.SWEEP_OPTIONS)
    return chosen, data


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
