"""DSSE v1: the signature of a manifest, in an envelope of its own beside it. No cryptography here.

    RUN/manifest.dsse.json    {"payload": base64, "payloadType": …, "signatures": [{"keyid": …, "sig": base64}]}

What is signed is the pre-authentication encoding of the manifest's bytes, with one Ed25519 key. The key id is the
sha256 of the 32 bytes of the public key; it names a key and proves nothing.
"""

import base64
import binascii

from vqkit.errors import Rejected, raise_all
from vqkit.formats import canonical, digests, schema
from vqkit.formats.run import SIGNATURE
from vqkit.formats.schema import HEX64, closed

PAYLOAD_TYPE = "application/vnd.in-toto+json"
MAX_BYTES = 2 * canonical.MAX_BYTES
_BASE64 = {"type": "string", "pattern": "^[A-Za-z0-9+/]*={0,2}$"}
ENVELOPE_SCHEMA = closed(
    payload=_BASE64,
    payloadType={"const": PAYLOAD_TYPE},
    signatures={"type": "array", "items": closed(keyid=HEX64, sig=_BASE64), "minItems": 1, "maxItems": 1},
)


def signed_bytes(payload):
    """The pre-authentication encoding: type and payload, each behind its length, so that neither can be moved."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def key_id(public):
    """The name of a key: sha256 of its 32 public bytes, as 64 hex digits."""
    return digests.sha256_hex(public)


def encode(payload, public, signature):
    """The bytes of an envelope."""
    entry = {"keyid": key_id(public), "sig": base64.b64encode(signature).decode()}
    envelope = {"payload": base64.b64encode(payload).decode(), "payloadType": PAYLOAD_TYPE, "signatures": [entry]}
    return canonical.dumps(envelope)


def parse(data):
    """(payload, key id, signature) of an envelope; raises ``Rejected`` with every problem."""
    envelope = canonical.loads_canonical(data, where=SIGNATURE, max_bytes=MAX_BYTES)
    raise_all(Rejected, schema.problems(envelope, ENVELOPE_SCHEMA, SIGNATURE))
    (entry,) = envelope["signatures"]
    return _decode(envelope["payload"], "payload"), entry["keyid"], _decode(entry["sig"], "signatures[0].sig")


def _decode(text, place):
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise Rejected("E_SCHEMA_VALUE", f"{SIGNATURE}.{place}", "base64", str(error)) from None
    if base64.b64encode(data).decode() != text:
        raise Rejected("E_SCHEMA_VALUE", f"{SIGNATURE}.{place}", "the one base64 spelling of its bytes", "another")
    return data
