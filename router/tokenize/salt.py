"""Salts, which keep caches of equal prompts apart: as a client gives them, and apart by API key. Pure.

A salt in the header goes before one in the body, as a gateway in front of the router sets it.
"""

from hashlib import blake2b
from typing import Any

from router.contract.api_paths import MEDIA, UNCOMPUTED
from router.contract.json_value import JsonObject

FIELDS = ("cache_salt", "extra_key")  # SGLang has both, and hashes the second into blocks without a word in its events
HEADER = b"x-cache-salt"
LONGEST = 128  # characters, as vLLM has it
_FORBIDDEN = frozenset("@/\\\0")
_APART = "weir-"


class BadSalt(ValueError):
    """The header cannot be obeyed; the message has the reason."""


def of(document: JsonObject) -> str:
    """What an engine hashes into the first block of the prompt; "" without any."""
    salt = document.get("cache_salt")
    if isinstance(salt, list):  # SGLang's, of each prompt in the request
        return "\0".join([text for text in salt if isinstance(text, str)])
    return salt if isinstance(salt, str) else ""


def is_apart(document: JsonObject, key_id: str) -> bool:
    """The salts of a body are as the engine is to see them."""
    return all(name not in document or own(key_id, document[name]) == document[name] for name in FIELDS)


def set_apart(document: JsonObject, key_id: str) -> None:
    for name in FIELDS:
        if name in document:
            document[name] = own(key_id, document[name])


def own(key_id: str, salt: Any) -> Any:
    """A salt that is no other key's, nor one without a key; `key_id` is empty without one.

    A digest has no characters that engines refuse, and is short enough for them, whatever the salt. What is no salt
    stays as it is, for the engine to refuse.
    """
    if isinstance(salt, list):
        return [own(key_id, text) for text in salt]
    if not isinstance(salt, str) or not salt or not (key_id or salt.startswith(_APART)):
        return salt
    return _digest(key_id, salt)


def _digest(key_id: str, salt: str) -> str:
    digest = blake2b(f"{key_id}\0{salt}".encode("utf-8", "surrogatepass"), digest_size=24)
    return _APART + digest.hexdigest()


def of_key(given: Any, key_id: str) -> Any:
    """The salt where caches are kept apart by key: that of the key alone, or its and the client's together, as `own`
    made it. What is no salt stays as it is."""
    if isinstance(given, list):
        return [of_key(text, key_id) for text in given]
    return _digest(key_id, "") if given in (None, "") else given


def of_header(value: bytes, api_path: str, *, has_body: bool) -> str:
    """`has_body`: of JSON. Raises BadSalt."""
    name = HEADER.decode()
    if not has_body or api_path in UNCOMPUTED or api_path in MEDIA:
        raise BadSalt(f"{name}: engines take no salt at {api_path}: leave it out")
    try:
        salt = value.decode("ascii")
    except UnicodeDecodeError:
        raise BadSalt(f"{name}: {value[:40]!r} is not ASCII; allowed: 1 to {LONGEST} characters") from None
    if not 1 <= len(salt) <= LONGEST or not _FORBIDDEN.isdisjoint(salt):
        raise BadSalt(f"{name}: {salt[:40]!r}; allowed: 1 to {LONGEST} characters without @, /, \\ and NUL")
    return salt
