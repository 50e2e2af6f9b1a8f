"""The official CIFAR-10 archive by torchvision's checks: every file that is read has torchvision's md5.

A copy is used where there is one; else the archive is downloaded, with torchvision's address and md5. The download
gives up when next to nothing arrives for ``QUIET`` seconds, whatever holds it up: the name server, the connection, a
server that stalls or one that drips.
"""

import os
import pickle
import tarfile
import tempfile
import threading
import time
import urllib.request
import zlib
from functools import partial
from http.client import HTTPException
from pathlib import Path

from vqkit.data import pixels
from vqkit.data.source import Source, describe
from vqkit.errors import Problem, Rejected, raise_all

ARCHIVE = "cifar-10-python.tar.gz"
BATCHES = "cifar-10-batches-py"
KIND = "torchvision"
QUIET = 20.0  # seconds
LEAST = 1 << 16  # bytes that must arrive in that time
_MAX_ARCHIVE = 1 << 30
_CHUNK = 1 << 15


def find(folder):
    """The path of a raw copy in a folder, unpacked or archive, or None."""
    if folder.name == BATCHES and folder.is_dir():
        return folder
    return next((folder / name for name in (BATCHES, ARCHIVE) if os.path.exists(folder / name)), None)


def read(copy):
    """The source at a path that ``find`` gave, or in any file that is the archive.

    Raises:
        Rejected: E_DATA_FILE when a file does not have torchvision's md5, with what it seems to be.
    """
    from torchvision.datasets import CIFAR10

    if copy.is_dir():
        _check_batches(copy)
        decode = partial(_load, copy.parent)
    else:
        _check([(copy, CIFAR10.tgz_md5)])
        decode = partial(_unpack, copy)
    return Source(text=f"{KIND} md5 {CIFAR10.tgz_md5}", splits=("train", "evaluation"), decode=decode)


def download(folder, progress=None):
    """Download the archive into ``folder``, which exists.

    Returns:
        Its path. Its md5 is right.

    Raises:
        Rejected: E_DATA_DOWNLOAD when the server can't be reached, stalls, or sends something else.
    """
    from torchvision.datasets import CIFAR10

    path = folder / ARCHIVE
    state = {"size": 0, "total": None, "error": None, "stop": False}
    thread = threading.Thread(target=_fetch, args=(CIFAR10.url, path, state), daemon=True)
    thread.start()
    since, size = time.monotonic(), 0
    while thread.is_alive():
        thread.join(0.1)
        if state["size"] - size >= LEAST:
            since, size = time.monotonic(), state["size"]
            if progress:
                progress("download", size, state["total"])
        elif time.monotonic() - since > QUIET:
            state["stop"] = True
            _fail(CIFAR10.url, f"less than {LEAST} bytes in {QUIET:g} seconds, after {state['size']} bytes")
    if progress and state["size"]:
        progress("download", state["size"], state["total"])
    if state["error"] is not None:
        _fail(CIFAR10.url, state["error"])
    try:
        _check([(path, CIFAR10.tgz_md5)])
    except Rejected as error:
        _fail(CIFAR10.url, error.problems[0].found)
    return path


def _fetch(url, path, state):
    """Copy a URL into a file, in a thread of its own: a call that hangs is left behind."""
    try:
        request = urllib.request.Request(url, headers={"User-Agent": "vqkit"})  # noqa: S310 (torchvision's address)
        with urllib.request.urlopen(request, timeout=QUIET) as response, open(path, "wb") as file:  # noqa: S310
            length = response.headers.get("Content-Length", "")
            state["total"] = int(length) if length.isdigit() else None
            while (chunk := response.read(_CHUNK)) and not state["stop"]:
                file.write(chunk)
                state["size"] += len(chunk)
                if state["size"] > _MAX_ARCHIVE:
                    raise OSError(f"more than {_MAX_ARCHIVE} bytes")
    except (OSError, HTTPException, ValueError) as error:
        state["error"] = str(error) or type(error).__name__


def _fail(url, found):
    raise Rejected(
        "E_DATA_DOWNLOAD",
        url,
        f"the CIFAR-10 archive (to use a copy: put {ARCHIVE} or {BATCHES}/ into the data root, or name its path)",
        found,
    )


def _check_batches(folder):
    from torchvision.datasets import CIFAR10

    expected = [*CIFAR10.train_list, *CIFAR10.test_list, (CIFAR10.meta["filename"], CIFAR10.meta["md5"])]
    _check([(folder / name, md5) for name, md5 in expected])


def _check(expected):
    """Every (path, md5) by torchvision's own check; all that differ are reported."""
    from torchvision.datasets.utils import check_integrity

    problems = []
    for path, md5 in expected:
        try:
            if check_integrity(path, md5):
                continue
            with open(path, "rb") as file:
                found = describe(file.read(512), os.fstat(file.fileno()).st_size)
        except OSError as error:
            found = error.strerror
        wanted = f"a file with md5 {md5}"
        problems.append(Problem(code="E_DATA_FILE", where=path.name, expected=wanted, found=found))
    raise_all(Rejected, problems)


def _unpack(archive, progress):
    """Decode the archive by way of a temporary folder beside it or, where that can't be written, the system's."""
    from torchvision.datasets.utils import extract_archive

    where = archive.parent if os.access(archive.parent, os.W_OK) else None
    try:
        with tempfile.TemporaryDirectory(prefix=".cifar10.", dir=where) as folder:
            os.symlink(archive.resolve(), Path(folder, ARCHIVE))
            extract_archive(str(Path(folder, ARCHIVE)), folder)
            _check_batches(Path(folder, BATCHES))
            return _load(folder, progress)
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        raise Rejected("E_DATA_FILE", archive.name, "an archive that can be unpacked", str(error)) from None


def _load(root, progress):
    """torchvision's own reading of the unpacked files, which checks each md5 before it unpickles."""
    from torchvision.datasets import CIFAR10

    decoded, problems = {}, []
    for number, split in enumerate(("train", "evaluation")):
        try:
            dataset = CIFAR10(root, train=split == "train", download=False)
        except (RuntimeError, OSError, pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError) as error:
            raise Rejected("E_DATA_FILE", BATCHES, "files that torchvision can read", str(error)[:200]) from None
        values = [(f"{split} image {row}", label) for row, label in enumerate(dataset.targets)]
        decoded[split] = (dataset.data, pixels.labels(values, split, problems))
        if progress:
            progress("read batches", number + 1, 2)
    raise_all(Rejected, problems)
    return decoded
