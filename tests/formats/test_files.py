"""Write once, read once; tensors by layout; digests bound to kind, name and order of parts."""

import os
import stat

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from vqkit.errors import InternalError, Rejected
from vqkit.formats import digests, files, source, tensors

LAYOUT = {"a": ("uint8", (2, 3)), "b": ("float32", (4,))}
ARRAYS = {"a": np.arange(6, dtype=np.uint8).reshape(2, 3), "b": np.linspace(0, 1, 4, dtype=np.float32)}


def code_of(call, *arguments, **options):
    with pytest.raises(Rejected) as caught:
        call(*arguments, **options)
    (code,) = caught.value.codes
    return code


def test_write_once_is_exclusive_and_read_only(tmp_path):
    path = tmp_path / "f"
    files.write_once(path, b"first")
    assert code_of(files.write_once, path, b"second") == "E_FILE_EXISTS"
    assert path.read_bytes() == b"first"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert os.listdir(tmp_path) == ["f"]


def test_a_failed_write_leaves_nothing(tmp_path, monkeypatch):
    def fail(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert code_of(files.write_once, tmp_path / "f", b"data") == "E_FILE_WRITE"
    assert os.listdir(tmp_path) == []


def test_read_once_refuses_everything_but_a_bounded_regular_file(tmp_path):
    path = tmp_path / "f"
    path.write_bytes(b"12345")
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "pipe")
    assert files.read_once(path) == b"12345"
    assert code_of(files.read_once, tmp_path / "none") == "E_FILE_MISSING"
    assert code_of(files.read_once, tmp_path / "link") == "E_FILE_KIND"
    assert code_of(files.read_once, tmp_path / "pipe") == "E_FILE_KIND"
    assert code_of(files.read_once, tmp_path) == "E_FILE_KIND"
    assert code_of(files.read_once, path, max_bytes=4) == "E_FILE_SIZE"


def test_tensors_are_plain_safetensors():
    data = tensors.encode(ARRAYS, LAYOUT)
    read = load(data)
    assert all(np.array_equal(read[name], ARRAYS[name]) for name in ARRAYS)
    assert all(np.array_equal(tensors.decode(data, LAYOUT, where="x")[name], ARRAYS[name]) for name in ARRAYS)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00" * 7,
        b"\xff" * 64,
        save({**ARRAYS, "c": ARRAYS["b"]}),
        save({"a": ARRAYS["a"]}),
        save({**ARRAYS, "a": ARRAYS["a"].astype(np.int8)}),
        save({**ARRAYS, "a": ARRAYS["a"].reshape(3, 2)}),
        save(ARRAYS) + b"\x00",
        save(ARRAYS)[:-1],
        save(ARRAYS, metadata={"hidden": "words"}),
        b"\x80\x04\x95" + b"pickle" * 20,
    ],
    ids=range(11),
)
def test_any_other_bytes_are_refused(data):
    assert code_of(tensors.decode, data, LAYOUT, where="x") == "E_TENSORS"


@given(st.lists(st.binary(max_size=6), min_size=1, max_size=3), st.lists(st.binary(max_size=6), min_size=1, max_size=3))
def test_digests_separate_parts(one, two):
    assert (digests.digest("plan", *one) == digests.digest("plan", *two)) == (one == two)


def test_replace_says_what_was_not_written(tmp_path):
    files.replace(tmp_path / "f", b"old")
    files.replace(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"new"
    assert code_of(files.replace, tmp_path / "absent" / "f", b"new") == "E_FILE_WRITE"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_digests_separate_kinds_and_bind_names():
    assert digests.digest("plan", b"x") != digests.digest("score", b"x")
    entry = ("a", 1, "0" * 64)
    base = digests.digest_files("evidence", [entry, ("b", 1, "1" * 64)])
    assert base == digests.digest_files("evidence", [("b", 1, "1" * 64), entry])
    assert base != digests.digest_files("evidence", [("b", 1, "0" * 64), ("a", 1, "1" * 64)])
    with pytest.raises(InternalError):
        digests.digest("unheard-of", b"x")


def test_source_covers_what_executes_and_nothing_else(tmp_path):
    for name in ("runner/a.py", "runner/sweep/b.py", "vqkit/c.py", "vqkit/analysis/d.py", "vqkit/nn/e.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    before = source.digest(source.listing(tmp_path))
    assert [entry["name"] for entry in source.listing(tmp_path)] == ["runner/a.py", "vqkit/c.py", "vqkit/nn/e.py"]
    for name in ("runner/run.log", "runner/__pycache__/a.cpython-311.pyc", "outputs/x.py", "vqkit/analysis/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("changed")
    assert source.digest(source.listing(tmp_path)) == before
    (tmp_path / "vqkit/nn/e.py").write_text("changed")
    assert source.digest(source.listing(tmp_path)) != before
