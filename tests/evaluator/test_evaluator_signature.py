"""Signatures, kept digests and ledger heads: the envelope by hand, and each way in which it can be wrong."""

import base64
import json
import shutil
import subprocess

import fabricate
import pytest

from evaluator.__main__ import main
from evaluator.held import Held
from evaluator.verify import climb
from runner.sign import main as sign
from vqkit.errors import Rejected, guarded
from vqkit.formats import campaign, canonical, digests, run, signature

pytest.importorskip("cryptography", reason="the extra `sign` is not installed")
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """A folder with two Ed25519 key pairs, own and other, and a private key of another kind."""
    folder = tmp_path_factory.mktemp("keys")
    private = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    for name in ("own", "other"):
        key = Ed25519PrivateKey.generate()
        (folder / f"{name}.pem").write_bytes(key.private_bytes(*private))
        public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / f"{name}.pub").write_bytes(public)
    (folder / "x25519.pem").write_bytes(X25519PrivateKey.generate().private_bytes(*private))
    return folder


@pytest.fixture
def folder(tmp_path, tiny, tiny_data):
    return fabricate.write_run(tmp_path / "one", tiny, tiny_data)


def judged(folder, keys, kept=None, key="own.pub"):
    held = Held(lock=fabricate.write_lock(folder.parent / "LOCK.json", _contract(folder)), key=keys / key)
    return {check.id: check for check in climb(folder, held, level="V1", kept=kept).checks}


def _contract(folder):
    return run.parse_plan((folder / run.PLAN).read_bytes())[1]


def test_a_signed_run_passes(folder, keys, capsys):
    sign([str(folder), "--key", str(keys / "own.pem")])
    assert "manifest.dsse.json  key " in capsys.readouterr().out
    checks = judged(folder, keys)
    assert checks["V1.signature"].status == checks["V1.files"].status == "passed"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_the_envelope(folder, keys, tmp_path):
    """The pre-authentication encoding written out by hand, checked by another implementation."""
    sign([str(folder), "--key", str(keys / "own.pem")])
    envelope = json.loads((folder / run.SIGNATURE).read_bytes())
    manifest = (folder / run.MANIFEST).read_bytes()
    assert base64.b64decode(envelope["payload"]) == manifest
    (tmp_path / "pae").write_bytes(b"DSSEv1 28 application/vnd.in-toto+json " + b"%d " % len(manifest) + manifest)
    (tmp_path / "sig").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", keys / "own.pub", "-rawin"]
    command += ["-in", tmp_path / "pae", "-sigfile", tmp_path / "sig"]
    subprocess.run(command, check=True, capture_output=True)


def test_no_signature_and_no_key_are_told_apart(folder, keys):
    assert judged(folder, keys)["V1.signature"].status == "failed"
    assert "V1.signature" not in {check.id for check in climb(folder, Held(), level="V1").checks}


def test_a_check_that_was_asked_for_and_not_made_is_not_run(folder, keys):
    (folder / run.MANIFEST).rename(folder.parent / "kept")
    (folder / run.MANIFEST).symlink_to(folder.parent / "kept")
    checks = judged(folder, keys, kept=digests.digest("manifest", b""))
    assert checks["V1.signature"].status == checks["V1.kept"].status == "not_run"


@pytest.mark.parametrize("change", ["key", "manifest", "payload", "type", "spelling", "unknown", "two", "missing"])
def test_a_signature_that_proves_nothing(folder, keys, change):
    sign([str(folder), "--key", str(keys / "own.pem")])
    path = folder / run.SIGNATURE
    envelope = json.loads(path.read_bytes())
    (entry,) = envelope["signatures"]
    if change == "manifest":
        value = json.loads((folder / run.MANIFEST).read_bytes())
        value["predicate"]["resources"]["wall_seconds"] = 2
        fabricate.replace(folder / run.MANIFEST, canonical.dumps(value))
    envelope |= {
        "payload": {"payload": base64.b64encode(b"{}").decode()},
        "type": {"payloadType": "text/plain"},
        "spelling": {"payload": envelope["payload"] + "===="},
        "unknown": {"algorithm": "none"},
        "two": {"signatures": [entry, entry]},
        "missing": {"signatures": []},
    }.get(change, {})
    fabricate.replace(path, canonical.dumps(envelope))
    check = judged(folder, keys, key="other.pub" if change == "key" else "own.pub")["V1.signature"]
    assert check.status == "failed"
    expected = {
        "key": "did not make",
        "manifest": "another manifest",
        "payload": "another manifest",
        "unknown": "E_SCHEMA_UNKNOWN_KEY",
    }
    assert expected.get(change, "E_SCHEMA_VALUE") in check.found


def test_a_run_is_signed_once(folder, keys):
    sign([str(folder), "--key", str(keys / "own.pem")])
    with pytest.raises(Rejected) as caught:
        sign([str(folder), "--key", str(keys / "other.pem")])
    assert caught.value.codes == ("E_FILE_EXISTS",)


@pytest.mark.parametrize("name", ["own.pub", "x25519.pem"])
def test_other_keys_do_not_sign(folder, keys, name):
    with pytest.raises(Rejected) as caught:
        sign([str(folder), "--key", str(keys / name)])
    assert caught.value.codes == ("E_KEY",)
    assert not (folder / run.SIGNATURE).exists()


@pytest.mark.parametrize("name", ["own.pem", "x25519.pem"])
def test_other_keys_do_not_verify(folder, keys, name):
    with pytest.raises(Rejected) as caught:
        judged(folder, keys, key=name)
    assert caught.value.codes == ("E_KEY",)


def test_the_key_id_is_the_digest_of_the_raw_key():
    assert signature.key_id(b"") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_the_digest_of_a_run_is_one_line_that_verify_expects(folder, keys, capsys):
    assert guarded(main, ["digest", str(folder)]) == 0
    run_id, kind, digest = capsys.readouterr().out.split()
    assert (run_id, kind) == (fabricate.RUN_ID, "manifest")
    assert digest == digests.digest("manifest", (folder / run.MANIFEST).read_bytes())
    lock = fabricate.write_lock(folder.parent / "LOCK.json", _contract(folder))
    arguments = ["verify", str(folder), "--level", "V1", "--lock", str(lock), "--expect"]
    assert guarded(main, [*arguments, digest]) == 0
    assert guarded(main, [*arguments, digests.digest("manifest", b"other")]) == 6
    assert "V1.kept" in capsys.readouterr().err
    assert guarded(main, [*arguments, "md5:0"]) == 2
    assert guarded(main, ["digest", str(folder), "--expect", digest]) == 0
    assert guarded(main, ["digest", str(folder), "--expect", digests.digest("manifest", b"other")]) == 6


def test_a_ledger_may_grow_and_not_be_rewritten(tmp_path, tiny, tiny_data, capsys):
    folder = fabricate.write_campaign(tmp_path / "campaign", tiny, tiny_data, runs=False)
    campaign.append_event(folder, "claimed", "run-0000000000000001", {})
    assert guarded(main, ["digest", str(folder)]) == 0
    name, kind, head, count, _ = capsys.readouterr().out.split()
    assert (name, kind, count) == ("made-up", "ledger", "2")
    assert head == campaign.read_ledger((folder / campaign.LEDGER).read_bytes())[1]
    campaign.append_event(folder, "failed", "run-0000000000000001", {"outcome": "crashed"})
    assert guarded(main, ["digest", str(folder), "--expect", head]) == 0
    (folder / campaign.LEDGER).unlink()
    campaign.append_events(folder, [("planned", None, {}), ("claimed", "run-0000000000000002", {})])
    assert guarded(main, ["digest", str(folder), "--expect", head]) == 6
