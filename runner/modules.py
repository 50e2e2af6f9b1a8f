"""The code that runs: every loaded module is listed source, the standard library, or of a listed distribution.

``runner/__init__`` installs a finder before any other module of the source is loaded. Through it these modules are
compiled from their files every time, so that no bytecode can run instead, and the digest of what was compiled is kept.
``compiling_anew`` asks the same of Triton. ``uncovered`` holds all of that against a plan.
"""

import contextlib
import csv
import functools
import hashlib
import importlib.machinery
import json
import os
import subprocess
import sys
import sysconfig
import tempfile

from runner import ROOT

PACKAGES = ("runner", "vqkit")
OUTSIDE = os.path.join("runner", "sweep", "")  # hands out cells and never trains: may be loaded, no digest covers it
_LOADED = (
    "import json, sys; print(json.dumps({name: module.__spec__.origin for name, module in sys.modules.items()"
    " if getattr(module, '__spec__', None) and module.__spec__.has_location}))"
)
_compiled = {}  # file → sha256 of the source that was compiled from it
_built = []  # folders that hold what Triton has built for this process from listed files, and nothing else


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles a module from its source, whatever bytecode lies beside it, and remembers the digest."""

    def get_code(self, fullname):
        path = self.get_filename(fullname)
        data = self.get_data(path)
        _compiled[os.path.abspath(path)] = hashlib.sha256(data).hexdigest()
        return self.source_to_code(data, path)


class _Finder:
    """Finds what the other finders find, and gives modules of the source to ``_Loader``."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] not in PACKAGES:
            return None
        path = path or [ROOT]  # the packages themselves; what ``sys.path`` says of them does not count
        found = (finder.find_spec(name, path, target) for finder in sys.meta_path if finder is not cls)
        spec = next((spec for spec in found if spec is not None), None)
        if spec is not None and type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install():
    """Load modules of the source through ``_Loader`` from now on."""
    if _Finder not in sys.meta_path:
        sys.meta_path.insert(0, _Finder)


def note(code):
    """Remember a module that was loaded before ``install``, if ``code``, its running code, is what its file gives."""
    with open(code.co_filename, "rb") as file:
        data = file.read()
    if compile(data, code.co_filename, "exec", dont_inherit=True) == code:
        _compiled[os.path.abspath(code.co_filename)] = hashlib.sha256(data).hexdigest()


@contextlib.contextmanager
def compiling_anew():
    """Have Triton compile into an empty folder of this process. Its cache, which anybody may have written to, would
    give it kernels, and the module that launches them, that no digest covers."""
    before = os.environ.get("TRITON_CACHE_DIR")
    with tempfile.TemporaryDirectory(prefix="vqkit-triton-") as folder:
        _built.append(os.path.join(os.path.abspath(folder), ""))
        os.environ["TRITON_CACHE_DIR"] = folder
        try:
            yield
        finally:
            del os.environ["TRITON_CACHE_DIR"]
            if before is not None:
                os.environ["TRITON_CACHE_DIR"] = before


def enforced():
    """Whether this process is a command or a worker of the runner. A program that imports the runner, as the tests do,
    has modules of its own and answers for them itself."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.partition(".")[0] == PACKAGES[0]


def uncovered(plan, root):
    """The loaded modules that no digest of the plan covers, each with its file name, sorted.

    Args:
        plan: ``plan.json`` as plain data.
        root: the folder of the source tree.
    """
    listed = {os.path.join(root, entry["name"]): entry["sha256"] for entry in plan["source"]}
    distributions, odd = plan["environment"]["distributions"], []
    for name, path in _located_modules():
        if path in listed:
            covered = _compiled.get(path) == listed[path]
        elif path.startswith((os.path.join(root, OUTSIDE), *_built)):
            covered = True
        else:
            covered = path in _installed(tuple(distributions)) or _is_standard(path) or startup().get(name) == path
        if not covered:
            odd.append(f"{name} ({os.path.basename(path)})")
    return sorted(odd)


def startup_digests(root):
    """name → sha256 of the modules outside the standard library that Python loads by itself before any command.

    A ``.pth`` file or ``sitecustomize`` can do that; their code belongs to the environment. The path of the source
    tree ``root`` does not: an editable install writes it into such a module, and it counts as ``.`` there.
    """
    digests = {}
    for name, path in startup().items():
        with open(path, "rb") as file:
            digests[name] = hashlib.sha256(file.read().replace(os.fsencode(root), b".")).hexdigest()
    return digests


@functools.cache
def startup():
    """name → file of these modules, as a bare interpreter shows them."""
    found = subprocess.run([sys.executable, "-c", _LOADED], capture_output=True, check=True).stdout
    return {name: path for name, path in sorted(json.loads(found).items()) if not _is_standard(path)}


def _located_modules():
    """(name, file) of every loaded module that has one; a module without was made by one of the others."""
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__dict__", {}).get("__spec__")
        if spec is not None and spec.has_location and spec.origin:
            yield name, os.path.abspath(spec.origin)


@functools.cache
def _standard_folders():
    return [os.path.join(os.path.realpath(sysconfig.get_path(key)), "") for key in ("stdlib", "platstdlib")]


@functools.cache
def _is_standard(path):
    """Whether a file belongs to the standard library; site-packages may lie inside its folder and does not."""
    real = os.path.realpath(path)
    inside = [real.removeprefix(folder) for folder in _standard_folders() if real.startswith(folder)]
    return any(name.split(os.sep)[0] not in ("site-packages", "dist-packages") for name in inside)


@functools.cache
def _installed(names):
    """The files of the distributions of these names, as their RECORD lists them."""
    from importlib import metadata  # takes as long to load as all else here

    files = set()
    for name in names:
        distribution = metadata.distribution(name)
        base = os.path.join(os.path.abspath(distribution.locate_file("")), "")
        record = distribution.read_text("RECORD") or ""
        files |= {base + row[0] for row in csv.reader(record.splitlines()) if row}
    return files


note(sys._getframe().f_code)
