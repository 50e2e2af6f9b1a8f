"""What is loaded is what the plan lists: bytecode, shadowing, edits, other distributions, start-up code."""

import ast
import hashlib
import importlib.util
import sys

import pytest
from source_tree import copy_tree, plant_bytecode, python, uncovered

from runner import environment


@pytest.fixture(scope="module")
def shared_tree(tmp_path_factory):
    """A tree that no test changes."""
    return copy_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def tree(tmp_path):
    return copy_tree(tmp_path / "tree")


def test_nothing_is_uncovered_in_a_clean_tree(shared_tree):
    assert uncovered(shared_tree, "import vqkit.formats.campaign, vqkit.data, runner.config, runner.sweep") == []


def test_bytecode_does_not_run_instead_of_source(tree):
    """The planted bytecode has the mtime and size of the source: Python itself would run it, the runner does not."""
    path = tree / "vqkit" / "errors.py"
    plant_bytecode(path, path.read_text() + "\nprint('planted')\n")
    assert python(tree, "-c", "import vqkit.errors")[1] == ["planted"]
    assert uncovered(tree, "import vqkit.errors") == []


@pytest.mark.parametrize("name", ["__init__", "modules"])
def test_bytecode_of_what_is_loaded_first_is_noticed(tree, name):
    path = tree / "runner" / f"{name}.py"
    plant_bytecode(path, path.read_text() + "\nSTALE = True\n")
    expected = {"__init__": "runner (__init__.py)", "modules": "runner.modules (modules.py)"}[name]
    assert uncovered(tree, "assert runner.STALE" if name == "__init__" else "assert runner.modules.STALE") == [expected]


def test_a_module_that_shadows_the_standard_library(tree):
    (tree / "colorsys.py").write_text("")
    assert uncovered(tree, "import colorsys") == ["colorsys (colorsys.py)"]


def test_a_module_from_elsewhere(shared_tree, tmp_path):
    (tmp_path / "other_module.py").write_text("")
    script = f"sys.path.append({str(tmp_path)!r}); import other_module"
    assert uncovered(shared_tree, script) == ["other_module (other_module.py)"]


def test_a_source_that_was_edited_after_it_was_loaded(tree):
    """The listing has the new bytes, the process runs the old ones."""
    script = f"import vqkit.errors; open({str(tree / 'vqkit/errors.py')!r}, 'a').write('# edited')"
    assert uncovered(tree, script) == ["vqkit.errors (errors.py)"]


def test_a_distribution_that_the_environment_does_not_list(shared_tree):
    found = uncovered(shared_tree, "import vqkit.formats.run", without=("rfc8785",))
    assert found
    assert all(line.startswith("rfc8785") for line in found)


def test_the_sweep_may_be_loaded_and_the_evaluator_may_not(shared_tree):
    assert uncovered(shared_tree, "import runner.sweep") == []
    assert "evaluator.metrics (metrics.py)" in uncovered(shared_tree, "import evaluator.metrics")


BUILD = """
import os
from contextlib import nullcontext
from triton.runtime.build import compile_module_from_src
from runner import modules
code = "#include <Python.h>\\nstatic struct PyModuleDef d = {{PyModuleDef_HEAD_INIT, \\"built\\", 0, -1, 0}};"
code += "PyMODINIT_FUNC PyInit_built(void) {{return PyModule_Create(&d);}}"
with {context}:
    compile_module_from_src(code, "built")
    assert os.listdir(os.environ["TRITON_CACHE_DIR"])
assert os.environ["TRITON_CACHE_DIR"] == {cache!r}
assert not [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("vqkit-triton-")]
"""


@pytest.mark.parametrize("anew", [True, False])
def test_what_triton_builds_for_the_process_is_covered_and_what_its_cache_holds_is_not(shared_tree, tmp_path, anew):
    """Triton launches kernels through a C module that it builds, as here, and finds in a cache the next time."""
    if not pytest.importorskip("vqkit.nn.nearest_triton").launchable():
        pytest.skip("no C compiler or no Python.h")
    for name in ("cache", "tmp"):
        (tmp_path / name).mkdir()
    variables = {"TRITON_CACHE_DIR": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp")}
    context = "modules.compiling_anew()" if anew else "nullcontext()"
    script = BUILD.format(context=context, cache=variables["TRITON_CACHE_DIR"])
    odd = [line.split(" ")[0] for line in uncovered(shared_tree, script, **variables)]
    assert odd == ([] if anew else ["built"])
    assert bool(list((tmp_path / "cache").iterdir())) is not anew


def test_what_python_loads_by_itself_belongs_to_the_environment(shared_tree, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("x = 1\n")
    script = "from runner import modules; print(modules.startup_digests('nowhere')['sitecustomize'])"
    assert uncovered(shared_tree, script, PYTHONPATH=str(tmp_path)) == [hashlib.sha256(b"x = 1\n").hexdigest()]


def test_only_commands_of_the_runner_are_held_to_it(shared_tree):
    code = "from runner import modules; print(modules.enforced())"
    (shared_tree / "runner" / "sweep" / "probe.py").write_text(code)
    assert python(shared_tree, "-m", "runner.sweep.probe")[1] == ["True"]
    assert python(shared_tree, "-c", code)[1] == ["False"]
    (shared_tree / "runner" / "sweep" / "probe.py").unlink()


def test_what_jsonschema_loads_where_it_is_there_is_part_of_the_environment():
    tree = ast.parse(importlib.util.find_spec("jsonschema._format").loader.get_source("jsonschema._format"))
    imports = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    names = {getattr(node, "module", None) or node.names[0].name for node in imports}
    optional = {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"jsonschema"}
    assert {"idna", "webcolors"} <= optional
    assert {name.replace("_", "-") for name in optional} <= {*environment.OPTIONAL}
