"""Reads policy, fleet and load from Redis while serving, and keeps the last good state when Redis is unreachable.
Changes arrive by pub/sub (`weir:changed`) and, as messages may be lost, by a poll every POLL_S. A pool that is missing
in Redis is dropped only if Redis has kept its data since the last poll: the control plane refills a Redis that restarts
empty, and until then the router serves the last known state. A value older than the one in use is refused.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from msgspec.structs import replace

from router.contract.redis import codec, redis_keys
from router.contract.redis.api_keys import ApiKeysValue
from router.contract.redis.codec import OrderedValue
from router.contract.redis.published import FleetValue, ModelsValue, PolicyValue
from router.contract.redis.sample import InstanceSample
from router.pool.pool import Pool
from router.serving.pools import Pools
from router.sync.redis_link import RedisLink
from router.sync.split_signals import SplitSignals

log = logging.getLogger("weir.router")

POLL_S = 2.0  # also picks up changes whose pub/sub message was lost
SAMPLE_S = 1.0
RESUBSCRIBE_S = 0.5
LISTEN_S = 0.2  # upper bound of the delay at shutdown


# The published value in use for each key. A value that was read earlier from the database never replaces it. A router
# keeps its values when Redis loses its data, because Redis may restart with older ones from its disk.


class ValuesInForce:
    def __init__(self) -> None:
        self._held: dict[str, OrderedValue] = {}
        self.refused: dict[str, int] = {}  # by key: the order in use, where Redis holds an older value
        self.older = 0  # values refused since the start

    def take(self, key: str, value: OrderedValue) -> bool:
        """Accept a value; return False if it is older than the one in use. Values without an order (written by scripts)
        are always accepted."""
        held = self._held.get(key)
        if held is not None and 0 < value.order < held.order and not value.says_the_same(held):
            self.refused[key] = held.order
            self.older += 1
            return False
        self.refused.pop(key, None)
        self._held[key] = value if held is None else replace(value, order=max(value.order, held.order))
        return True

    def missing(self, key: str) -> None:
        """Note that Redis has no value; the one in use stays."""
        self.refused.pop(key, None)

    def forget(self, key: str) -> None:
        """Forget the key of a removed pool; if the pool is declared again, its orders start over."""
        self._held.pop(key, None)
        self.refused.pop(key, None)


class LiveState:
    def __init__(self, link: RedisLink, pools: Pools, router_id: str) -> None:
        self._link = link
        self._pools = pools
        self._id = router_id
        self._lock = asyncio.Lock()  # values are applied in the order in which they are read
        self._raw: dict[str, str] = {}  # latest value by key, applied or rejected
        self.in_force = ValuesInForce()
        self._confirmed: set[str] = set()  # pools seen since Redis was last lost
        self._bad: dict[str, str] = {}  # reasons of rejection by key
        self._warned: set[str] = set()
        self._to_acknowledge: dict[str, Pool] = {}
        self._models_taken = False  # True if the document Models was applied but not acknowledged
        self.signals = SplitSignals(link)
        self._unreadable = 0
        self.polled_at: float | None = None  # s, Unix
        self.on_version: Callable[[Pool], Awaitable[None]] | None = None
        self.on_models: Callable[[], Awaitable[None]] | None = None
        self.on_removed: Callable[[str], None] | None = None

    @property
    def unreadable(self) -> int:
        """Return the number of unreadable values since the start."""
        return self._unreadable + self.signals.unreadable

    @property
    def redis_up(self) -> bool:
        return self._link.up

    def degraded(self) -> list[str]:
        reasons = []
        if not self._link.up:
            since = time.time() - (self._link.down_since or time.time())
            reasons.append(
                f"Redis has not answered for {since:.0f} s ({self._link.why}): serving on the last known state"
            )
        if not self._pools.known:
            reasons.append("no fleet has been read yet: every request is answered 503")
        if self._pools.auth.closed:
            reasons.append(f"{self._pools.auth.closed}: every request is answered 503")
        reasons += [*self._bad.values(), *self.signals.bad.values()]
        reasons += self._pools.troubles() if self._pools.known else []
        now = time.time()
        for pool in self._pools.all():
            if not pool.version and redis_keys.policy_key(pool.name) not in self._bad:
                reasons.append(f"pool {pool.name}: no policy has been published, the built-in default is in force")
            if pool.split is not None and (trouble := pool.split.trouble(time.perf_counter())):
                reasons.append(f"pool {pool.name}: {trouble}")
            # There are no samples without Redis; the reason above already covers that.
            reasons += pool.troubles(now) if self._link.up and not pool.ephemeral else []
        gone = [pool.name for pool in self._pools.all() if pool.name not in self._confirmed]
        if self._link.up and gone:
            reasons.append(f"missing in Redis, served from the last known state: pools {', '.join(gone)}")
        return reasons

    # Steps

    async def poll(self) -> None:
        async with self._lock:
            lost, listed = await self._listed()
            names = sorted(listed | {pool.name for pool in self._pools.all()})
            # The fleet comes before the policy: a policy is acknowledged when it is applied, and by then the pool needs
            # its instances.
            keys = [
                redis_keys.API_KEYS,
                redis_keys.MODELS,
                *(key for name in names for key in (redis_keys.fleet_key(name), redis_keys.policy_key(name))),
            ]
            values = await self._link.mget(keys)
            self._link.answered()
            if lost:
                self._confirmed.clear()
            self._take(zip(keys, values, strict=True), listed)
            self.polled_at = time.time()
            await self._look_at_splits(self._pools.all())

    async def _look_at_splits(self, pools: Iterable[Pool]) -> None:
        """Check the splits before acknowledging, because an acknowledgement says whether the split is in effect."""
        await self.signals.look(pools)
        for name, pool in list(self._to_acknowledge.items()):
            if self.on_version is not None:
                await self.on_version(pool)
            del self._to_acknowledge[name]
        if self._models_taken and self.on_models is not None:
            await self.on_models()
        self._models_taken = False

    async def _listed(self) -> tuple[bool, set[str]]:
        """Return (whether Redis has lost its data since the last call, its list of pools), read atomically."""
        async with self._link.client.pipeline(transaction=True) as pipe:
            pipe.set(redis_keys.seen_key(self._id), 1, get=True)
            pipe.smembers(redis_keys.POOLS)
            seen, names = await pipe.execute()
        return seen is None, {name.decode() for name in names}

    def _take(self, items: Iterable[tuple[str, str | None]], listed: set[str]) -> None:
        gone = self._confirmed - listed
        self._confirmed |= listed
        for key, raw in items:
            self._take_key(key, raw)
        for name in gone:
            self._remove(name)

    async def changed(self, key: str) -> None:
        """Handle a change message for the key; if its fleet is missing, the pool was deleted."""
        async with self._lock:
            if key.startswith((redis_keys.stop_key(""), redis_keys.watch_key(""))):
                pool = self._pools.get(key.split(":", 2)[2])
                await self._look_at_splits([pool] if pool is not None else [])
                return
            if key not in (redis_keys.API_KEYS, redis_keys.MODELS) and not redis_keys.pool_of(key):
                return
            raw = await self._link.get(key)
            if raw is None and key.startswith(redis_keys.fleet_key("")):
                self._remove(key.removeprefix(redis_keys.fleet_key("")))
            else:
                self._take_key(key, raw)
                await self._look_at_splits(self._to_acknowledge.values())

    async def samples(self) -> None:
        await self._pools.auth.give_back()
        for pool in self._pools.all():
            pool.limit_index()
        endpoints = [endpoint for pool in self._pools.all() for endpoint in pool.endpoints.values()]
        if not endpoints:
            return
        names = list(dict.fromkeys(endpoint.instance for endpoint in endpoints))
        raws = await self._link.mget([redis_keys.instance_key(name) for name in names])
        samples = {name: self._sample(name, raw) for name, raw in zip(names, raws, strict=True)}
        now = time.time()
        for endpoint in endpoints:
            if (sample := samples[endpoint.instance]) is not None:
                endpoint.take_sample(sample, now)

    def _sample(self, instance: str, raw: str | None) -> InstanceSample | None:
        key = redis_keys.instance_key(instance)
        try:
            sample = codec.read(InstanceSample, raw) if raw is not None else None
            self._bad.pop(key, None)
        except codec.Unreadable as error:
            self._unreadable += 1
            self._refuse(key, f"sample of {instance}: {error}")
            return None
        return sample

    async def listen(self) -> None:
        """Follow `weir:changed` as long as the connection lasts."""
        client = self._link.subscriber()
        channel = client.pubsub()
        try:
            await channel.subscribe(redis_keys.CHANGED)
            await self.poll()  # picks up changes from before the subscription
            while not self._link.stopping.is_set():
                message = await channel.get_message(ignore_subscribe_messages=True, timeout=LISTEN_S)
                if message is not None:
                    await self.changed(message["data"].decode())
        finally:
            await channel.aclose()  # type: ignore[no-untyped-call]
            await client.aclose()

    # Values

    def _take_key(self, key: str, raw: str | None) -> None:
        if raw is None:
            self._miss(key)
        elif self._raw.get(key) != raw:
            self._raw[key] = raw
            why = self._take_value(key, raw)
            if why:
                self._refuse(key, f"{_named(key)}: {why}")
            else:
                self._bad.pop(key, None)

    def _miss(self, key: str) -> None:
        self.in_force.missing(key)
        if key == redis_keys.API_KEYS:
            self._pools.auth.unreadable = False
        for known in (self._raw, self._bad):
            known.pop(key, None)

    def _take_value(self, key: str, raw: str) -> str:
        """Put the value into effect, or record why that is impossible."""
        kind = _KINDS[key.removesuffix(redis_keys.pool_of(key))][0]
        try:
            value = codec.read(kind, raw)
            if not self.in_force.take(key, value):
                return f"Redis holds an older one (order {value.order}; in force is {self.in_force.refused[key]})"
            self._apply(key, value)
        except codec.Unreadable as error:
            self._unreadable += 1
            self._pools.auth.unreadable |= kind is ApiKeysValue
            return str(error)
        return ""

    def _apply(self, key: str, value: OrderedValue) -> None:
        if isinstance(value, ApiKeysValue):
            self._pools.auth.take(value)
            self._warn()
            return
        if isinstance(value, ModelsValue):
            self._models_taken |= self._pools.take_models(value)
            return
        pool = self._pools.get_or_add(redis_keys.pool_of(key))
        if isinstance(value, FleetValue):
            pool.take_fleet(value)
            self._pools.changed()
        elif isinstance(value, PolicyValue):
            if pool.on_trip is None:
                pool.on_trip = self.signals.tripped
            if pool.take_policy(value, time.time()):
                self._to_acknowledge[pool.name] = pool

    def _warn(self) -> None:
        warnings = self._pools.auth.warnings()
        for warning in set(warnings) - self._warned:
            log.warning("%s", warning)
        self._warned = set(warnings)

    def _refuse(self, key: str, why: str) -> None:
        if self._bad.get(key) != why[:500]:
            log.warning("ignored: %s", why)
        self._bad[key] = why[:500]

    def _remove(self, name: str) -> None:
        self._pools.remove(name)
        self._confirmed.discard(name)
        self._to_acknowledge.pop(name, None)
        for key in (redis_keys.policy_key(name), redis_keys.fleet_key(name)):
            self.in_force.forget(key)
            self._raw.pop(key, None)
            self._bad.pop(key, None)
        if self.on_removed is not None:
            self.on_removed(name)

    def tasks(self) -> list[Awaitable[None]]:
        return [
            self._link.every(RESUBSCRIBE_S, self.listen),
            self._link.every(POLL_S, self.poll),
            self._link.every(SAMPLE_S, self.samples),
        ]


_KINDS: dict[str, tuple[type[OrderedValue], str]] = {
    redis_keys.policy_key(""): (PolicyValue, "policy"),
    redis_keys.fleet_key(""): (FleetValue, "fleet"),
    redis_keys.API_KEYS: (ApiKeysValue, "API keys"),
    redis_keys.MODELS: (ModelsValue, "the document Models"),
}


def _named(key: str) -> str:
    pool = redis_keys.pool_of(key)
    name = _KINDS[key.removesuffix(pool)][1]
    return f"{name} of pool {pool}" if pool else name
