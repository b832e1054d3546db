"""Exchange between routers on one Redis: sent prompts and requests in flight, about 0.2 s late. Each router adds the
prompts of other routers to its prefix index and session table as if it had sent them itself, so that every router knows
a session's cache. Prompts are exchanged as chain hashes (8 bytes for every 256 of the prompt) in a capped stream, which
a new router reads from the beginning. A single router sends nothing. No request waits for the exchange: without it, a
router decides by local knowledge.
"""

import logging
import os
import time
from array import array
from collections import deque
from collections.abc import Awaitable, Iterable, Mapping
from typing import Any, cast

from redis.typing import EncodableT, FieldT

from router.contract import ranks
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import NO_LOAD, Load, RouterLoad, RouterLoadChanges, SentPrompt, SentPrompts
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.serving.pools import Pools
from router.sync.peer_loads import PeerLoads
from router.sync.redis_link import RedisLink

log = logging.getLogger("weir.router")

TELL_S = 0.2
HEARTBEAT_S = 1.0  # interval of messages without changes
ALL_S = 2.0  # interval between messages with the whole load, which repair missed changes
AGAIN_S = 0.5
BLOCK_MS = 500  # longest wait for entries, by which a shutdown is delayed
READ_COUNT = 20
HASH_BYTES = 8
ENTRY_HASHES = 4_000  # per entry of the stream, about 43 kB
PENDING_HASHES = 1_000_000  # limit of unsent hashes; the oldest prompts are dropped


class RouterPeers:
    def __init__(self, link: RedisLink, pools: Pools, router_id: str) -> None:
        self._link = link
        self._pools = pools
        self._id = router_id
        # After a restart, a router reads its own earlier entries like those of others.
        self._life = f"{router_id}:{os.urandom(8).hex()}"
        self._others = PeerLoads(pools)
        self._pending: deque[SentPrompt] = deque()
        self._pending_bytes = 0  # bytes of pending hashes
        self._sent_loads: tuple[dict[str, Load], dict[str, Load], dict[str, int]] = ({}, {}, {})
        # `_sent_all_at`: time of the last message with the whole load
        self._sent_loads_at = self._sent_all_at = float("-inf")
        self._read = {redis_keys.SENT: "0", redis_keys.LOADS: "$"}  # id of the last entry read, by stream
        self.untold = 0  # prompts dropped because Redis was unreachable or too slow
        self.prompts_sent = 0
        self.taken = 0  # prompts received from other routers

    def __len__(self) -> int:
        """Return the number of other live routers."""
        return len(self._others.peers)

    # Sending

    def sent(self, call: Call, endpoint: Endpoint) -> None:
        """Note that the request is sent to this instance now."""
        if not self._others.peers:
            return
        hashes = array("Q", call.request.chunks).tobytes()
        instance, rank = ranks.split(endpoint.id)
        self._pending.append(SentPrompt(call.pool.name, instance, endpoint.epoch, call.session, hashes, rank))
        self._pending_bytes += len(hashes)
        while self._pending_bytes > PENDING_HASHES * HASH_BYTES:
            self._pending_bytes -= len(self._pending.popleft().hashes)
            self.untold += 1

    async def tell(self) -> None:
        """Send prompts and loads, every TELL_S."""
        self._others.forget_silent(time.monotonic())
        await self._tell_load(time.monotonic())
        while self._pending:
            await self._write(redis_keys.SENT, "p", SentPrompts(sent=self._next_prompts()), redis_keys.SENT_KEPT)

    async def _write(self, stream: str, field: str, value: codec.RedisValue, kept: int) -> None:
        fields: dict[FieldT, EncodableT] = {"r": self._life, field: codec.encode(value)}
        await self._link.client.xadd(stream, fields, maxlen=kept, approximate=True)

    async def _tell_load(self, now: float, *, last: bool = False) -> None:
        load = ({}, {}, {}) if last else (*self._pools.inflight(), self._pools.pulls())
        before, self._sent_loads = self._sent_loads, load
        if last or now - self._sent_all_at >= ALL_S:
            self._sent_all_at = self._sent_loads_at = now
            value = RouterLoad(id=self._id, gone=last, inflight=load[0], ranks=load[1], pulls=load[2])
            await self._write(redis_keys.LOADS, "l", value, redis_keys.LOADS_KEPT)
            self._others.share_out_all()
        elif load != before or now - self._sent_loads_at >= HEARTBEAT_S:
            self._sent_loads_at = now
            changes = RouterLoadChanges(
                self._id,
                _changes(before[0], load[0], NO_LOAD),
                _changes(before[1], load[1], NO_LOAD),
                _changes(before[2], load[2], 0),
            )
            await self._write(redis_keys.LOADS, "d", changes, redis_keys.LOADS_KEPT)

    def _next_prompts(self) -> tuple[SentPrompt, ...]:
        """Remove the prompts of the next entry from the queue; they are lost if Redis does not accept the entry."""
        prompts: list[SentPrompt] = []
        left = ENTRY_HASHES * HASH_BYTES
        while self._pending and (not prompts or len(self._pending[0].hashes) <= left):
            prompts.append(prompt := self._pending.popleft())
            left -= len(prompt.hashes)
            self.prompts_sent += 1
            self._pending_bytes -= len(prompt.hashes)
        return tuple(prompts)

    async def leave(self) -> None:
        await self._tell_load(time.monotonic(), last=True)

    # Receiving

    async def hear(self) -> None:
        """Read the streams as long as the connection lasts."""
        client = self._link.subscriber()
        try:
            while not self._link.stopping.is_set():
                streams: Any = await client.xread(cast(Any, self._read), count=READ_COUNT, block=BLOCK_MS)
                for name, entries in streams:
                    self._take(name.decode(), entries)
        finally:
            await client.aclose()

    def _take(self, stream: str, entries: Iterable[tuple[bytes, dict[bytes, bytes]]]) -> None:
        for number, fields in entries:
            self._read[stream] = number.decode()
            if fields.get(b"r") == self._life.encode():
                continue
            try:
                self._take_load(fields) if stream == redis_keys.LOADS else self._take_sent(fields[b"p"])
            except (KeyError, ValueError) as error:
                log.debug("entry %s of %s ignored: %s", number, stream, error)

    def _take_load(self, fields: Mapping[bytes, bytes]) -> None:
        now = time.monotonic()
        if b"d" in fields:
            changes = codec.read(RouterLoadChanges, fields[b"d"])
            if changes.id != self._id:
                self._others.take_changes(changes, now)
            return
        value = codec.read(RouterLoad, fields[b"l"])
        if value.id != self._id:
            self._others.take(value, now)

    def _take_sent(self, raw: bytes) -> None:
        for prompt in codec.read(SentPrompts, raw).sent:
            pool = self._pools.get(prompt.pool)
            name = ranks.named(prompt.instance, int(prompt.rank)) if prompt.rank else prompt.instance
            endpoint = pool.endpoints.get(name) if pool is not None else None
            if pool is None or endpoint is None or endpoint.epoch != prompt.epoch:
                continue
            hashes = array("Q", prompt.hashes)
            pool.index.insert(name, prompt.epoch, hashes)
            pool.affinity.heard(prompt.session, name, hashes, time.time())
            self.taken += 1

    def tasks(self) -> list[Awaitable[None]]:
        return [self._link.every(AGAIN_S, self.hear), self._link.every(TELL_S, self.tell)]


def _changes(before: dict[str, Any], now: dict[str, Any], nothing: object) -> dict[str, Any]:
    changed = {name: load for name, load in now.items() if before.get(name) != load}
    return changed | dict.fromkeys(before.keys() - now.keys(), nothing)
