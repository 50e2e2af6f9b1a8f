"""A copy of the source tree, and small programs that run in it."""

import shutil
import subprocess
import sys

from conftest import REPOSITORY

from vqkit.formats import source

PROBE = """
import importlib.metadata, sys
import runner
{script}
from runner import modules
from vqkit.formats import source
names = [found.name for found in importlib.metadata.distributions() if found.name not in {without!r}]
plan = {{"source": source.listing(), "environment": {{"distributions": names}}}}
print(*modules.uncovered(plan, source.ROOT), sep="\\n")
"""


def copy_tree(folder):
    """The files that execute training, the configs and the evaluator, without any bytecode."""
    for entry in source.listing():
        (folder / entry["name"]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source.ROOT / entry["name"], folder / entry["name"])
    for name in ("configs", "evaluator", "runner/sweep"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def python(tree, *arguments, **variables):
    """Run Python in the tree; (exit code, output lines, error text)."""
    command = [sys.executable, *arguments]
    environment = {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", **variables}
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines(), done.stderr


def uncovered(tree, script, *, without=(), **variables):
    """What ``modules.uncovered`` finds in a process that loads the runner and then runs ``script``."""
    code, lines, errors = python(tree, "-c", PROBE.format(script=script, without=without), **variables)
    assert code == 0, errors
    return [line for line in lines if line]


def plant_bytecode(path, source_text):
    """Bytecode beside a source file that Python takes for the file's own: of other code, with its mtime and size."""
    import importlib.util
    import marshal

    state = path.stat()
    code = compile(source_text, str(path), "exec")
    fields = (0, int(state.st_mtime) & 0xFFFFFFFF, state.st_size & 0xFFFFFFFF)
    head = importlib.util.MAGIC_NUMBER + b"".join(field.to_bytes(4, "little") for field in fields)
    cached = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(head + marshal.dumps(code))
