"""Who may import whom, read from the syntax trees; and the proof that this check can fail."""

import ast
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

FORMATS = {"vqkit.__version__", "vqkit.errors", "vqkit.formats", "numpy"}
RULES = {
    "vqkit/errors.py": set(),
    "vqkit/formats": FORMATS | {"rfc8785", "jsonschema", "safetensors"},
    "vqkit/nn": {"vqkit.errors", "vqkit.nn", "torch", "triton"},
    "vqkit/data": FORMATS | {"vqkit.data", "torchvision", "pyarrow", "skimage", "PIL", "tqdm"},
    "vqkit/analysis": FORMATS
    | {"vqkit.analysis", "pandas", "pyarrow", "scipy", "statsmodels", "matplotlib", "tensorboard"},
    "runner": FORMATS
    | {
        "vqkit.data",
        "vqkit.nn",
        "runner",
        "torch",
        "hydra",
        "omegaconf",
        "yaml",
        "tqdm",
        "cryptography",
        "submitit",
        "ray",
    },
    "evaluator": FORMATS | {"evaluator"},
    "evaluator/signature.py": FORMATS | {"evaluator", "cryptography"},
}


def imported(source):
    """Every module that the source imports, at any depth of nesting, with its dotted name."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def forbidden(source, allowed):
    """The imports of ``source`` that are neither standard library nor under a name in ``allowed``."""
    return sorted(
        name
        for name in imported(source)
        if name.split(".")[0] not in sys.stdlib_module_names
        and not any(name == known or name.startswith(f"{known}.") for known in allowed)
    )


def modules(part):
    """The files under a rule: those that have no rule of their own."""
    path = REPOSITORY / part
    own = {REPOSITORY / other for other in RULES if other.startswith(f"{part}/")}
    return [path] if path.is_file() else sorted(set(path.rglob("*.py")) - own)


@pytest.mark.parametrize("part", RULES)
def test_imports_keep_to_the_house_plan(part):
    found = {str(path.relative_to(REPOSITORY)): forbidden(path.read_text(), RULES[part]) for path in modules(part)}
    assert {name: bad for name, bad in found.items() if bad} == {}


def test_every_module_is_under_a_rule():
    covered = {path for part in RULES for path in modules(part)} | {REPOSITORY / "vqkit/__init__.py"}
    packages = [path for name in ("vqkit", "runner", "evaluator") for path in (REPOSITORY / name).rglob("*.py")]
    assert set(packages) == covered


@pytest.mark.parametrize(
    ("part", "line"),
    [
        ("evaluator", "import torch"),
        ("evaluator", "from vqkit.nn import nearest"),
        ("evaluator", "from vqkit import nn"),
        ("evaluator", "def f():\n    from runner.plan import Plan"),
        ("evaluator", "def f():\n    import cryptography.hazmat"),
        ("evaluator/signature.py", "import torch"),
        ("runner", "import evaluator.metrics"),
        ("runner", "from vqkit import analysis"),
        ("vqkit/formats", "import torch.nn"),
        ("vqkit/nn", "from vqkit.formats import run"),
        ("vqkit/analysis", "from runner import train"),
    ],
)
def test_the_check_can_fail(part, line):
    path = modules(part)[0]
    assert len(forbidden(f"{path.read_text()}\n{line}\n", RULES[part])) == 1


def test_evaluator_and_formats_load_without_the_training_side():
    """What the trees say is what happens: in a fresh interpreter none of it gets loaded."""
    import subprocess

    others = ["torch", "hydra", "omegaconf", "runner", "pandas", "cryptography"]
    script = (
        "import sys, evaluator.__main__, vqkit.formats.campaign, vqkit.formats.run\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & set(sys.argv)))"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, *others], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[]"


def test_paths_exist():
    assert all((REPOSITORY / part).exists() for part in RULES)
    assert Path(REPOSITORY / "pyproject.toml").is_file()
