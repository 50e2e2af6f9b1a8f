"""The source digest: exactly the files that execute training, whatever else lies beside them."""

from pathlib import Path

from vqkit.formats import digests

ROOT = Path(__file__).parents[2]
PACKAGES = ("runner", "vqkit")
EXCEPT = ("runner/sweep/", "vqkit/analysis/")  # executors and analysis change often and never touch a training step


def listing(root=ROOT):
    """Every Python file under ``PACKAGES`` less ``EXCEPT``: [{name, size, sha256}], sorted by name.

    ``name`` is relative to ``root``, with forward slashes. Logs, outputs, caches and bytecode are not Python files.
    """
    entries = []
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            name = path.relative_to(root).as_posix()
            if not name.startswith(EXCEPT):
                data = path.read_bytes()
                entries.append({"name": name, "size": len(data), "sha256": digests.sha256_hex(data)})
    return sorted(entries, key=lambda entry: entry["name"])


def digest(entries):
    """The source digest of a ``listing``."""
    return digests.digest_files("source", [(entry["name"], entry["size"], entry["sha256"]) for entry in entries])
