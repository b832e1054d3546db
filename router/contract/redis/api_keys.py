"""The API keys that clients send, as the control plane publishes them. Pure.

A secret is looked up by its SHA-256; with 256 random bits it needs no slow hash.
"""

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Meta, Struct, structs

from router.contract.redis.budgets import PublishedBudget
from router.contract.redis.codec import OrderedValue

MARK = b"sk-weir-"  # prefix of every secret; credentials without it are for engines

Sha256 = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
BatchSha256 = Annotated[str, Meta(pattern="^([0-9a-f]{64})?$")]
PerMinute = Annotated[int, Meta(gt=0)]
BAND_MAX = 100  # highest band; -100 is the lowest
Band = Annotated[int, Meta(ge=-BAND_MAX, le=BAND_MAX)]


class PublishedKey(Struct, frozen=True, kw_only=True):
    id: str
    name: str
    sha256: Sha256  # digest of the secret
    pools: frozenset[str] = frozenset()  # empty: every pool
    models: frozenset[str] = frozenset()  # allowed model names; empty: all
    requests_per_min: PerMinute | None = None  # None: no limit
    tokens_per_min: PerMinute | None = None
    expires_at: float | None = None  # Unix s
    priority: Band = 0  # default priority band of the key's requests
    priority_max: Band = 0  # highest band that its requests may ask for
    budgets: tuple[PublishedBudget, ...] = ()
    # Budgets in other units and periods, in the format published since 0.3
    more_budgets: tuple[PublishedBudget, ...] = ()

    def serves(self, pool: str) -> bool:
        return not self.pools or pool in self.pools

    def may_ask_for(self, model: str) -> bool:
        return not self.models or model in self.models


class BatchKey(PublishedKey, frozen=True, kw_only=True):
    """The key that a worker uses to send a batch's lines on behalf of its owner: without limits per minute, in the
    lowest band."""


KEY_ID = b"x-weir-key-id"  # header; honoured only with the workers' secret


class ApiKeysValue(OrderedValue, tag=1, frozen=True, kw_only=True):
    """weir:keys, written by web and Celery: the valid API keys. Revoked keys are left out."""

    at: float = 0.0  # Unix s
    required: frozenset[str]  # pools that need a key, or "*" for all
    keys: tuple[PublishedKey, ...]
    batch_sha256: BatchSha256 = ""  # digest of the secret with which workers send lines of batches; empty: none do
    pool_budgets: dict[str, tuple[PublishedBudget, ...]] = {}  # budgets of pools: all requests, with or without a key


@dataclass(frozen=True, slots=True)
class Keyring:
    by_hash: Mapping[bytes, PublishedKey] = field(default_factory=dict)
    required: frozenset[str] = frozenset()  # pools that need a key
    required_everywhere: bool = False
    batch: bytes = b""  # hash of the workers' secret
    pool_budgets: Mapping[str, tuple[PublishedBudget, ...]] = field(default_factory=dict)

    def on_behalf(self, secret: bytes, key_id: bytes) -> PublishedKey | None:
        """Return the key with this id, for a worker that sends a line of a batch."""
        if not self.batch or not hmac.compare_digest(hashlib.sha256(secret).digest(), self.batch):
            return None
        found = next((key for key in self.by_hash.values() if key.id.encode() == key_id), None)
        if found is None:
            return None
        lowest = {"requests_per_min": None, "tokens_per_min": None, "priority": -BAND_MAX, "priority_max": -BAND_MAX}
        return BatchKey(**(structs.asdict(found) | lowest))

    def holder(self, secret: bytes) -> PublishedKey | None:
        return self.by_hash.get(hashlib.sha256(secret).digest())

    def requires(self, pool: str, ephemeral: bool) -> bool:
        """Return whether a pool requires a key; ephemeral pools of experiments never do."""
        return pool in self.required or (self.required_everywhere and not ephemeral)


def keyring(value: ApiKeysValue) -> Keyring:
    by_hash = {bytes.fromhex(key.sha256): _whole(key) for key in value.keys}
    batch = bytes.fromhex(value.batch_sha256)
    return Keyring(by_hash, value.required - {"*"}, "*" in value.required, batch, value.pool_budgets)


def _whole(key: PublishedKey) -> PublishedKey:
    """Return the key with all its budgets in one field."""
    return structs.replace(key, budgets=key.budgets + key.more_budgets, more_budgets=()) if key.more_budgets else key


def secret_of(headers: Mapping[bytes, bytes]) -> bytes | None:
    """Return the secret from a request's headers, where OpenAI, Anthropic and Azure clients put it; None without
    one."""
    bearer = headers.get(b"authorization")
    if bearer is not None and bearer[:7].lower() == b"bearer ":
        token = bearer[7:].strip()
        if token.startswith(MARK):
            return token
    for name in (b"x-api-key", b"api-key"):
        if name in headers and (given := headers[name].strip()).startswith(MARK):
            return given
    return None
