"""Who sealed a run: the DSSE signature of its manifest. The only module that needs cryptography, and only for --key."""

from vqkit.errors import Rejected, UsageError
from vqkit.formats import files, run, signature

_MAX_KEY_BYTES = 1 << 14


def read_key(path):
    """The Ed25519 public key in a PEM file.

    Raises:
        Rejected: E_KEY for anything else.
        UsageError: where the extra ``sign`` is not installed.
    """
    pem = files.read_once(path, max_bytes=_MAX_KEY_BYTES)
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError:
        raise UsageError("E_USAGE", "--key", "the extra `sign` (cryptography)", "nothing") from None
    try:
        key = load_pem_public_key(pem)
    except ValueError as error:
        raise Rejected("E_KEY", path.name, "a public key in PEM", str(error)[:200]) from None
    if not isinstance(key, Ed25519PublicKey):
        raise Rejected("E_KEY", path.name, "an Ed25519 public key", type(key).__name__)
    return key


def check(folder, manifest, key):
    """Whether the envelope in an open run folder signs exactly these manifest bytes with ``key``: (passed, found)."""
    from cryptography.exceptions import InvalidSignature

    try:
        payload, _, signed = signature.parse(folder.read(run.SIGNATURE, signature.MAX_BYTES))
    except Rejected as error:
        return False, str(error)
    if payload != manifest:
        return False, "a signature of another manifest"
    try:
        key.verify(signed, signature.signed_bytes(payload))
    except InvalidSignature:
        return False, "a signature that this key did not make"
    return True, "signed"
