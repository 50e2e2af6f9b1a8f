"""SIGKILL at every write boundary of a run, and of scoring, freezing and unblinding: enumerated, not sampled."""

import crash
import pytest

from vqkit.formats import run


@pytest.fixture(scope="module")
def runs(tiny_data):
    return crash.enumerated("run", tiny_data)


@pytest.fixture(scope="module")
def scorings(tiny_data):
    return crash.enumerated("score", tiny_data)


def test_every_write_of_a_run_is_among_the_boundaries(runs):
    """Nine files, each created, written in two halves, made read-only, synced, linked, unlinked, its folder synced."""
    assert len(runs) - 1 > 9 * 8


def test_a_killed_run_is_incomplete_until_its_manifest_is_there(runs):
    """Never a complete state from a partial run, and from the manifest on never a lost one."""
    sealed = [run.MANIFEST in line.get("names", []) for line in runs]
    first = sealed.index(True)
    assert all(sealed[first:])
    for line in runs[:first]:
        assert (line["state"], line["code"]) == ("incomplete", "E_RUN_INCOMPLETE")
    for line in runs[first:]:
        assert (line["state"], line["level"]) == ("complete", "V4"), line
    assert len({line["evidence"] for line in runs[first:]}) == 1
    assert 0 < len(runs) - first < 10


def test_no_half_file_ever_has_its_name(runs):
    """A name of the run appears with all files before it, in the order in which they are written."""
    order = ["sealed/reveal.json", run.PLAN]
    order += [f"evidence/{name}" for mark in (0, 1) for name in (run.mark_file(mark), run.state_file(mark))]
    order += [f"evidence/{run.STEPS}", f"evidence/{run.TERMINAL}", run.MANIFEST]
    for line in runs:
        named = [name for name in line["names"] if not name.endswith(".tmp")]
        assert named == sorted(order[: len(named)])


def test_the_same_command_never_writes_into_a_killed_run(runs):
    assert [line["kept"] for line in runs if line["died"] and "kept" in line].count(False) == 0
    assert any("kept" in line for line in runs)


def test_scoring_goes_on_after_every_kill_and_ends_the_same(scorings):
    assert len(scorings) - 1 > 5 * 8
    assert len({(line["frozen.json"], line["unblinded.json"]) for line in scorings}) == 1
    for line in scorings:
        assert line["events"].count("frozen") == line["events"].count("unblinded") == 1
        assert line["events"].count("scored") == 3


def test_nothing_is_frozen_before_its_scores_or_unblinded_before_it_is_frozen(scorings):
    for line in scorings:
        if line["between"]["frozen.json"]:
            assert line["scores"] == 3
        if line["between"]["unblinded.json"]:
            assert line["between"]["frozen.json"]
    assert {line["between"]["frozen.json"] for line in scorings} == {False, True}
