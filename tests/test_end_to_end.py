"""The whole line on real CIFAR-10 pixels, through the commands that people use, each in a process of its own."""

import json
import os
import subprocess
import sys

import pandas as pd
import pytest
from conftest import REPOSITORY

SWEEP = """\
name: small
reference: reference
arms:
  - {label: faster, intervention: projection-lr-30}
  - {label: tied, intervention: commitment-4}
seeds: {count: 6}
"""
DATASET = "cifar10-exact-4000"


@pytest.fixture(scope="module")
def command(tmp_path_factory):
    """Run ``python -m …`` in an empty folder; its completed process."""
    folder = tmp_path_factory.mktemp("work")

    def run(*arguments, check=0):
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        made = subprocess.run(
            [sys.executable, "-m", *map(str, arguments)], cwd=folder, env=environment, capture_output=True, text=True
        )
        assert made.returncode == check, made.stderr
        return made

    run.folder = folder
    return run


@pytest.fixture(scope="module")
def campaign(command, shared_data):
    """A scored, unblinded and calibrated campaign: 3 arms × 6 seeds to mark 2."""
    command("runner", "data", "prepare", shared_data / DATASET, "--holdout", 512)
    (command.folder / "small.yaml").write_text(SWEEP)
    options = ["contract=quick-v1", "device=cpu", f"data={DATASET}", "marks=[0,2]", "out=campaign"]
    made = command("runner", "sweep", "sweep=small.yaml", *options)
    assert made.stdout.strip() == "campaign"
    early = command("evaluator", "unblind", "campaign", check=4)
    assert "E_NOT_FROZEN" in early.stderr
    command("evaluator", "score", "campaign")
    command("evaluator", "unblind", "campaign")
    command("vqkit.analysis", "calibrate", "campaign")
    command("vqkit.analysis", "report", "campaign")
    return command.folder / "campaign"


def test_the_decision_finds_the_better_and_the_worse_arm(campaign):
    decision = json.loads((campaign / "calibration.json").read_text())["decision"]
    assert (decision["status"], decision["budget_mark"]) == ("calibrated", 2)
    assert "faster" in decision["known_better"]
    assert "tied" in decision["known_worse"]


def test_every_result_names_the_dataset(campaign):
    assert json.loads((campaign / "calibration.json").read_text())["dataset"]["id"] == DATASET
    for name in ("report.html", "results.csv"):
        assert DATASET in (campaign / name).read_text(), name
    assert set(pd.read_parquet(campaign / "results.parquet")["dataset"]) == {DATASET}


def test_results_have_one_row_for_each_cell_and_mark(campaign):
    table = pd.read_parquet(campaign / "results.parquet")
    assert len(table) == 3 * 6 * 2
    assert set(table["state"]) == {"complete"}
    assert (table.groupby(["arm", "mark"])["seed"].nunique() == 6).all()
    assert table["normalized_perplexity"].between(0, 1).all()


def test_a_second_sweep_trains_nothing(campaign, command):
    before = {path: path.stat().st_mtime_ns for path in (campaign / "runs").rglob("*")}
    options = ["contract=quick-v1", "device=cpu", f"data={DATASET}", "marks=[0,2]", "out=campaign"]
    command("runner", "sweep", "sweep=small.yaml", *options)
    assert {path: path.stat().st_mtime_ns for path in (campaign / "runs").rglob("*")} == before


def test_one_run_and_its_verification(campaign, command):
    """A run of the command line equals the campaign's cell to the byte, verifies to V4, and one flipped byte shows."""
    reference = REPOSITORY / "configs/intervention/reference.json"
    command(
        "runner",
        "run",
        f"intervention={reference}",
        "seed=101",
        "device=cpu",
        f"data={DATASET}",
        "marks=[0,2]",
        "out=r",
    )
    verdict = json.loads(command("evaluator", "verify", "r", "--level", "V4", "--json").stdout)
    assert verdict["verification"]["level"] == "V4"
    found = pd.read_parquet(campaign / "results.parquet").query("role == 'reference' and seed == 101")
    manifest = json.loads((command.folder / "r/manifest.json").read_text())["predicate"]
    assert set(found["digest_evidence"]) == {manifest["digests"]["evidence"]}
    path = command.folder / "r/evidence/mark-0002.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o644)
    path.write_bytes(data)
    failed = command("evaluator", "verify", "r", check=6)
    assert "mark-0002.safetensors" in failed.stderr
