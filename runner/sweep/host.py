"""What a sweep takes from single runs and from the machine. The only module of the sweep that imports training.

Imports are inside the functions: a driver that only watches, and ``status``, never load torch.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from vqkit.formats import digests, source


def execute(progress, **request):
    """One run: the fields of a ``runner.plan.Request`` in, its terminal statement out."""
    from runner.execute import execute as execute_request
    from runner.plan import Request

    return execute_request(Request(**request), progress)


def environment_digest(device, threads):
    """The digest of the environment that a cell would run in here; pins the process as a run does."""
    from runner.environment import environment, pin

    pin(device, threads)
    return digests.digest_json("environment", environment(device, threads))


def device_class(device):
    """What two machines must share so that the same plan gives the same evidence, as one line."""
    from runner import environment

    return environment.device_class(device)


def source_digest():
    """The digest of the files that execute training."""
    return source.digest(source.listing())


def cuda_devices():
    """How many CUDA devices this process sees."""
    import torch

    return torch.cuda.device_count()


@dataclass(frozen=True, kw_only=True)
class Host:
    """The functions above, as one value that driver and worker are given; ``worker`` starts a worker process."""

    execute: Callable = execute
    environment_digest: Callable = environment_digest
    device_class: Callable = device_class
    source_digest: Callable = source_digest
    cuda_devices: Callable = cuda_devices
    worker: tuple = field(default=(sys.executable, "-m", "runner.sweep.worker"))
