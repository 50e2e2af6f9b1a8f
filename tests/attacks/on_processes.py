"""Attacks on a run while it is going on: disk, clock, interrupts, a second writer."""

import json
import os
import time
from datetime import UTC, datetime

import crash
import numpy as np
import pytest
from on_artifacts import request_for
from source_tree import copy_tree, plant_bytecode, python, uncovered
from table import call, holds

from evaluator.score import score_run
from evaluator.verify import climb
from runner import execute as module
from runner.execute import execute, require_complete
from vqkit.formats import campaign, dataset, files, run, source, tensors


@call("the disk is full from the second mark on", "E_FILE_WRITE", "runner")
def full_disk(stage):
    with pytest.MonkeyPatch.context() as patch:
        _fail_writes(patch, range(10, 10**6))
        try:
            execute(request_for(stage))
        finally:
            assert not (stage.root / "new" / run.MANIFEST).exists()
            assert not list((stage.root / "new").rglob(".*.tmp"))


@call("the disk is full for a moment, between the two files of a mark", "E_RUN_ERROR", "runner")
def full_for_a_moment(stage):
    names = []
    original = tensors.encode

    def failing(arrays, layout):
        names.append(sorted(layout)[0])
        if len(names) == 4:
            raise OSError(28, "No space left on device")
        return original(arrays, layout)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors, "encode", failing)
        terminal = execute(request_for(stage))
    assert terminal["marks"] == [0]
    assert sorted(os.listdir(stage.root / "new" / run.EVIDENCE)) == sorted(run.evidence_names([0]))
    verdict = climb(stage.root / "new", stage.held)
    assert (verdict.status, verdict.level, verdict.marks) == ("passed", "V2", [])
    require_complete(terminal)


@call("an interrupt between the two files of a mark", "E_RUN_CANCELLED", "runner")
def interrupted(stage):
    original = module._Writer.evidence

    def interrupting(self, name, data):
        files.write_once(self.out / run.EVIDENCE / name, data)
        if name == run.mark_file(1):
            raise KeyboardInterrupt
        (self.out / run.EVIDENCE / name).unlink()
        original(self, name, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Writer, "evidence", interrupting)
        terminal = execute(request_for(stage))
    verdict = climb(stage.root / "new", stage.held)
    assert (verdict.status, verdict.level, verdict.state) == ("passed", "V2", "cancelled")
    require_complete(terminal)


@call("a second writer on one run", "E_FILE_EXISTS", "runner")
def second_writer(stage):
    before = {path: path.read_bytes() for path in stage.run.rglob("*") if path.is_file()}
    try:
        execute(request_for(stage, out=stage.run, seed=103))
    finally:
        assert before == {path: path.read_bytes() for path in stage.run.rglob("*") if path.is_file()}


@call("a second writer on one file", "E_FILE_EXISTS", "runner")
def second_file(stage):
    try:
        files.write_once(stage.run / run.MANIFEST, b"{}")
    finally:
        assert climb(stage.run, stage.held).level == "V3"


@holds("a clock that runs backwards", "no clock in evidence, resources never negative", "runner")
def backwards(stage):
    ticks = iter(range(10**6, 0, -1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", lambda: float(next(ticks)))
        patch.setattr(module, "_now", lambda: datetime.fromtimestamp(next(ticks), UTC).isoformat(timespec="seconds"))
        execute(request_for(stage))
    sealed = [json.loads((folder / run.MANIFEST).read_bytes()) for folder in (stage.root / "new", stage.run)]
    assert sealed[0]["subject"] == sealed[1]["subject"]
    assert sealed[0]["predicate"]["resources"]["wall_seconds"] == 0
    assert climb(stage.root / "new", stage.held, level="V4").level == "V4"


@holds("a run that is scored while it is still going on", "no manifest, no score", "evaluator")
def scored_early(stage):
    seen = []

    def peek(event):
        with pytest.raises(Exception, match="E_RUN_INCOMPLETE"):
            score_run(stage.root / "new", stage.held)
        seen.append(event["epoch"])

    execute(request_for(stage), peek)
    assert seen == [1, 2]


@call("the source is edited between its digest and the end of the run", "E_RUN_INVALID", "runner")
def edited_source(stage):
    listing, calls = source.listing, []

    def edited(*arguments):
        calls.append(1)
        entries = listing(*arguments)
        return entries if len(calls) < 3 else [*entries[:-1], {**entries[-1], "sha256": "0" * 64}]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "listing", edited)
        terminal = execute(request_for(stage))
    assert terminal["marks"] == [0, 1, 2]
    _not_scored(stage, stage.root / "new")
    require_complete(terminal)


@holds("modules beside the source that shadow libraries", "they are never loaded", "runner")
def shadowing(stage):
    """A whole run in a copy of the tree, with modules beside it that would act and then give way to the library's."""
    tree, traces = copy_tree(stage.root / "tree"), stage.root / "traces"
    for name in ("csv", "heapq", "tqdm", "numpy", "opt_einsum"):
        (tree / f"{name}.py").write_text(f"open({str(traces)!r}, 'a').write(__name__)\n")
    rng = np.random.default_rng(0)
    counts = {"train": 2048, "evaluation": 512}
    images = {split: rng.integers(0, 256, (count, 32, 32, 3), np.uint8) for split, count in counts.items()}
    labels = {split: np.zeros(count, np.uint8) for split, count in counts.items()}
    data, out = stage.root / "noise", stage.root / "new"
    dataset.write(data, dataset.Dataset(id="noise", source="random", images=images, labels=labels))
    assert python(tree, "-c", "import csv")[0] == 0
    assert traces.read_text() == "csv", "they would act"
    traces.unlink()
    options = ["intervention=configs/intervention/reference.json", "seed=101", "device=cpu", "marks=[0]"]
    code, _, errors = python(tree, "-m", "runner", "run", *options, f"data={data}", f"out={out}")
    assert code == 0, errors
    assert not traces.exists()
    assert run.parse_terminal((out / run.EVIDENCE / run.TERMINAL).read_bytes())["state"] == "complete"


@holds("bytecode of other code beside a source file, with its date and size", "bytecode is never loaded", "runner")
def stale_bytecode(stage):
    tree = copy_tree(stage.root / "tree")
    path = tree / "vqkit" / "errors.py"
    plant_bytecode(path, path.read_text() + "\nprint('planted')\n")
    assert python(tree, "-c", "import vqkit.errors")[1] == ["planted"]
    assert uncovered(tree, "import vqkit.errors") == []


@holds("a source file is edited after it was loaded and before it is digested", "E_RUN_INVALID", "runner")
def edited_after_loading(stage):
    tree = copy_tree(stage.root / "tree")
    script = f"import vqkit.errors; open({str(tree / 'vqkit/errors.py')!r}, 'a').write('# edited')"
    assert uncovered(tree, script) == ["vqkit.errors (errors.py)"]


@holds("SIGKILL at every write boundary of a run", "no manifest, no run; with a manifest, a whole one", "V1")
def killed_run(stage):
    for line in crash.enumerated("run", stage.data):
        assert line["state"] == ("complete" if run.MANIFEST in line["names"] else "incomplete")


@holds("SIGKILL at every write boundary of scoring and unblinding", "done again, it ends with the same bytes", "V3")
def killed_scoring(stage):
    assert len({line[campaign.FROZEN] for line in crash.enumerated("score", stage.data)}) == 1


def _not_scored(stage, folder):
    """A run that did not complete can be verified, and its score holds no metrics."""
    score, path = score_run(folder, stage.held)
    assert (score["marks"], score["verification"]["level"]) == ([], "V2")
    path.unlink()


def _fail_writes(patch, numbers):
    """Let the syncs of these numbers fail, as a full disk does."""
    original, count = os.fsync, [0]

    def failing(handle):
        count[0] += 1
        if count[0] in numbers:
            raise OSError(28, "No space left on device")
        original(handle)

    patch.setattr(os, "fsync", failing)
