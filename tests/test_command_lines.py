"""Every command with bad input: a named error and its exit code, one line a problem, no traceback, nothing written."""

import ast
import contextlib
import io
import json
import os
import re
from types import SimpleNamespace

import fabricate
import pytest
from conftest import REPOSITORY, artifact_bytes
from hypothesis import given, settings
from hypothesis import strategies as st

import evaluator.__main__ as evaluator
import runner.__main__ as runner
from runner import config
from runner.sweep import preset
from vqkit import errors
from vqkit.analysis import __main__ as analysis
from vqkit.errors import VqkitError, guarded

COMMANDS = {"runner": runner.main, "evaluator": evaluator.main, "analysis": analysis.main}
LINE = re.compile(r"error\[(E_[A-Z_]+)\] .*: expected .*, found .*")
REFERENCE = str(REPOSITORY / "configs/intervention/reference.json")
TO_KEEP = "sha256:" + "0" * 64


@pytest.fixture(scope="module")
def place(tmp_path_factory, tiny, tiny_data):
    """A folder with a run, a campaign, a dataset and much that is none of them."""
    folder = tmp_path_factory.mktemp("place")
    fabricate.write_run(folder / "run", tiny, tiny_data)
    fabricate.write_campaign(folder / "campaign", tiny, tiny_data)
    for name in ("empty", "broken", "linked"):
        (folder / name).mkdir()
    (folder / "broken/campaign.json").write_text("{")
    os.symlink(folder / "campaign/campaign.json", folder / "linked/campaign.json")
    os.symlink(folder / "nowhere", folder / "dangling")
    os.symlink(tiny_data, folder / "noise")
    (folder / "file").write_text("no JSON, no key, no YAML: {")
    (folder / "other.json").write_bytes(artifact_bytes(commitment_weight=99.0))
    (folder / "sweep.yaml").write_text("name: a\nname: b\n")
    fabricate.write_lock(folder / "LOCK.json", tiny)
    return folder


@pytest.fixture
def call(place, monkeypatch):
    """A function that runs a command in ``place``: (exit code, the codes of its errors); fails on anything else."""
    monkeypatch.chdir(place)
    monkeypatch.setattr("runner.sweep.standby.Standby", _NoStandby)

    def run(command, *argv):
        before = {path: path.lstat().st_mtime_ns for path in place.rglob("*")}
        output, error = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(error):
            code = guarded(COMMANDS[command], list(argv))
        lines = error.getvalue().splitlines()
        assert all(LINE.fullmatch(line) for line in lines), error.getvalue()
        assert {path: path.lstat().st_mtime_ns for path in place.rglob("*")} == before
        return code, [LINE.fullmatch(line)[1] for line in lines], lines

    return run


class _NoStandby:
    """Nothing waits for a sweep that ends before it begins."""

    def __init__(self, host, count=1):
        self.host = host

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


@pytest.mark.parametrize(("folder", "found"), [
    ("missing", "nothing"), ("dangling", "nothing"), ("file", "a file"), ("empty", "a folder without it"),
    ("noise", "a folder without it"),
])  # fmt: skip
def test_what_is_no_campaign_is_called_the_same_everywhere(call, folder, found):
    wording = f"expected the folder of a campaign, with campaign.json, found {found}"
    for command in ("runner status", "runner retry", "analysis calibrate", "analysis report"):
        code, codes, (line,) = call(*command.split(), folder)
        assert (code, codes) == (3, ["E_CAMPAIGN_MISSING"]), command
        assert line == f"error[E_CAMPAIGN_MISSING] {folder}: {wording}"
    for command in ("score", "unblind", "digest"):
        code, codes, (line,) = call("evaluator", command, folder)
        assert (code, codes) == (3, ["E_CAMPAIGN_MISSING"]), command
        assert line.replace(", or of a run, with plan.json", "").endswith(f"{folder}: {wording}")


def test_a_run_is_no_campaign_where_only_a_campaign_will_do(call):
    for command in ("runner status", "runner retry", "analysis calibrate", "analysis report"):
        assert call(*command.split(), "run")[:2] == (3, ["E_CAMPAIGN_MISSING"])
    assert call("evaluator", "digest", "run")[:2] == (0, [])


@pytest.mark.parametrize(("folder", "code"), [("broken", "E_JSON_SYNTAX"), ("linked", "E_FILE_KIND")])
def test_a_campaign_that_is_damaged_is_called_the_same_everywhere(call, folder, code):
    for command in ("runner status", "runner retry", "analysis calibrate"):
        assert call(*command.split(), folder)[:2] == (3, [code]), command
    for command in ("score", "unblind", "digest"):
        assert call("evaluator", command, folder, *(["--data", "noise"] if command == "score" else []))[:2] == (
            3,
            [code],
        )


RUN = ("run", f"intervention={REFERENCE}", "seed=101", "device=cpu")
SWEEP = ("sweep", "device=cpu", "data=noise")


@pytest.mark.parametrize(("command", "argv", "exit_code", "codes"), [
    ("runner", [], 2, ["E_USAGE"]),
    ("runner", ["foo"], 2, ["E_USAGE"]),
    ("runner", ["knobs", "x"], 2, ["E_USAGE"]),
    ("runner", ["check"], 2, ["E_USAGE"]),
    ("runner", ["check", "missing"], 3, ["E_FILE_MISSING"]),
    ("runner", ["check", "empty"], 3, ["E_FILE_KIND"]),
    ("runner", ["check", "file"], 3, ["E_JSON_SYNTAX"]),
    ("runner", ["check", "other.json"], 3, ["E_KNOB_DOMAIN"]),
    ("runner", ["check", REFERENCE, "--contract", ""], 2, ["E_CONTRACT_UNKNOWN"]),
    ("runner", ["check", REFERENCE, "--contract", "../config"], 2, ["E_CONTRACT_UNKNOWN"]),
    ("runner", ["check", REFERENCE, "--phase", "x"], 2, ["E_USAGE"]),
    ("runner", ["lock", "nope"], 2, ["E_CONTRACT_UNKNOWN"]),
    ("runner", ["lock", "../config"], 2, ["E_CONTRACT_UNKNOWN"]),
    ("runner", ["run"], 2, ["E_USAGE", "E_USAGE"]),
    ("runner", ["run", "--json=1"], 2, ["E_USAGE", "E_USAGE", "E_USAGE"]),
    ("runner", [*RUN, "seed=102"], 2, ["E_USAGE"]),
    ("runner", [*RUN, "seeds=[101]"], 2, ["E_USAGE"]),
    ("runner", [*RUN, "executor.slots=2"], 2, ["E_USAGE"]),
    ("runner", [*RUN, "contract=nope"], 2, ["E_CONTRACT_UNKNOWN"]),
    ("runner", [*RUN, "marks=[]"], 2, ["E_CONFIG"]),
    ("runner", [*RUN, "codebook_size=2"], 4, ["E_CONTRACT_FROZEN"]),
    ("runner", ["run", "intervention=missing", "seed=101", "device=cpu"], 3, ["E_FILE_MISSING"]),
    ("runner", ["run", "intervention=other.json", "seed=101", "device=cpu"], 3, ["E_KNOB_DOMAIN"]),
    ("runner", ["run", "intervention=", "seed=101", "device=cpu"], 2, ["E_CONFIG"]),
    ("runner", [*SWEEP, "foo=1", "+bar=2", "~out", "sweep"], 2, ["E_USAGE"] * 4),
    ("runner", [*SWEEP, "executor.foo=1"], 2, ["E_USAGE"]),
    ("runner", [*SWEEP, "executor=nope", "contract=nope", "sweep=nope"], 2,
     ["E_CONTRACT_UNKNOWN", "E_CONFIG", "E_CONFIG"]),
    ("runner", [*SWEEP, "preset=nope"], 2, ["E_CONTRACT_UNKNOWN"]),
    ("runner", [*SWEEP, "threads=${oc.env:HOME}", "seeds=[", "marks=1,2"], 2, ["E_CONFIG"] * 3),
    ("runner", [*SWEEP, "seeds=[-1]"], 2, ["E_CONFIG"]),
    ("runner", [*SWEEP, "lr=1"], 4, ["E_CONTRACT_FROZEN"]),
    ("runner", [*SWEEP, "lr=1", "foo=1"], 2, ["E_USAGE", "E_CONTRACT_FROZEN"]),
    ("runner", [*SWEEP, "sweep=missing.yaml"], 3, ["E_FILE_MISSING"]),
    ("runner", [*SWEEP, "sweep=sweep.yaml"], 3, ["E_YAML"]),
    ("runner", [*SWEEP, "dry_run=true"], 3, ["E_DATA_EMPTY"]),
    ("runner", ["sweep", "device=cpu", "data=empty"], 3, ["E_DATA_SOURCE"]),
    ("runner", ["status"], 2, ["E_USAGE"]),
    ("runner", ["retry", "campaign"], 7, ["E_STAGE_MISSING"]),
    ("runner", ["retry", "missing", "--slots", "0", "--budget-seconds", "-1"], 2, ["E_USAGE", "E_USAGE"]),
    ("runner", ["sign", "campaign", "--key", "file"], 7, ["E_RUN_INCOMPLETE"]),
    ("runner", ["sign", "run", "--key", "file"], 3, ["E_KEY"]),
    ("runner", ["repeat", "empty", "--data", "noise", "--out", "x"], 3, ["E_FILE_MISSING"]),
    ("runner", ["repeat", "run", "--data", "empty", "--out", "x"], 3, ["E_DATA_SOURCE"]),
    ("runner", ["data"], 2, ["E_USAGE"]),
    ("runner", ["data", "prepare", "file"], 3, ["E_DATA_SOURCE"]),
    ("runner", ["data", "prepare", "empty", "--holdout", "-1"], 2, ["E_USAGE"]),
    ("runner", ["data", "show", "file"], 3, ["E_DATA_SOURCE"]),
    ("evaluator", [], 2, ["E_USAGE"]),
    ("evaluator", ["verify", "missing"], 7, ["E_RUN_INCOMPLETE"]),
    ("evaluator", ["verify", "run", "--expect", "x"], 2, ["E_USAGE"]),
    ("evaluator", ["verify", "run", "--lock", "LOCK.json", "--data", "empty"], 3, ["E_DATA_SOURCE"]),
    ("evaluator", ["verify", "run", "--lock", "file", "--data", "noise"], 3, ["E_JSON_SYNTAX"]),
    ("evaluator", ["verify", "run", "--source", "empty", "--data", "noise"], 3, ["E_FILE_MISSING"]),
    ("evaluator", ["verify", "run", "--key", "file", "--data", "noise"], 3, ["E_KEY"]),
    ("evaluator", ["score", "campaign"], 2, ["E_USAGE"]),
    ("evaluator", ["score", "campaign", "--data", "noise"], 4, ["E_VERIFIER_INPUT"]),
    ("evaluator", ["unblind", "campaign"], 4, ["E_NOT_FROZEN"]),
    ("evaluator", ["unblind", "run"], 4, ["E_NOT_FROZEN"]),
    ("evaluator", ["digest", "run", "--expect", TO_KEEP], 6, ["E_VERIFY"]),
    ("analysis", [], 2, ["E_USAGE"]),
    ("analysis", ["calibrate", "campaign"], 7, ["E_STAGE_MISSING", "E_STAGE_MISSING"]),
    ("analysis", ["report", "campaign"], 7, ["E_STAGE_MISSING"]),
    ("analysis", ["power"], 2, ["E_USAGE"]),
    ("analysis", ["power", "--sigma", "-1", "--delta", "0"], 2, ["E_USAGE", "E_USAGE"]),
    ("analysis", ["power", "--sigma", "1", "--delta", "1", "--alpha", "1e-300"], 2, ["E_USAGE"]),
    ("analysis", ["power", "--sigma", "1", "--delta", "1", "--plot", "missing/x.svg"], 2, ["E_USAGE"]),
])  # fmt: skip
def test_bad_input_has_its_code_and_exit(call, command, argv, exit_code, codes):
    assert call(command, *argv)[:2] == (exit_code, codes)


@pytest.mark.parametrize(("command", "argv"), [
    ("runner", ["status", "missing"]), ("runner", ["run", "foo=1"]), ("evaluator", ["score", "missing"]),
    ("analysis", ["report", "missing"]),
])  # fmt: skip
def test_errors_as_json_are_the_same_errors(call, capsys, command, argv):
    code, codes, _ = call(command, *argv)
    assert guarded(COMMANDS[command], [*argv, "--json"]) == code
    found = json.loads(capsys.readouterr().err)
    assert found["exit"] == code
    assert [problem["code"] for problem in found["errors"]][-len(codes) :] == codes


def test_an_interrupt_and_a_fault_are_json_too(capsys):
    def stop(argv):
        raise KeyboardInterrupt

    for main, code, exit_code in ((stop, "E_RUN_CANCELLED", 5), (lambda argv: 1 / 0, "E_INTERNAL", 1)):
        assert guarded(main, ["--json"]) == exit_code
        found = json.loads(capsys.readouterr().err.splitlines()[-1])
        assert (found["exit"], found["errors"][0]["code"]) == (exit_code, code)


KEYS = st.sampled_from([*config.SWEEP_OPTIONS, "seed", "executor.slots", config.OPEN, f"{config.OPEN}.qos", "lr", ""])
VALUES = st.text("[]{}(),:=$.'\"\\ a1-?*#@", max_size=8)


@given(st.lists(st.builds("{}{}{}".format, KEYS, st.sampled_from(["=", "", ".x="]), VALUES), max_size=3))
@settings(max_examples=300, deadline=None)
def test_options_end_in_a_value_or_in_a_typed_error_of_one_line_a_problem(arguments):
    for allowed in (config.RUN_OPTIONS, config.SWEEP_OPTIONS):
        lines = []
        try:
            assert tuple(config.options(arguments, allowed)) == allowed
        except VqkitError as error:
            lines = str(error).splitlines()
        assert all(LINE.fullmatch(line) for line in lines)


@pytest.mark.parametrize(("argv", "devices", "chosen"), [
    ([], 0, ("quick-v1", "cuda")),
    (["preset=auto"], 0, ("quick-v1", "cpu")),
    (["preset=auto"], 1, ("quick-v1", "cuda")),  # cifar10-v1 does not allow this dataset
    (["preset=cifar10-v1"], 1, ("cifar10-v1", "cuda")),
    (["preset=cifar10-v1", "contract=quick-v1", "device=cpu"], 1, ("quick-v1", "cpu")),
])  # fmt: skip
def test_a_preset_chooses_what_is_not_given(tiny_data, argv, devices, chosen):
    host = SimpleNamespace(cuda_devices=lambda: devices)
    found, data = preset.choose([*argv, f"data={tiny_data}"], host)
    assert (found["contract"]["name"], found["device"]) == chosen
    assert data.id == "noise"


def raised(source):
    """(code, name of the class) of every error that the source makes with a code of its own."""
    kinds = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, VqkitError)}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in kinds and node.args:
            for code in ast.walk(node.args[0]):
                if isinstance(code, ast.Constant) and str(code.value).startswith("E_"):
                    yield code.value, node.func.id


def test_a_code_has_one_exit_code():
    kinds = {}
    for part in ("runner", "evaluator", "vqkit"):
        for path in (REPOSITORY / part).rglob("*.py"):
            for code, kind in raised(path.read_text()):
                kinds.setdefault(code, set()).add(kind)
    assert {code: found for code, found in kinds.items() if len(found) > 1} == {}
    assert len(kinds) > 30
    assert set(raised('raise Refused("E_X", "a")\nraise Rejected("E_X", "a")')) == {
        ("E_X", "Refused"),
        ("E_X", "Rejected"),
    }
