"""The environment: pin everything that decides numbers, and say what it is.

Listed: python, the distributions that training can import, what Python loads by itself at its start, the torch build,
the device class, determinism flags, threads, environment variables that numerical libraries read or that preload
code. Not listed: host, user, time, paths.
"""

import ctypes
import os
import platform
import re
from importlib import metadata

import torch

from runner import modules
from runner.variables import numerical
from vqkit.errors import Refused
from vqkit.formats import source

ROOTS = ("torch", "numpy", "safetensors", "rfc8785", "jsonschema", "hydra-core", "omegaconf", "tqdm")
OPTIONAL = (  # torch; jsonschema's formats
    "opt-einsum", "optree", "dill",
    "fqdn", "idna", "isoduration", "jsonpointer", "rfc3339-validator", "rfc3986-validator", "rfc3987", "rfc3987-syntax",
    "uri-template", "webcolors",
)  # fmt: skip
CUBLAS_WORKSPACE = ":4096:8"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # parameters of mallopt(3)


def pin(device, threads):
    """Make the process deterministic: algorithms, float32 without TF32, cuBLAS workspace, threads.

    Raises:
        Refused: E_DEVICE when the device is not there.
    """
    if device == "cuda" and not torch.cuda.is_available():
        raise Refused("E_DEVICE", "device", "a CUDA device, or device=cpu as a declared choice", "no CUDA device")
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = CUBLAS_WORKSPACE
    torch.set_deterministic_debug_mode("error")  # use_deterministic_algorithms, without loading a compiler
    torch.utils.deterministic.fill_uninitialized_memory = False  # a twentieth of a step, and nothing here reads any
    torch.backends.cudnn.benchmark = False
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    torch.set_num_threads(threads)
    _keep_memory()


def environment(device, threads):
    """The facts that the environment digest covers; call ``pin`` first. Flat, or one level of names under a name."""
    return {
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "system": f"{platform.system()} {platform.machine()}",
        "torch": str(torch.__version__),
        "device": device_class(device),
        "threads": threads,
        "flags": {
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "fill_uninitialized_memory": torch.utils.deterministic.fill_uninitialized_memory,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            "flush_denormal": False,
        },
        "variables": numerical(os.environ),
        "distributions": distributions(),
        "startup": modules.startup_digests(source.ROOT),
    }


def device_class(device):
    """What two machines must share so that the same plan gives the same evidence, as one line."""
    if device == "cuda":
        driver = torch.cuda.get_device_properties(0)
        return (
            f"cuda {driver.name}, compute {driver.major}.{driver.minor}, {driver.multi_processor_count} SMs, "
            f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}, driver {_driver_version()}"
        )
    return f"cpu {_cpu_model()}, {torch.backends.cpu.get_cpu_capability()}"


def distributions():
    """name → version of the distributions that ``ROOTS`` need, and those that they load where they are there
    (``OPTIONAL``), transitively, as installed."""
    found, queue = {}, [*ROOTS, *OPTIONAL]
    while queue:
        name = _normal(queue.pop())
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # a requirement of an extra or of another platform
        about = distribution.metadata  # parsed anew at every access
        found[name] = about["Version"]
        needs = about.get_all("Requires-Dist") or distribution.requires or []
        queue += [re.split(r"[\s;<>=!~\[(]", need, maxsplit=1)[0] for need in needs if "extra ==" not in need]
    return dict(sorted(found.items()))


def _keep_memory():
    """Let glibc keep freed blocks, which it would otherwise give back and fault in again at every step."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library: slower, the same numbers
    mallopt(M_MMAP_THRESHOLD, 32 << 20)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def _cpu_model():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            facts = dict(re.findall(r"^(vendor_id|cpu family|model|stepping)\s*:\s*(.+)$", file.read(), re.MULTILINE))
    except OSError:
        facts = {}
    if {"vendor_id", "cpu family", "model"} <= facts.keys():
        return f"{facts['vendor_id']} family {facts['cpu family']} model {facts['model']}"
    return platform.processor() or platform.machine()


def _driver_version():
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            return re.search(r"\d+\.\d+(\.\d+)?", file.read())[0]
    except (OSError, TypeError):
        return "unknown"
