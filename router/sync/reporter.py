"""Writes this router's status, load and measurements to Redis, and receipts and sessions in batches."""

import asyncio
import logging
import os
import time
from typing import Any

import msgpack

from router.contract.redis import codec, redis_keys
from router.contract.redis.published import PolicyAck, Split
from router.contract.redis.router_status import RouterStatus, ServedPool, StalledInstance
from router.pool.endpoint import Endpoint
from router.pool.health.stall_watch import producing, stalled
from router.pool.pool import Pool
from router.request.call import Call
from router.serving.pools import Pools
from router.sync.delivery_reports import DeliveryReports
from router.sync.live_state import LiveState
from router.sync.redis_link import RedisLink
from router.sync.use_reports import UseReports
from router.telemetry.prefix_metrics import indexes
from router.telemetry.receipts import encoded
from router.telemetry.recorder import Recorder
from router.telemetry.shadow import ShadowDecider
from router.telemetry.traffic import TrafficRecorder

log = logging.getLogger("weir.router")

REPORT_S = 1.0
# A longer interval costs more: requests leave the processor's caches, and the garbage collector visits those that wait
FLUSH_S = 0.05
BATCH = 100  # receipts in one command
SESSIONS_BATCH = 500  # bindings in one command, which takes some milliseconds here and in Redis
SLICE = 16  # receipts encoded before the event loop serves other tasks: about 0.3 ms
SLICE_S = 0.0003  # CPU time for shadow decisions, which take longer in a large pool
KEY_TTL_S = 60  # lifetime of weir:router:<id>; the value has the time of its writing
ID_TTL_S = 3600  # a router that is silent for longer is removed from the list
RECEIPT_BYTES = 45_000_000  # bytes of receipts kept by id (6 kB each in a large pool); more traffic shortens their TTL
SHORTEST_TTL_S = 60

# One command per batch with all receipts in one value: building commands is the client's main cost, and two commands
# per receipt would be the most expensive work of the router. ARGV: maximum receipts in the stream, TTL, maximum traffic
# entries, their salt, then packed (key, receipt, decision inputs, pool, traffic entry or empty, number, prefix of keys
# or empty) for each receipt, in the order of the numbers; the script joins receipt and inputs. The prefix is given if
# the client chose the id: an earlier receipt with the same id is then renamed, and the new receipt states its new name.
# A batch whose answer was lost is sent again: KEYS[4] holds the number of this router's last receipt, and receipts up
# to that number are already stored. A Redis that restarts empty gets the salt of the first router that writes.
_KEEP_RECEIPTS = """
redis.call('SET', KEYS[3], ARGV[4], 'NX')
local salt = redis.call('GET', KEYS[3])
local words = cmsgpack.unpack(ARGV[5])
local last = tonumber(redis.call('GET', KEYS[4]) or 0) or 0
for i = 1, #words, 7 do
  local brief, further, number, prefix = words[i + 1], words[i + 2], words[i + 5], words[i + 6]
  if number > last then
    local whole = further == '' and brief or string.sub(brief, 1, -2) .. ',' .. further
    local before = prefix ~= '' and redis.call('GET', words[i])
    if before then
      local earlier = string.match(before, '"own_id":"([^"]+)"') or string.sub(words[i], #prefix + 1) .. '~earlier'
      redis.call('SET', prefix .. earlier, before, 'EX', ARGV[2])
      whole = string.sub(whole, 1, -2) .. ',"earlier":"' .. earlier .. '"}'
    end
    redis.call('SET', words[i], whole, 'EX', ARGV[2])
    redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1], '*', 'r', brief)
    if words[i + 4] ~= '' and salt == ARGV[4] then
      redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'p', words[i + 3], 't', words[i + 4])
    end
    last = number
  end
end
redis.call('SET', KEYS[4], last, 'EX', 3600)
return salt
"""

# (key, instance, TTL) of each binding
_KEEP_SESSIONS = """
local words = cmsgpack.unpack(ARGV[1])
for i = 1, #words, 3 do
  redis.call('SET', words[i], words[i + 1], 'EX', words[i + 2])
end
"""


class Reporter:
    def __init__(
        self, router_id: str, url: str, link: RedisLink, live: LiveState, pools: Pools, recorder: Recorder
    ) -> None:
        self._id = router_id
        self._url = url
        self._link = link
        self._live = live
        self._pools = pools
        self._recorder = recorder
        self._traffic = TrafficRecorder(recorder.traffic)
        self._started_at = time.time()
        self._reporting = asyncio.Lock()
        self._rate = 0.0  # bytes of receipts per second over about the last minute
        self._flushed_at = time.monotonic()
        self.life = os.urandom(8).hex()
        self._shadow = ShadowDecider()
        self.deliveries = DeliveryReports(router_id, self.life, link, pools, recorder, self._shadow)
        self.use = UseReports(router_id, self.life, link, recorder.use)
        live.on_version = self.acknowledge
        live.on_models = self.acknowledge_models
        live.on_removed = recorder.forget_pool

    async def report(self) -> None:
        """Report the status. Reports are serialized; otherwise the older of two concurrent reports might be written
        last.
        """
        async with self._reporting:
            await self._report(time.time())

    async def _report(self, now: float) -> None:
        async with self._link.client.pipeline(transaction=False) as pipe:
            pipe.set(redis_keys.router_key(self._id), codec.encode(self.status(now)), ex=KEY_TTL_S)
            pipe.zadd(redis_keys.ROUTERS, {self._id: now})
            pipe.zremrangebyscore(redis_keys.ROUTERS, 0, now - ID_TTL_S)
            uses: dict[Any, Any] = self._pools.auth.uses()
            if uses:
                pipe.hset(redis_keys.API_KEYS_USED, mapping=uses)
            await pipe.execute()

    async def acknowledge(self, pool: Pool) -> None:
        """Acknowledge an applied version immediately, on the channel and in the router's status."""
        await self.report()
        ack = PolicyAck(
            router=self._id,
            pool=pool.name,
            version=pool.version,
            at=pool.acked_at,
            generation=pool.generation,
            split=_split(pool),
        )
        await self._link.client.publish(redis_keys.ACKS, codec.encode(ack))

    async def acknowledge_models(self) -> None:
        """Like `acknowledge`, for the document Models, which belongs to no pool."""
        await self.report()
        ack = PolicyAck(router=self._id, pool="", version=self._pools.models_version, at=time.time())
        await self._link.client.publish(redis_keys.ACKS, codec.encode(ack))

    def status(self, now: float) -> RouterStatus:
        inflight, by_rank = self._pools.inflight()
        return RouterStatus(
            id=self._id,
            at=now,
            started_at=self._started_at,
            life=self.life,
            pid=os.getpid(),
            url=self._url,
            pools={pool.name: _served(pool) for pool in self._pools.all()},
            degraded=tuple(self._live.degraded()),
            unreadable=self._live.unreadable,
            refused=dict(self._live.in_force.refused),
            inflight=inflight,
            ranks=by_rank,
            classes=self._recorder.classes(now),
            queued={
                pool.name: {str(name): count for name, count in pool.queue.waiting.items() if count}
                for pool in self._pools.all()
            },
            indexes=indexes(self._pools.all()),
            aliases={pool: counts.read(now) for pool, counts in self._recorder.aliases.items()},
            models=self._pools.models_version,
            stalled={endpoint.instance: _stalled(endpoint) for endpoint in stalled(self._pools.all())},
            producing=producing(self._pools.all()),
        )

    async def flush(self) -> None:
        """Write batches of sessions and receipts alternately, so that a backlog of one does not delay the other."""
        while self._recorder.pending or any(pool.affinity.changed for pool in self._pools.all()):
            for pool in list(self._pools.all()):  # pools may be added or removed during the loop
                await self._flush_sessions(pool)
            await self._flush_receipts()

    async def _flush_sessions(self, pool: Pool) -> None:
        changed = pool.affinity.take_changed(SESSIONS_BATCH)
        if not changed:
            return
        words: list[str | int] = []
        for session, (instance, ttl_s) in changed.items():
            words += (redis_keys.affinity_key(pool.name, session), instance, ttl_s)
        try:
            await self._link.client.eval(_KEEP_SESSIONS, 0, msgpack.packb(words, use_bin_type=False))
        except BaseException:
            pool.affinity.give_back(changed)
            raise

    async def _flush_receipts(self) -> None:
        pending = self._recorder.pending
        batch = [pending.popleft() for _ in range(min(BATCH, len(pending)))]
        if not batch:
            return
        try:
            await self._traffic.agree(self._link)
            await self._keep(batch)
        except BaseException:
            pending.extendleft(reversed(batch))
            raise

    async def _keep(self, batch: list[Call]) -> None:
        traffic = self._traffic
        words: list[str | bytes | int] = []
        entries, size, deciding_s = 0, 0, 0.0
        start = redis_keys.receipt_key("")  # beginning of each key
        for place, call in enumerate(list(batch)):
            deciding_s += self._decide_again(call) if call.assigned is not None else 0.0
            if place % SLICE == 0 or deciding_s > SLICE_S:
                deciding_s = 0.0
                await asyncio.sleep(0)
            try:
                entry, (brief, further) = traffic.entry(call), encoded(call, self._id)
            except Exception:  # an unwritable receipt must not block later ones
                log.exception("receipt %s cannot be written", call.id)
                self._recorder.unwritable += 1
                batch.remove(call)
                continue
            entries += bool(entry)
            size += len(brief) + len(further)
            prefix = start if call.own_id != call.id else ""
            words += (start + call.id, brief, further, call.pool.name, entry, call.number, prefix)
        receipted = redis_keys.receipted_key(self._id, self.life)
        keys = (redis_keys.RECEIPTS, redis_keys.TRAFFIC, redis_keys.TRAFFIC_SALT, receipted)
        limits = (redis_keys.RECEIPTS_KEPT, self._ttl_s(size, time.monotonic()), traffic.kept, traffic.salt)
        packed = msgpack.packb(words, use_bin_type=False)  # Redis' cmsgpack reads only the old format
        salt = await self._link.client.eval(_KEEP_RECEIPTS, len(keys), *keys, *limits, packed)
        traffic.flushed(entries, salt.decode())

    def _decide_again(self, call: Call) -> float:
        """Let the delivery's candidate repeat decisions; return the CPU seconds used."""
        tallies = self._recorder.delivery(call.pool)
        return self._shadow.decide(call, tallies.shadow, time.perf_counter()) if tallies is not None else 0.0

    def _ttl_s(self, size: int, now: float) -> int:
        """Return the TTL for receipts of this many bytes that are written now."""
        elapsed = max(now - self._flushed_at, 0.001)
        self._flushed_at = now
        self._rate += (size / elapsed - self._rate) * min(1.0, elapsed / 60)
        wanted = RECEIPT_BYTES / max(self._rate, 0.001)
        return int(min(redis_keys.RECEIPT_TTL_S, max(SHORTEST_TTL_S, wanted)))

    async def leave(self) -> None:
        """Write pending data and remove this router from the list of routers."""
        await self.flush()
        await self.deliveries.write()
        await self.use.write(last=True)
        async with self._link.client.pipeline(transaction=False) as pipe:
            pipe.zrem(redis_keys.ROUTERS, self._id)
            pipe.delete(redis_keys.router_key(self._id), redis_keys.seen_key(self._id))
            await pipe.execute()


def _stalled(endpoint: Endpoint) -> StalledInstance:
    return StalledInstance(endpoint.epoch, endpoint.progress.stalled, endpoint.progress.is_proven)


def _served(pool: Pool) -> ServedPool:
    return ServedPool(
        policy=pool.policy_name,
        version=pool.version,
        acked_at=pool.acked_at,
        fleet_at=pool.fleet_at,
        generation=pool.generation,
        split=_split(pool),
    )


def _split(pool: Pool) -> Split:
    return pool.split.state(time.perf_counter()) if pool.split is not None else ""
