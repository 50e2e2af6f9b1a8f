"""What all sources share: the files were read and fingerprinted, but not decoded yet.

A fingerprint binds every file of a source by name, size and content. The bytes that were fingerprinted are the ones
that are decoded, so a source that changes while it is read can't get the fingerprint of something else.
"""

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

from vqkit.errors import Problem, Rejected, raise_all
from vqkit.formats import digests

SHOWN = 20
MAX_BYTES = 8 << 30


@dataclass(frozen=True, kw_only=True)
class Source:
    """A source that can be decoded.

    ``text`` names the kind of source and its fingerprint; it becomes ``source`` in dataset.json, and two equal texts
    mean the same files. ``splits`` holds train, and evaluation if the source has one. ``decode(progress)`` gives
    split → (images uint8 [N, 32, 32, 3], labels uint8 [N]) or raises ``Rejected`` with every fault.
    """

    text: str
    splits: tuple
    decode: Callable


def read_files(paths):
    """The bytes of files, name → bytes, from name → path. Links are followed (hub caches consist of them).

    Raises:
        Rejected: E_DATA_FILE for each file that is missing, unreadable, not regular or beyond ``MAX_BYTES`` in sum.
    """
    contents, problems, room = {}, [], MAX_BYTES
    for name, path in paths.items():
        try:
            state = os.stat(path)
            if not stat.S_ISREG(state.st_mode):
                problems.append(_file_problem(name, "a regular file", stat.filemode(state.st_mode)))
                continue
            room -= state.st_size
            if room < 0:
                problems.append(_file_problem(name, f"a source of at most {MAX_BYTES} bytes", "more"))
                break
            with open(path, "rb") as file:
                contents[name] = file.read(state.st_size)
        except OSError as error:
            problems.append(_file_problem(name, "a readable file", error.strerror or str(error)))
    raise_all(Rejected, bounded(problems, "source"))
    return contents


def fingerprint(kind, contents):
    """The ``text`` of a source of this kind that consists of ``contents`` (name → bytes)."""
    entries = [(name, len(data), digests.sha256_hex(data)) for name, data in contents.items()]
    return f"{kind} {digests.digest_files('dataset_source', entries)}"


def entries(folder):
    """The entries of a folder as name → is it a folder, sorted by name, hidden ones left out.

    Raises:
        Rejected: E_DATA_SOURCE when the folder can't be listed or an entry can't be followed.
    """
    try:
        with os.scandir(folder) as listing:
            found = {entry.name: stat.S_ISDIR(os.stat(entry.path).st_mode) for entry in listing if entry.name[0] != "."}
    except OSError as error:
        place = error.filename or folder
        raise Rejected("E_DATA_SOURCE", str(place), "something readable", error.strerror or str(error)) from None
    return dict(sorted(found.items()))


def bounded(problems, where):
    """``problems``, or the first ``SHOWN`` of them and one that says how many more there are."""
    if len(problems) <= SHOWN:
        return problems
    more = f"{len(problems) - SHOWN} more problems of this kind"
    return [
        *problems[:SHOWN],
        Problem(code=problems[SHOWN].code, where=where, expected="no problem", found=more),
    ]


def describe(data, size):
    """In words, what a file is whose first bytes are ``data``."""
    start = data[:512].lstrip().lower()
    if size == 0:
        return "an empty file"
    if start.startswith((b"<!doctype html", b"<html", b"<?xml", b"<head")):
        return f"an HTML page of {size} bytes (an error page of a server?)"
    if data.startswith(b"\x1f\x8b"):
        return f"a gzip file of {size} bytes, cut off or altered"
    return f"{size} bytes that begin with {data[:8]!r}"


def _file_problem(where, expected, found):
    return Problem(code="E_DATA_FILE", where=where, expected=expected, found=found)
