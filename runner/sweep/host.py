"""What a sweep takes from single runs and from the machine. The only module of the sweep that imports training.

Imports are inside the functions: a driver that only watches, and ``status``, never load torch.
"""

import gc
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from vqkit.formats import source


def load():
    """Import what ``execute`` needs. Nothing of it is garbage, and looking for some is a seventh of the time."""
    gc.disable()
    for name in ("runner.execute", "runner.plan"):
        importlib.import_module(name)
    gc.freeze()
    gc.enable()


def execute(progress, **request):
    """One run: the fields of a ``runner.plan.Request`` in, its terminal statement out."""
    from runner.execute import execute as execute_request
    from runner.plan import Request

    return execute_request(Request(**request), progress)


def probe(*request):
    """What ``estimate.timed`` says of one short run here."""
    from runner.sweep.estimate import timed

    return timed(execute, *request)


def environment(device, threads):
    """The facts of the environment that a cell would run in here; pins the process as a run does."""
    from runner.environment import environment as facts
    from runner.environment import pin

    pin(device, threads)
    return facts(device, threads)


def cuda_devices():
    """How many CUDA devices this process sees."""
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True, kw_only=True)
class Host:
    """The functions above, as one value that driver and worker are given; ``worker`` starts a worker process.

    ``load`` imports training; ``take`` gives a worker that waits for an order, if there is one (see ``standby``), and
    ``dismiss`` ends those that are left.
    """

    execute: Callable = execute
    probe: Callable = probe
    environment: Callable = environment
    source: Callable = source.listing
    cuda_devices: Callable = cuda_devices
    load: Callable = load
    take: Callable = lambda: None
    dismiss: Callable = lambda: None
    worker: tuple = field(default=(sys.executable, "-m", "runner.sweep.worker"))
