"""The hash-chained ledger under crashes and concurrent writers, and the listing of the source that trains."""

import hashlib
import shutil
import subprocess
import sys

import pytest

from vqkit.errors import Rejected
from vqkit.formats import campaign, canonical, contract, digests, source

RUN = "run-00000000000000aa"


def test_events_are_chained(tmp_path):
    campaign.append_event(tmp_path, "planned")
    campaign.append_events(tmp_path, [("claimed", RUN, {"worker": 1}), ("sealed", RUN, {})])
    events = campaign.ledger_events(tmp_path)
    assert [(event["seq"], event["event"]) for event in events] == [(0, "planned"), (1, "claimed"), (2, "sealed")]
    first = (tmp_path / "ledger.jsonl").read_bytes().splitlines()[0]
    parts = b"".join(len(part).to_bytes(8, "big") + part for part in (campaign.LEDGER_ROOT.encode(), first))
    assert events[1]["previous"] == "sha256:" + hashlib.sha256(b"vqkit.ledger/1\n" + parts).hexdigest()


def test_no_ledger_has_no_events(tmp_path):
    assert campaign.ledger_events(tmp_path) == []


@pytest.mark.parametrize("torn", [b'{"torn', b'{"seq":1,"event":"planned"}', b"\x00" * 4096])
def test_a_line_that_a_crash_cut_off_is_dropped(tmp_path, torn):
    campaign.append_event(tmp_path, "planned")
    whole = (tmp_path / "ledger.jsonl").read_bytes()
    with open(tmp_path / "ledger.jsonl", "ab") as file:
        file.write(torn)
    assert len(campaign.ledger_events(tmp_path)) == 1
    campaign.append_event(tmp_path, "frozen")
    data = (tmp_path / "ledger.jsonl").read_bytes()
    assert data.startswith(whole)
    assert torn not in data
    assert [event["event"] for event in campaign.ledger_events(tmp_path)] == ["planned", "frozen"]


def test_a_changed_line_breaks_the_chain(tmp_path):
    campaign.append_events(
        tmp_path, [("planned", None, {}), ("failed", RUN, {"outcome": "timeout"}), ("frozen", None, {})]
    )
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b"timeout", b"crashed"))
    with pytest.raises(Rejected) as caught:
        campaign.ledger_events(tmp_path)
    assert caught.value.codes == ("E_SCHEMA_VALUE",)
    campaign.append_event(tmp_path, "unblinded")  # reads the last line only; what it appends repairs nothing
    with pytest.raises(Rejected) as caught:
        campaign.ledger_events(tmp_path)
    assert caught.value.codes == ("E_SCHEMA_VALUE",)


def test_nothing_is_appended_behind_a_line_that_is_no_event(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(b"{}\n")
    with pytest.raises(Rejected) as caught:
        campaign.append_event(tmp_path, "planned")
    assert set(caught.value.codes) == {"E_SCHEMA_MISSING_KEY"}
    assert path.read_bytes() == b"{}\n"


def test_an_unknown_event_is_not_written(tmp_path):
    campaign.append_event(tmp_path, "planned")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    with pytest.raises(Rejected) as caught:
        campaign.append_events(tmp_path, [("claimed", RUN, {}), ("celebrated", None, {})])
    assert caught.value.codes == ("E_SCHEMA_VALUE",)
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_writers_in_many_processes_lose_nothing(tmp_path):
    code = (
        "import sys; from pathlib import Path; from vqkit.formats import campaign\n"
        "for i in range(15): campaign.append_event(Path(sys.argv[1]), 'claimed', None, {'writer': sys.argv[2], 'i': i})"
    )
    commands = [[sys.executable, "-c", code, str(tmp_path), str(writer)] for writer in range(4)]
    writers = [subprocess.Popen(command, cwd=source.ROOT) for command in commands]
    assert [writer.wait() for writer in writers] == [0] * 4
    found = [(event["detail"]["writer"], event["detail"]["i"]) for event in campaign.ledger_events(tmp_path)]
    assert sorted(found) == [(str(writer), i) for writer in range(4) for i in range(15)]


@pytest.fixture
def tree(tmp_path):
    """A copy of the source tree."""
    for package in source.PACKAGES:
        shutil.copytree(source.ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def test_the_listing_names_size_and_content(tree):
    listing = source.listing(tree)
    assert listing == source.listing()
    names = [entry["name"] for entry in listing]
    assert names == sorted(set(names))
    assert {"runner/__init__.py", "vqkit/errors.py", "vqkit/formats/source.py"} <= set(names)
    assert not [name for name in names if name.startswith(("runner/sweep/", "vqkit/analysis/", "evaluator/"))]
    for entry in listing:
        data = (tree / entry["name"]).read_bytes()
        assert (entry["size"], entry["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize(
    "name",
    [
        "runner/log.txt",
        "runner/sweep/new.py",
        "vqkit/analysis/new.py",
        "vqkit/__pycache__/errors.pyc",
        "outside.py",
        ".git/x",
    ],
)
def test_what_does_not_execute_training_does_not_change_the_digest(tree, name):
    before = source.digest(source.listing(tree))
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_bytes(b"new")
    assert source.digest(source.listing(tree)) == before


@pytest.mark.parametrize("name", ["runner/new.py", "runner/new/deep.py", "vqkit/nn/__init__.py", "vqkit/errors.py"])
def test_what_executes_training_changes_the_digest(tree, name):
    before = source.digest(source.listing(tree))
    (tree / name).parent.mkdir(parents=True, exist_ok=True)
    (tree / name).write_bytes(b"new")
    assert source.digest(source.listing(tree)) != before


def test_a_renamed_file_changes_the_digest(tree):
    before = source.digest(source.listing(tree))
    (tree / "vqkit/errors.py").rename(tree / "vqkit/mistakes.py")
    assert source.digest(source.listing(tree)) != before


@pytest.mark.parametrize("name", ["runner/linked.py", "runner/linked"])
def test_a_link_in_the_source_is_refused(tree, name):
    (tree / name).symlink_to(tree / "vqkit")
    with pytest.raises(Rejected) as caught:
        source.listing(tree)
    assert caught.value.codes == ("E_FILE_KIND",)


@pytest.mark.parametrize("package", source.PACKAGES)
def test_a_package_that_is_a_link_is_refused(tree, package):
    (tree / package).rename(tree / "elsewhere")
    (tree / package).symlink_to(tree / "elsewhere")
    with pytest.raises(Rejected) as caught:
        source.listing(tree)
    assert caught.value.codes == ("E_FILE_KIND",)


def test_a_missing_package_is_named(tree):
    shutil.rmtree(tree / "runner")
    with pytest.raises(Rejected) as caught:
        source.listing(tree)
    assert (caught.value.codes, caught.value.problems[0].where) == (("E_FILE_MISSING",), "runner")


def test_a_lock_file_of_any_name(tmp_path):
    lock = {"tiny": digests.digest("contract", b"x")}
    (tmp_path / "mine.json").write_bytes(canonical.dumps(lock))
    assert contract.read_lock(file=tmp_path / "mine.json") == lock
    assert set(contract.read_lock()) == {"cifar10-v1", "quick-v1"}
