"""What a wheel would hold: every package, every config; and the words that have no place in the project."""

import re
import subprocess
import tomllib

import pytest
from conftest import REPOSITORY

PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())


def test_every_package_is_listed():
    found = {
        ".".join(path.parent.relative_to(REPOSITORY).parts)
        for name in ("vqkit", "runner", "evaluator")
        for path in (REPOSITORY / name).rglob("*.py")
    }
    assert found | {"configs"} == set(PROJECT["tool"]["setuptools"]["packages"])


def test_every_config_is_package_data():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["configs"]
    configs = {path for path in (REPOSITORY / "configs").rglob("*") if path.is_file()}
    assert len(configs) > 10
    assert configs == {path for pattern in patterns for path in (REPOSITORY / "configs").glob(pattern)}


def test_every_requirement_is_pinned():
    pins = dict(
        line.split("==")
        for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    )
    names = {re.sub(r"[-_.]+", "-", name).lower() for name in pins}
    extras = PROJECT["project"]["optional-dependencies"]
    wanted = [*PROJECT["project"]["dependencies"], *(need for extra in extras.values() for need in extra)]
    assert [need for need in wanted if re.split(r"[<>=!\[]", need)[0].lower() not in names] == []


def test_no_pixels_and_no_machine_paths_are_tracked():
    listed = subprocess.run(["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    tracked = listed.stdout.split()
    if not tracked:
        pytest.skip("not a git checkout")
    binary = [name for name in tracked if name.endswith((".parquet", ".safetensors", ".npy", ".pyc"))]
    assert [name for name in binary if not name.startswith("tests/vectors/")] == []
    machine = re.compile(r"(?<![\w}])/(work|farm|root|home/\w+)/|pypi\.org/simple|files\.pythonhosted")
    texts = [name for name in tracked if name.endswith((".py", ".md", ".toml", ".txt", ".yaml", ".json", "Makefile"))]
    found = [
        name
        for name in texts
        if name != "tests/test_packaging.py" and machine.search((REPOSITORY / name).read_text(errors="replace"))
    ]
    assert found == []
