"""Records traffic: lengths, times, and salted hashes of session and prompt blocks of each finished request. Prompts are
not stored. The hashes cannot be matched against a known prompt, because their key is a random value that exists only in
Redis. All routers use the same key, so equal prefixes have equal hashes everywhere.
"""

import os
from collections import Counter
from hashlib import blake2b
from typing import TYPE_CHECKING

from router.contract.api_paths import LIMITS
from router.contract.redis import redis_keys
from router.contract.redis.codec import encode
from router.contract.redis.receipt import BLOCK_CHUNKS, TrafficEntry
from router.prefix.chain import CHUNK_BYTES
from router.request.call import Call

if TYPE_CHECKING:
    from router.sync.redis_link import RedisLink

HASH_BYTES = 8
SALT_BYTES = 16
BLOCK_BYTES = CHUNK_BYTES * BLOCK_CHUNKS
BLOCK_IDS = BLOCK_BYTES // 4  # a token id of a prompt takes four bytes
# Prompts whose salted blocks can be reused by the session's next turn; also salted sessions and tenants
REMEMBERED = 4_096
SIZE_WEIGHT = 0.01  # weight of one entry in the mean size


class TrafficRecorder:
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts  # counts of entries "written" and "dropped"
        self._mean_bytes = 0.0
        self._take("")

    async def agree(self, link: "RedisLink") -> None:
        """Read the salt from Redis, or write one if Redis has none."""
        if not self.salt:
            await link.client.set(redis_keys.TRAFFIC_SALT, os.urandom(SALT_BYTES).hex(), nx=True)
            self._take(await link.get(redis_keys.TRAFFIC_SALT) or "")

    def _take(self, salt: str) -> None:
        self.salt = salt  # hex; empty until read from Redis
        self._begun = blake2b(digest_size=HASH_BYTES, key=salt.encode()[: blake2b.MAX_KEY_SIZE])
        self._known: dict[bytes, bytes] = {}  # salted blocks by a prompt's last block, LRU first
        self._hidden: dict[str, str] = {}  # recently salted texts

    def entry(self, call: Call) -> bytes:
        """Return an encoded TrafficEntry; empty for a request that is not recorded."""
        if not is_recorded(call):
            return b""
        outcome = call.outcome
        usage = outcome.usage
        known = usage.prompt_tokens if usage is not None else None
        made = encode(
            TrafficEntry(
                at=call.at,
                pool=call.pool.name,
                model=call.pool.model,
                session=self._hide(f"{call.pool.name}\0{call.session}") if call.session is not None else "",
                input_tokens=known if known is not None else call.prediction.prompt_tokens,
                output_tokens=usage.output_tokens if usage is not None else None,
                block_tokens=BLOCK_IDS if call.token_ids else round(BLOCK_BYTES * call.pool.tokens.per_byte),
                blocks=self._blocks(call.blocks),
                outcome=outcome.label,
                policy=call.policy,
                version=call.version,
                delivery=call.assigned.delivery if call.assigned is not None else 0,
                arm=call.assigned.arm if call.assigned is not None else "",
                ttft_ms=outcome.ttft_ms,
                tpot_ms=outcome.tpot_ms,
                band=call.band,
                tenant=self._hide(call.tenant) if call.tenant else "",
            )
        )
        self._mean_bytes += SIZE_WEIGHT * (len(made) - self._mean_bytes)
        return made

    def _hide(self, text: str) -> str:
        """Return 16 hex digits; cached, because sessions and tenants recur."""
        hidden = self._hidden.get(text)
        if hidden is None:
            if len(self._hidden) >= REMEMBERED:
                self._hidden.clear()
            hidden = self._hidden[text] = self._salted(text.encode("utf-8", "surrogatepass")).hex()
        return hidden

    def _salted(self, value: bytes) -> bytes:
        hashed = self._begun.copy()  # copies the hasher after the key, which takes half as long
        hashed.update(value)
        return hashed.digest()

    def _blocks(self, blocks: bytes) -> bytes:
        """Hash the blocks. A block's hash covers all earlier blocks, so no prefix of a known block is hashed again."""
        if not blocks:
            return b""
        known, end = b"", len(blocks)
        while end and not (known := self._known.pop(blocks[end - HASH_BYTES : end], b"")):
            end -= HASH_BYTES
        new = [self._salted(blocks[i : i + HASH_BYTES]) for i in range(end, len(blocks), HASH_BYTES)]
        made = self._known[blocks[-HASH_BYTES:]] = known + b"".join(new)
        if len(self._known) > REMEMBERED:
            del self._known[next(iter(self._known))]
        return made

    @property
    def kept(self) -> int:
        """Return the maximum number of entries in the stream, which falls with their size."""
        return min(redis_keys.TRAFFIC_KEPT, int(redis_keys.TRAFFIC_BYTES / max(self._mean_bytes, 1.0)))

    def flushed(self, entries: int, salt: str) -> None:
        """Count entries sent to Redis, which stores them only if their salt is current."""
        if salt == self.salt:
            self._counts["written"] += entries
        else:
            self._counts["dropped"] += entries
            self._take(salt)


def is_recorded(call: Call) -> bool:
    """Return whether the request is recorded; requests of experiments, which replay or generate traffic, are not."""
    return call.api_path in LIMITS and bool(call.pool.name) and not call.pool.ephemeral
