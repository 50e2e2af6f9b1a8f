"""README and command line are held against each other: every command shown exists and takes what is shown."""

import re
import shlex

import pytest
from conftest import REPOSITORY

from runner import config
from runner.__main__ import COMMANDS
from vqkit.errors import UsageError

README = (REPOSITORY / "README.md").read_text()
LINES = [line for block in re.findall(r"```(?:sh|console)\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
SHOWN = [
    shlex.split(line.removeprefix("$ "), comments=True) for line in LINES if line.startswith(("$ ", "make ", "python "))
]
MODULES = [words[2:] for words in SHOWN if words[:2] == ["python", "-m"]]
OPTIONS = {"run": config.RUN_OPTIONS, "sweep": config.SWEEP_OPTIONS}


def targets():
    return set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))


def variables():
    return set(re.findall(r"\$\((?:if \$\()?([A-Z]+)\)", (REPOSITORY / "Makefile").read_text()))


def test_readme_shows_commands():
    assert {"sweep", "run", "verify", "test"} <= {words[1] for words in SHOWN if words[0] == "make"}
    assert {words[0] for words in MODULES} == {"runner", "evaluator", "vqkit.analysis"}


@pytest.mark.parametrize("words", [words for words in SHOWN if words[0] == "make"], ids=" ".join)
def test_make_commands(words):
    for word in words[1:]:
        name, equals, _ = word.partition("=")
        assert name in (variables() if equals else targets()), word


@pytest.mark.parametrize("words", [words for words in MODULES if words[0] == "runner"], ids=" ".join)
def test_runner_commands(words):
    assert words[1] in COMMANDS
    for word in words[2:]:
        key, equals, _ = word.partition("=")
        if words[1] in OPTIONS and equals:
            assert key.split(".")[0] in OPTIONS[words[1]], word


@pytest.mark.parametrize("words", [words for words in MODULES if words[0] != "runner"], ids=" ".join)
def test_other_commands(words):
    import importlib

    parser = importlib.import_module(f"{words[0]}.__main__")._parser()
    try:
        parser.parse_args(words[1:])
    except UsageError as error:
        pytest.fail(str(error))


def test_links_lead_somewhere():
    links = re.findall(r"\]\((?!https?:)([^)#]+)", README)
    assert links
    assert [link for link in links if not (REPOSITORY / link).exists()] == []
