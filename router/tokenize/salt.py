"""Salts, which separate the caches of equal prompts. Clients choose them; the router makes them distinct per API key.
Pure. A salt in the header, set by a gateway in front of the router, takes precedence over one in the body. SGLang's
`extra_key` is passed on as part of the salt, which separates caches in the same way, because KV events do not report
it.
"""

from hashlib import blake2b
from typing import Any

from router.contract.api_paths import MEDIA, UNCOMPUTED
from router.contract.values.json_value import JsonObject

_SALT, _EXTRA = FIELDS = ("cache_salt", "extra_key")
HEADER = b"x-cache-salt"
LONGEST = 128  # characters, vLLM's limit
# APIs at which SGLang accepts salts
OF_SGLANG = frozenset(("/v1/completions", "/v1/chat/completions", "/v1/responses"))
# VLLM accepts no salts here, but caches sounds
TRANSCRIBED = frozenset(("/v1/audio/transcriptions", "/v1/audio/translations"))
_FORBIDDEN = frozenset("@/\\\0")
_APART = "weir-"


class BadSalt(ValueError):
    """An unusable header; the message has the reason."""


def of(document: JsonObject) -> str:
    """Return the text that an engine hashes into the first block of the prompt; empty if it hashes none."""
    salt = document.get("cache_salt")
    if isinstance(salt, list):  # SGLang accepts a salt for each prompt in the request
        return "\0".join([text for text in salt if isinstance(text, str)])
    return salt if isinstance(salt, str) else ""


def is_ignored(api_path: str, *, by_sglang: bool) -> bool:
    """Return whether engines compute prompts of this API regardless of salts, perhaps from cached blocks."""
    if api_path in TRANSCRIBED:
        return True
    return by_sglang and api_path not in OF_SGLANG and api_path not in UNCOMPUTED and api_path not in MEDIA


def is_apart(document: JsonObject, key_id: str) -> bool:
    """Return whether the body's salts are already in the form that the engine requires."""
    return _EXTRA not in document and own(key_id, document.get(_SALT)) == document.get(_SALT)


def set_apart(document: JsonObject, key_id: str) -> None:
    for name in FIELDS:
        if name in document:
            document[name] = own(key_id, document[name])
    if _EXTRA in document:
        _join(document)


def _join(document: JsonObject) -> None:
    """Join the extra key into the salt, or into each prompt's salt if the salts are lists. A value that is not a salt
    is kept.
    """
    given: tuple[Any, Any] = document[_EXTRA], document.get(_SALT)
    count = next((len(value) for value in given if isinstance(value, list)), None)
    extras, salts = (value if isinstance(value, list) else [value] * (count or 1) for value in given)
    if len(extras) != len(salts) or not all(text is None or isinstance(text, str) for text in (*extras, *salts)):
        return
    joined: list[Any] = [_joined(extra or "", salt or "") for extra, salt in zip(extras, salts, strict=True)]
    del document[_EXTRA]
    if any(joined):
        document[_SALT] = joined if count is not None else joined[0]


def _joined(extra: str, salt: str) -> str:
    """Return one salt for both, which no client could choose directly."""
    return _digest(f"\0{_EXTRA}", f"{extra}\0{salt}") if extra else salt


def own(key_id: str, salt: Any) -> Any:
    """Return a salt made distinct per API key; `key_id` is empty without a key. The digest uses only characters that
    engines accept, and is short enough for any salt. A value that is not a salt is kept, for the engine to refuse.
    """
    if isinstance(salt, list):
        return [text if isinstance(text, list) else own(key_id, text) for text in salt]
    if not isinstance(salt, str) or not salt or not (key_id or salt.startswith(_APART)):
        return salt
    return _digest(key_id, salt)


def _digest(key_id: str, salt: str) -> str:
    digest = blake2b(f"{key_id}\0{salt}".encode("utf-8", "surrogatepass"), digest_size=24)
    return _APART + digest.hexdigest()


def of_key(given: Any, key_id: str) -> Any:
    """Return the salt that gives each key a separate cache: the key's alone, or combined with the client's salt as
    returned by `own`. A value that is not a salt stays.
    """
    if isinstance(given, list):
        return [text if isinstance(text, list) else of_key(text, key_id) for text in given]
    return _digest(key_id, "") if given in (None, "") else given


def of_header(value: bytes, api_path: str, *, has_body: bool) -> str:
    """Return the header's salt. `has_body` is True if the request has a JSON body. Raise BadSalt."""
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
