"""CIFAR-10 by torchvision's checks, on a small archive in its pickle layout; downloads that fail; the earned name."""

import functools
import hashlib
import http.server
import shutil
import socket
import threading
import time

import numpy as np
import pytest
from datafiles import noise, png, tree, unpack, write_archive, write_pair, write_parquet
from torchvision.datasets import CIFAR10

from vqkit.data import cifar10, resolve, show
from vqkit.errors import Refused, Rejected, UsageError
from vqkit.formats import dataset
from vqkit.formats.dataset import open_dataset


@pytest.fixture
def root(tmp_path):
    """An empty data root."""
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.fixture
def serve():
    """A function that serves a TCP connection by ``handler(connection)`` and returns the address as http://…"""
    listeners = []

    def start(handler):
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def loop():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=handler, args=(connection,), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        return f"http://127.0.0.1:{listener.getsockname()[1]}/cifar-10-python.tar.gz"

    yield start
    for listener in listeners:
        listener.close()


def write_as_pair(folder, splits):
    """The same pixels as a Parquet pair."""
    for stem, (images, labels) in zip(("train", "test"), splits.values(), strict=True):
        write_parquet(folder / f"{stem}.parquet", [png(image) for image in images], labels)


def no_network(monkeypatch):
    """Any attempt to fetch something fails the test."""
    monkeypatch.setattr(cifar10, "_fetch", lambda *_: pytest.fail("a download was tried"))
    monkeypatch.setattr(CIFAR10, "download", lambda *_: pytest.fail("a download was tried"))


# A copy


@pytest.mark.parametrize("layout", ["archive in root", "batches in root", "archive", "folder", "batches"])
def test_copy_in_every_layout(tmp_path, root, monkeypatch, layout):
    archive, splits = write_archive(tmp_path / "raw", monkeypatch)
    no_network(monkeypatch)
    spec = "cifar10"
    if layout == "archive in root":
        shutil.copy(archive, root)
    elif layout == "batches in root":
        unpack(archive, root)
    elif layout == "batches":
        unpack(archive, tmp_path / "unpacked")
        spec = tmp_path / "unpacked" / "cifar-10-batches-py"
    else:
        spec = archive if layout == "archive" else archive.parent
    before = tree(tmp_path)
    found = resolve(str(spec), root)
    assert (found.id, found.train, found.evaluation, found.folder) == ("cifar10", 20, 6, root / "cifar10")
    opened = open_dataset(found.folder)
    for split, (images, labels) in splits.items():
        assert np.array_equal(opened.images[split], images)
        assert opened.labels[split].tolist() == labels
    added = tree(tmp_path).keys() - before.keys()
    assert added == {"data/cifar10", "data/cifar10/dataset.json", "data/cifar10/images.safetensors"}
    assert resolve("cifar10", root, download=True) == found
    assert resolve("auto", root, download=True) == found


@pytest.mark.parametrize("damage", ["html", "cut", "empty", "altered"])
def test_damaged_archive(tmp_path, root, monkeypatch, damage):
    archive, _ = write_archive(root, monkeypatch)
    no_network(monkeypatch)
    data = archive.read_bytes()
    archive.write_bytes(
        {"html": b"<!doctype html>503", "cut": data[:-1], "empty": b"", "altered": data[:-1] + b"\0\0"}[damage]
    )
    before = tree(tmp_path)
    for spec in ("cifar10", "auto", str(archive), str(root)):
        with pytest.raises(Rejected) as caught:
            resolve(spec, root, download=True)
        assert caught.value.codes == ("E_DATA_FILE",)
        assert tree(tmp_path) == before
    words = {"html": "an HTML page of 18 bytes", "empty": "an empty file"}
    assert words.get(damage, f"a gzip file of {archive.stat().st_size} bytes, cut off") in str(caught.value)


def test_archive_with_the_right_md5_that_can_not_be_unpacked(tmp_path, root, monkeypatch):
    archive, _ = write_archive(root, monkeypatch)
    archive.write_bytes(archive.read_bytes()[:-500])
    monkeypatch.setattr(CIFAR10, "tgz_md5", hashlib.md5(archive.read_bytes()).hexdigest())
    before = tree(tmp_path)
    with pytest.raises(Rejected) as caught:
        resolve("cifar10", root)
    assert caught.value.codes == ("E_DATA_FILE",)
    assert tree(tmp_path) == before


def test_all_damaged_batches_are_reported(tmp_path, root, monkeypatch):
    archive, _ = write_archive(tmp_path / "raw", monkeypatch)
    unpack(archive, root)
    (root / "cifar-10-batches-py" / "data_batch_2").write_bytes(b"x")
    (root / "cifar-10-batches-py" / "batches.meta").unlink()
    with pytest.raises(Rejected) as caught:
        resolve("cifar10", root)
    assert caught.value.codes == ("E_DATA_FILE",) * 2
    assert [problem.where for problem in caught.value.problems] == ["data_batch_2", "batches.meta"]


def test_nothing_is_fetched_unless_asked(tmp_path, root, monkeypatch):
    no_network(monkeypatch)
    with pytest.raises(Rejected) as caught:
        resolve("cifar10", root)
    assert caught.value.codes == ("E_DATA_SOURCE",)
    found = resolve("auto", root)
    assert found.id == "patches"
    assert "not CIFAR-10" in found.notice


# The download


def test_download(tmp_path, root, monkeypatch):
    archive, splits = write_archive(tmp_path / "raw", monkeypatch)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=archive.parent)
    monkeypatch.setattr(handler.func, "log_message", lambda *_: None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(CIFAR10, "url", f"http://127.0.0.1:{server.server_port}/{archive.name}")
    seen = []
    found = resolve("auto", root, download=True, progress=lambda *event: seen.append(event))
    server.shutdown()
    server.server_close()
    size = archive.stat().st_size
    assert ("download", size, size) in seen
    assert (found.id, found.notice) == ("cifar10", "")
    assert np.array_equal(open_dataset(found.folder).images["train"], splits["train"][0])
    assert [path.name for path in root.iterdir()] == ["cifar10"]


def test_download_of_a_file_url(tmp_path, root, monkeypatch):
    archive, _ = write_archive(tmp_path / "raw", monkeypatch)
    monkeypatch.setattr(CIFAR10, "url", archive.as_uri())
    assert resolve("cifar10", root, download=True).train == 20


def failing_download(tmp_path, monkeypatch, url):
    """The error of a download from ``url`` into a root that does not exist, and how many seconds it took."""
    monkeypatch.setattr(CIFAR10, "url", url)
    start = time.monotonic()
    with pytest.raises(Rejected) as caught:
        resolve("cifar10", tmp_path / "new" / "root", download=True)
    assert caught.value.codes == ("E_DATA_DOWNLOAD",)
    assert "to use a copy" in str(caught.value)
    assert not (tmp_path / "new" / "root").exists()
    return caught.value.problems[0].found, time.monotonic() - start


def test_download_from_a_closed_port(tmp_path, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    found, seconds = failing_download(tmp_path, monkeypatch, f"http://127.0.0.1:{port}/x")
    assert "refused" in found
    assert seconds < 5


@pytest.mark.parametrize("kind", ["silent", "stalls", "drips"])
def test_download_from_a_server_that_does_not_deliver(tmp_path, monkeypatch, serve, kind):
    def handler(connection):
        connection.recv(1000)
        if kind == "silent":
            time.sleep(20)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 170498071\r\n\r\n" + bytes(70000))
        if kind == "stalls":
            time.sleep(20)
        for _ in range(15):
            connection.sendall(bytes(33000))  # more than nothing, less than LEAST in a second
            time.sleep(0.7)

    monkeypatch.setattr(cifar10, "QUIET", 1.0)
    url = serve(lambda connection: _quietly(handler, connection))
    found, seconds = failing_download(tmp_path, monkeypatch, url)
    assert "in 1 seconds" in found or "timed out" in found
    assert seconds < 8


def _quietly(handler, connection):
    try:
        handler(connection)
    except OSError:
        connection.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n<html>no such thing", "HTML page"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n\x1f\x8b cut", "cut off"),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "503"),
        (b"SMTP ready\r\n", "SMTP"),
    ],
)
def test_download_of_something_else(tmp_path, monkeypatch, serve, answer, words):
    def handler(connection):
        connection.recv(1000)
        connection.sendall(answer)
        connection.close()

    found, seconds = failing_download(tmp_path, monkeypatch, serve(handler))
    assert words in found
    assert seconds < 5


def test_auto_falls_back_with_a_notice_that_names_the_reason(root, monkeypatch):
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:1/x")
    found = resolve("auto", root, download=True)
    assert found.id == "patches"
    assert "NOTICE" in found.notice
    assert "refused" in found.notice
    assert [path.name for path in root.iterdir()] == ["patches"]
    assert resolve("patches", root).notice == ""


def test_keywords_take_no_other_name_and_no_holdout(root):
    for spec in ("auto", "cifar10", "patches"):
        for options in ({"name": "mine"}, {"holdout": 3}):
            with pytest.raises(UsageError) as caught:
                resolve(spec, root, **options)
            assert caught.value.codes == ("E_USAGE",)


# The earned name


@pytest.mark.parametrize("name", ["cifar10", "patches"])
def test_name_is_not_given_to_other_pixels(tmp_path, root, monkeypatch, name):
    write_pair(tmp_path / "pair")
    with pytest.raises(Refused) as caught:
        resolve(str(tmp_path / "pair"), root, name=name)
    assert caught.value.codes == ("E_DATASET_NAME",)
    write_pair(tmp_path / name)
    with pytest.raises(Refused) as caught:
        resolve(str(tmp_path / name), root)
    assert caught.value.codes == ("E_DATASET_NAME",)
    assert list(root.iterdir()) == []


def test_name_is_earned_by_the_pixels_of_a_checked_copy(tmp_path, root, monkeypatch):
    archive, splits = write_archive(tmp_path / "raw", monkeypatch)
    write_as_pair(tmp_path / "same", splits)
    splits["evaluation"][0][5, 31, 31, 2] ^= 1
    write_as_pair(tmp_path / "off-by-one", splits)
    with pytest.raises(Refused):
        resolve(str(tmp_path / "same"), root, name="cifar10")
    checked = resolve(str(archive), root)
    assert resolve(str(tmp_path / "same"), root, name="cifar10") == checked
    with pytest.raises(Refused) as caught:
        resolve(str(tmp_path / "off-by-one"), root, name="cifar10")
    assert caught.value.codes == ("E_DATASET_NAME",)
    assert checked.digest in str(caught.value)


def test_prepared_folder_does_not_earn_the_name_by_its_card(tmp_path, root, monkeypatch):
    archive, splits = write_archive(tmp_path / "raw", monkeypatch)

    def prepared(folder, images, source="parquet sha256:0", id="cifar10"):
        labels = {split: np.array(values, np.uint8) for split, (_, values) in splits.items()}
        dataset.write(folder, dataset.Dataset(id=id, source=source, images=images, labels=labels))
        return str(folder)

    same = {split: pixels for split, (pixels, _) in splits.items()}
    other = {**same, "train": noise(20, 9)[0]}
    false = prepared(tmp_path / "false", other)
    true = prepared(tmp_path / "true", same)
    for spec in (false, true):
        with pytest.raises(Refused) as caught:
            resolve(spec, root)
        assert caught.value.codes == ("E_DATASET_NAME",)
    checked = resolve(str(archive), root)
    assert resolve(true, root).digest == checked.digest
    with pytest.raises(Refused):
        resolve(false, root)
    prepared(tmp_path / "bad" / "cifar10", other)
    with pytest.raises(Refused):
        resolve("cifar10", tmp_path / "bad")
    prepared(tmp_path / "renamed" / "cifar10", other, id="cifar10-jpeg")
    for look in (resolve, show):
        with pytest.raises(Refused) as caught:
            look("cifar10", tmp_path / "renamed")
        assert caught.value.codes == ("E_DATASET_NAME",)
