"""Signs webhooks as Standard Webhooks specifies (standardwebhooks.com). Pure."""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Iterable

MARK = "whsec_"


def new_secret() -> str:
    """Return 256 random bits; the specification allows 192 to 512."""
    return MARK + base64.b64encode(secrets.token_bytes(32)).decode()


def headers(message_id: str, at: int, body: bytes, keys: Iterable[str]) -> dict[str, str]:
    """Return the headers. `at` is the Unix time of this attempt. There is one signature for each of `keys`, so a
    receiver may know either the old or the new key."""
    signed = b".".join((message_id.encode(), str(at).encode(), body))
    signatures = (f"v1,{_hmac(key, signed)}" for key in keys)
    return {"webhook-id": message_id, "webhook-timestamp": str(at), "webhook-signature": " ".join(signatures)}


def _hmac(key: str, signed: bytes) -> str:
    secret = base64.b64decode(key.removeprefix(MARK))
    return base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()
