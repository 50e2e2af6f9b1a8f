"""Campaigns with a stand-in for training: planning, workers, failures, retry, what people see."""

import pytest
from playground import Playground


@pytest.fixture
def playground(tmp_path, tiny, tiny_data, monkeypatch):
    monkeypatch.setenv("FAKE_RUNS", str(tmp_path))
    return Playground(tmp_path, tiny, tiny_data)


def test_every_cell_is_executed_once_and_published(playground, capsys):
    assert playground.sweep() == 0
    run_ids = playground.run_ids()
    assert len(run_ids) == 16
    assert sorted(run_id for run_id, _ in playground.executed()) == run_ids
    assert {pid for _, pid in playground.executed()} != set()
    assert playground.evidence().keys() == set(run_ids)
    assert "16 planned = 16 complete + 0 failed + 0 missing" in capsys.readouterr().out
