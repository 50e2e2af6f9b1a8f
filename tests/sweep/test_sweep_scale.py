"""Large campaigns: what they hold and how much memory they take; how long they take, `make bench` measures."""

from pathlib import Path

import fake_runs
import pytest
from playground import Playground, inline

from runner.sweep import command, plan
from vqkit.formats import campaign


def large(root, tiny, tiny_data, arms):
    """A playground whose sweep has ``arms`` arms and 16 seeds."""
    playground = Playground(root, tiny, tiny_data)
    levels = [inline(f"a{i}", commitment_weight=0.3 + i / 1000) for i in range(arms - 1)]
    playground.options["sweep"] = {**playground.options["sweep"], "arms": levels, "seeds": {"count": 16}}
    return playground


def memory(field):
    """Bytes of this process in Linux's account: resident (VmRSS), or the most since the peak was reset (VmHWM)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) << 10


def test_an_append_reads_the_end_of_the_ledger_only(tmp_path):
    """Appends go on with the chain behind 40 MB that no reader of the ledger would accept."""
    line = {"event": "scored", "run_id": "run-0123456789abcdef", "detail": {"text": "x" * 4000}}
    campaign.append_events(tmp_path, [(line["event"], line["run_id"], line["detail"])] * 2)
    short = (tmp_path / campaign.LEDGER).read_bytes()
    (tmp_path / campaign.LEDGER).write_bytes(b"\n".join([b"x" * 4000] * 10000) + b"\n" + short)
    for _ in range(20):
        campaign.append_event(tmp_path, "scored", "run-0123456789abcdef")
    whole = (tmp_path / campaign.LEDGER).read_bytes()
    events, _ = campaign.read_ledger(whole[whole.index(short) :])
    assert len(events) == 22


@pytest.mark.slow
def test_a_thousand_cells_are_executed_once_and_looked_at(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    playground = large(tmp_path, tiny, tiny_data, 63)
    assert playground.sweep() == 0
    assert playground.state()["states"] == {"complete": 1008}
    assert playground.sweep() == 0
    assert len(playground.executed()) == 1008


@pytest.mark.slow
def test_a_hundred_thousand_cells_are_planned_in_less_than_a_gibibyte(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    playground = large(tmp_path, tiny, tiny_data, 6250)
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of what ran before in this process
    resident = memory("VmRSS")
    terms = command.terms_of(playground.options, tiny, tiny_data, "sweep", fake_runs.HOST)
    plan.create(playground.out, terms)
    assert memory("VmHWM") - resident < 1 << 30
    assert len(playground.run_ids()) == 100000
