"""``python -m runner sign RUN --key FILE``: sign the manifest of a sealed run, in a process that does not train.

The key is an Ed25519 private key in PEM (``openssl genpkey -algorithm ed25519``). Needs the extra ``sign``.
"""

import os
from pathlib import Path

from vqkit.errors import ArgumentParser, Incomplete, Rejected, UsageError
from vqkit.formats import canonical, files, run, signature

MAX_KEY_BYTES = 1 << 14


def main(argv):
    """Run the command."""
    parser = ArgumentParser(prog="python -m runner sign", description="Sign the manifest of a sealed run.")
    parser.add_argument("run", type=Path, metavar="RUN", help="a run folder")
    parser.add_argument("--key", type=Path, required=True, metavar="FILE", help="an Ed25519 private key, PEM")
    chosen = parser.parse_args(argv)
    print(f"{run.SIGNATURE}  key {sign(chosen.run, chosen.key)}")


def sign(run_dir, key_file):
    """Write the envelope into a run; returns the key's id.

    Raises:
        Rejected: E_KEY for another key, E_FILE_EXISTS for a run that is signed, and as reading the manifest does.
        Incomplete: E_RUN_INCOMPLETE for a run without one.
        UsageError: where the extra is not installed.
    """
    if not os.path.lexists(run_dir / run.MANIFEST):
        raise Incomplete("E_RUN_INCOMPLETE", run_dir.name, f"{run.MANIFEST}, written last", "none")
    key = _private_key(files.read_once(key_file, max_bytes=MAX_KEY_BYTES))
    manifest = files.read_once(run_dir / run.MANIFEST, max_bytes=canonical.MAX_BYTES)
    run.parse_manifest(manifest)
    public = key.public_key().public_bytes_raw()
    envelope = signature.encode(manifest, public, key.sign(signature.signed_bytes(manifest)))
    files.write_once(Path(os.path.abspath(run_dir)) / run.SIGNATURE, envelope)
    return signature.key_id(public)


def _private_key(pem):
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise UsageError("E_USAGE", "sign", "the extra `sign` (cryptography)", "nothing") from None
    try:
        key = load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise Rejected("E_KEY", "key", "a PEM file without a password", str(error)[:200]) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise Rejected("E_KEY", "key", "an Ed25519 private key", type(key).__name__)
    return key
