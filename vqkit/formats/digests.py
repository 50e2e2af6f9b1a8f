"""Digests: sha256 over a domain tag for each kind, then length-prefixed parts. Written ``sha256:<hex>``.

The tag keeps kinds apart (the same bytes as a contract and as an intervention have different digests); the length
prefix keeps parts apart (moving a byte from one part to the next changes the digest). Lists of files are bound by
name, size and content.
"""

import hashlib

from vqkit.errors import InternalError
from vqkit.formats import canonical

KINDS = (
    "source", "intervention", "proposal", "dataset", "environment", "contract", "evidence",
    "analysis", "plan", "manifest", "campaign", "ledger", "score", "exhibit", "run_id", "dataset_source", "results",
    "calibration",
)  # fmt: skip


def digest(kind, *parts):
    """sha256(tag ‖ (len(part) ‖ part)…) as ``sha256:<hex>``; each part is bytes, its length 8 bytes big-endian."""
    if kind not in KINDS:
        raise InternalError("E_INTERNAL", "digest kind", f"one of {', '.join(KINDS)}", kind)
    state = hashlib.sha256(f"vqkit.{kind}/1\n".encode())
    for part in parts:
        state.update(len(part).to_bytes(8, "big"))
        state.update(part)
    return f"sha256:{state.hexdigest()}"


def digest_json(kind, value, salt=b""):
    """The digest of ``salt`` (when given) and the canonical bytes of ``value``."""
    parts = (salt, canonical.dumps(value)) if salt else (canonical.dumps(value),)
    return digest(kind, *parts)


def digest_files(kind, entries):
    """The digest of a set of files.

    Args:
        kind: one of ``KINDS``.
        entries: (name, size in bytes, sha256 as 64 hex digits) for each file, in any order; names are unique.
    """
    listing = [{"name": name, "sha256": sha256, "size": size} for name, size, sha256 in sorted(entries)]
    return digest_json(kind, listing)


def sha256_hex(data):
    """Plain sha256 of some bytes, 64 hex digits, as in-toto subjects want it."""
    return hashlib.sha256(data).hexdigest()
