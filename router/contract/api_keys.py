"""The API keys that clients may show, as the control plane publishes them in weir:keys. Pure.

Who holds a secret is found by its SHA-256: a secret has 256 random bits, there is nothing to guess and nothing to slow
down. The secrets themselves are nowhere but with their holders.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MARK = b"sk-weir-"  # how every secret begins: other credentials are the engines' business


class UnreadableKeys(ValueError):
    """The published keys cannot be taken; the message says why."""


@dataclass(frozen=True, slots=True)
class PublishedKey:
    id: str
    name: str
    pools: frozenset[str] = frozenset()  # empty: every pool
    requests_per_min: int | None = None  # None: no limit
    tokens_per_min: int | None = None
    expires_at: float | None = None  # s, Unix

    def serves(self, pool: str) -> bool:
        return not self.pools or pool in self.pools


@dataclass(frozen=True, slots=True)
class Keyring:
    by_hash: Mapping[bytes, PublishedKey] = field(default_factory=dict)
    required: frozenset[str] = frozenset()  # pools that are served to holders of a key only
    required_everywhere: bool = False

    def holder(self, secret: bytes) -> PublishedKey | None:
        return self.by_hash.get(hashlib.sha256(secret).digest())

    def requires(self, pool: str, ephemeral: bool) -> bool:
        """The pools of experiments, which are `ephemeral`, live for minutes and have engines of their own."""
        return pool in self.required or (self.required_everywhere and not ephemeral)


def parse(value: Mapping[str, Any]) -> Keyring:
    """The value of weir:keys (wire.py). Raises UnreadableKeys: half of the keys would be as bad as none."""
    try:
        by_hash = {bytes.fromhex(entry["sha256"]): _key(entry) for entry in value["keys"]}
        required = frozenset(str(pool) for pool in value["required"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnreadableKeys(f"API keys: {type(error).__name__} {error}") from None
    return Keyring(by_hash, required - {"*"}, "*" in required)


def _key(entry: Mapping[str, Any]) -> PublishedKey:
    return PublishedKey(
        id=str(entry["id"]),
        name=str(entry["name"]),
        pools=frozenset(str(pool) for pool in entry["pools"]),
        requests_per_min=_limit(entry["requests_per_min"]),
        tokens_per_min=_limit(entry["tokens_per_min"]),
        expires_at=None if entry["expires_at"] is None else float(entry["expires_at"]),
    )


def _limit(value: object) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and value > 0):
        return value
    raise ValueError(f"a limit of {value!r} is not a whole number above 0")


def secret_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """The secret of a Weir key in a request's headers (OpenAI's way or Anthropic's), None without one."""
    bearer = headers.get(b"authorization")
    if bearer is not None and bearer[:7].lower() == b"bearer ":
        token = bearer[7:].strip()
        if token.startswith(MARK):
            return token
    given = headers.get(b"x-api-key")
    return given.strip() if given is not None and given.strip().startswith(MARK) else None
