"""The source that executes training, as a list of files with digests: what a plan binds and a verifier recomputes.

It covers every Python file of ``runner/`` (less ``runner/sweep/``) and ``vqkit/`` (less ``vqkit/analysis/``), and
nothing else, so that logs, caches and git state can't change it.
"""

import os
from pathlib import Path

from vqkit.errors import Rejected
from vqkit.formats import digests, files

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner", "vqkit")
OUTSIDE = ("runner/sweep", "vqkit/analysis")


def listing(root=ROOT):
    """Every file of the source under ``root``, by name: a list of {name, size, sha256}.

    Raises:
        Rejected: E_FILE_MISSING when a package is not there, E_FILE_KIND for a link (whose target no digest binds).
    """
    entries = [entry for package in PACKAGES for entry in _walk(root, package)]
    return sorted(entries, key=lambda entry: entry["name"])


def digest(entries):
    """The ``source`` digest of a listing."""
    return digests.digest_files("source", [(entry["name"], entry["size"], entry["sha256"]) for entry in entries])


def _walk(root, folder):
    if (root / folder).is_symlink():
        raise Rejected("E_FILE_KIND", folder, "a folder or a file of the source", "a link")
    if folder in OUTSIDE:
        return
    try:
        found = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
    except OSError:
        raise Rejected("E_FILE_MISSING", folder, "a package of the source", "none") from None
    for entry in found:
        name = f"{folder}/{entry.name}"
        if entry.name.endswith(".py"):
            data = files.read_once(root / name)
            yield {"name": name, "size": len(data), "sha256": digests.sha256_hex(data)}
        elif entry.is_dir() or entry.is_symlink():
            yield from _walk(root, name)
