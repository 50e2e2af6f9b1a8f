"""The command line: exit codes, both forms of output, and that it runs without anything that trains."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import fabricate
import pytest

from evaluator.__main__ import main
from vqkit.errors import guarded
from vqkit.formats import run

REPOSITORY = Path(__file__).parents[2]
FORBIDDEN = (
    "torch",
    "hydra",
    "omegaconf",
    "scipy",
    "pandas",
    "skimage",
    "pyarrow",
    "runner",
    "vqkit.nn",
    "vqkit.analysis",
)

ISOLATED = """
import sys
class Wall:
    def find_spec(self, name, path=None, target=None):
        if name in FORBIDDEN or name.split(".")[0] in FORBIDDEN:
            raise ImportError(f"{name} is not installed here")
sys.meta_path.insert(0, Wall())
from vqkit.errors import guarded
EXTRA
from evaluator.__main__ import main
sys.exit(guarded(main, sys.argv[1:]))
"""


def isolated(*arguments, extra=""):
    """Run the evaluator in a process where nothing of ``FORBIDDEN`` can be imported."""
    code = f"FORBIDDEN = {FORBIDDEN!r}\n" + ISOLATED.replace("EXTRA", extra)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


@pytest.fixture
def made_up(tmp_path, tiny, tiny_data):
    """A function that writes a run and returns the arguments that verify it."""

    def write(**options):
        folder = fabricate.write_run(tmp_path / "one", tiny, tiny_data, **options)
        lock = fabricate.write_lock(tmp_path / "LOCK.json", tiny)
        return [str(folder), "--data", str(tiny_data), "--lock", str(lock)]

    return write


def test_verify_and_score_run_where_nothing_that_trains_is_installed(made_up, tmp_path):
    arguments = made_up()
    done = isolated("verify", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verification"]["level"] == "V3"
    replayed = isolated("verify", *arguments, "--level", "V4")
    assert replayed.returncode == 6
    assert "V4.reconstruction" in replayed.stderr
    assert isolated("score", *arguments).returncode == 0
    assert isolated("unblind", tmp_path / "one").returncode == 0


@pytest.mark.parametrize("module", ["torch", "scipy.stats", "vqkit.nn", "runner"])
def test_the_wall_holds(made_up, module):
    done = isolated("verify", *made_up(), extra=f"import {module}")
    assert done.returncode == 1
    assert "is not installed here" in done.stderr


def test_verify_prints_a_table(made_up, capsys):
    assert guarded(main, ["verify", *made_up()]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["check", "status", "found"]
    assert any(line.split()[:2] == ["V3.metrics", "passed"] for line in lines)
    assert any(line.split()[:2] == ["V4.indices", "not_run"] for line in lines)
    assert "one: state complete; reached V3 (recomputed)" in lines
    assert any(line.startswith("not proven: V4 is not reached") for line in lines)


def test_failed_checks_exit_6_and_name_the_file(made_up, tmp_path, capsys):
    arguments = made_up()
    path = tmp_path / "one" / "evidence" / run.mark_file(1)
    fabricate.replace(path, path.read_bytes()[:-1] + b"\x00")
    assert guarded(main, ["verify", *arguments]) == 6
    assert f"error[E_VERIFY] one V1.content.{run.mark_file(1)}" in capsys.readouterr().err
    assert guarded(main, ["verify", *arguments, "--json"]) == 6
    streams = capsys.readouterr()
    assert json.loads(streams.out)["verification"]["status"] == "failed"
    assert json.loads(streams.err)["exit"] == 6


def test_the_line_that_digest_prints_can_be_expected(made_up, capsys):
    arguments = made_up()
    assert guarded(main, ["digest", arguments[0]]) == 0
    line = capsys.readouterr().out
    assert guarded(main, ["verify", *arguments, "--expect", line]) == 0
    assert guarded(main, ["digest", arguments[0], "--expect", line]) == 0
    other = line.replace(line.split()[-1], f"sha256:{'0' * 64}")
    assert guarded(main, ["verify", *arguments, "--expect", other]) == 6
    assert guarded(main, ["verify", *arguments, "--expect", f"{line} {other}"]) == 2


def test_a_missing_input_exits_7(made_up, capsys):
    folder, _, _, *lock = made_up()
    assert guarded(main, ["verify", folder, *lock]) == 7
    assert "error[E_VERIFY_NOT_RUN] one V2.dataset" in capsys.readouterr().err
    assert guarded(main, ["verify", folder, *lock, "--level", "V1"]) == 0


def test_a_run_without_a_manifest_exits_7(made_up, tmp_path, capsys):
    arguments = made_up()
    (tmp_path / "one" / run.MANIFEST).unlink()
    for command in (["verify", *arguments], ["score", *arguments], ["digest", arguments[0]], ["reproduce", *arguments]):
        assert guarded(main, command) == 7
        assert capsys.readouterr().err.startswith("error[E_RUN_INCOMPLETE] one: expected manifest.json, written last")


def test_a_diverged_run_exits_5_unless_v2_is_enough(made_up, capsys):
    arguments = made_up(state="nonfinite", measured=1)
    assert guarded(main, ["verify", *arguments]) == 5
    assert "E_RUN_NONFINITE" in capsys.readouterr().err
    assert guarded(main, ["verify", *arguments, "--level", "V2"]) == 0
    assert guarded(main, ["score", *arguments]) == 0


def test_the_score_of_one_run_is_shown_mark_by_mark(made_up, tmp_path, capsys):
    assert guarded(main, ["score", *made_up()]) == 0
    head, names, *rows = capsys.readouterr().out.splitlines()
    (path,) = tmp_path.glob("*.score.json")
    assert head.endswith(str(path))
    marks = json.loads(path.read_bytes())["marks"]
    assert len(rows) == len(marks) > 1
    for row, mark in zip(rows, marks, strict=True):
        assert [float(text) for text in row.split()] == pytest.approx([mark[name] for name in names.split()], rel=1e-3)


def test_early_unblinding_exits_4(made_up, tmp_path, capsys):
    made_up()
    assert guarded(main, ["unblind", str(tmp_path / "one")]) == 4
    assert "E_NOT_FROZEN" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [], ["verify"], ["verify", "x", "--level", "V9"], ["verify", "x", "--expect", "y"], ["reproduce"], ["digest"],
        ["digest", "x", "--expect", "sha256:0"], ["score"], ["unblind"], ["verify", "x", "y"], ["verify", "x", "--foo"],
    ],
)  # fmt: skip
def test_what_is_not_understood_exits_2(arguments, capsys):
    assert guarded(main, arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error[E_USAGE] ")
    assert "_digest" not in error


def test_scoring_needs_a_dataset(made_up, capsys):
    folder, *_ = made_up()
    assert guarded(main, ["score", folder]) == 2
    assert capsys.readouterr().err.startswith("error[E_USAGE] score: ")


def test_score_prints_the_denominator(tmp_path, tiny, tiny_data, capsys):
    folder = fabricate.write_campaign(tmp_path / "campaign", tiny, tiny_data)
    lost = sorted((folder / "runs").iterdir())[0]
    shutil.rmtree(lost)
    inputs = ["--data", str(tiny_data), "--lock", str(fabricate.write_lock(tmp_path / "LOCK.json", tiny))]
    assert guarded(main, ["score", str(folder), *inputs]) == 7
    assert f"error[E_CAMPAIGN_INCOMPLETE] {lost.name}" in capsys.readouterr().err
    assert guarded(main, ["score", str(folder), *inputs, "--final"]) == 0
    assert "planned 6 = complete 5 + failed 0 + missing 1" in capsys.readouterr().out
    assert guarded(main, ["unblind", str(folder)]) == 0
    assert "(2 cells)" in capsys.readouterr().out
