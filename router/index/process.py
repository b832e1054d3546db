"""The index process follows the KV events of the engines that its routers name, and answers the routers' look-ups. It
holds one exact index per pool, whatever the number of routers, and keeps no state on disk: when routers reconnect, they
name the engines again, and the engines replay their events.
"""

import asyncio
import logging
import resource
import time
from array import array
from collections import OrderedDict
from pathlib import Path
from typing import cast

from router.kv_events.feed import Feed
from router.kv_events.feeds import Feeds, sweep
from router.kv_events.messages import (
    VERSION,
    BadFrame,
    Costs,
    FeedStatus,
    Follow,
    FollowedEngine,
    Found,
    Frames,
    Hello,
    IndexReport,
    LookUp,
    Over,
    Refuted,
    Sent,
    Slots,
    Speculating,
    Stretch,
    ToProcess,
    Welcome,
    framed,
    read,
    to_process,
)
from router.kv_events.sources import RankPlace
from router.kv_events.turns import SharedTurns
from router.prefix.exact.groups import Parts, Rules, rules_of
from router.prefix.exact.index import MAX_BLOCKS, NO_PARTS, ExactIndex
from router.prefix.exact.stretches import summed
from router.prefix.forecast.cache_forecast import InFlight

log = logging.getLogger("weir.index")

STEP_S = 0.5
KEPT_S = 30.0  # how long a disconnected router's engines are still followed, as the router may be restarting
LOOK_UPS_KEPT = 1_024  # latest look-ups of each router, kept for its reports on their prompts
FEEDS_AT_ONCE = 50  # feeds reported before the event loop serves others
SLICE_S = 0.0003  # time per iteration of the event loop for KV events; look-ups may have to wait for it
PAGE = resource.getpagesize()

Hashes = dict[
    int, tuple["array[int]", dict[int, "array[int]"]]
]  # a prompt's hashes by block size, and the hashes of the blocks' parts
NO_HASHES: Hashes = {}


class PoolIndex:
    """A pool's index and the feeds that fill it."""

    def __init__(self, seed: int, max_blocks: int) -> None:
        self.index = ExactIndex(seed, max_blocks)
        self.feeds: dict[str, Feed] = {}  # by the engine's key
        self.engines: dict[str, FollowedEngine] = {}

    def limit(self) -> None:
        for key, feed in self.feeds.items():
            blocks = self.engines[key].kv_tokens // (feed.block_size or self.engines[key].block_size)
            self.index.limit(key, max(blocks - 1, 0))  # vLLM reserves one block

    def look_up(
        self, size: int, hashes: "array[int]", now: float, parts: Parts, rules: Rules
    ) -> tuple[list[Stretch], list[tuple[int, int]]]:
        index = self.index
        stretches = index.stretches(hashes, parts, rules)
        held = summed(index.changing(stretches), size, index.names)
        foreseen = index.foreseen(held, hashes, size, now)
        return [
            (end, *(mask.to_bytes((mask.bit_length() + 7) // 8, "little") for mask in masks))  # type: ignore[misc]
            for end, masks in stretches
        ], [(index.slot(key), tokens[0]) for key, tokens in foreseen.items()]

    async def status(self, pool: str) -> IndexReport:
        """Collect the state. A thousand feeds take some milliseconds, so look-ups are answered in between."""
        index, feeds = self.index, []
        for number, (key, feed) in enumerate(list(self.feeds.items())):
            if number % FEEDS_AT_ONCE == FEEDS_AT_ONCE - 1:
                await asyncio.sleep(0)
            feeds.append(
                FeedStatus(
                    *(key, feed.trouble, feed.complete, feed.block_size, index.blocks(key), feed.event_at),
                    *(feed.confirmed_at, feed.gaps, feed.replayed, feed.purges, dict(feed.refused), feed.but_for),
                    *(feed.names_layers, feed.unit, feed.ahead, feed.parts),
                )
            )
        return IndexReport(pool, index.bytes, index.has_lower, feeds)


class IndexProcess:
    def __init__(self, seed: int, max_blocks: int = MAX_BLOCKS) -> None:
        """`max_blocks` limits each pool; a block counts once per engine and takes about 70 bytes."""
        self.seed = seed
        self.max_blocks = max_blocks
        self.pools: dict[str, PoolIndex] = {}
        self.routers: set[RouterConnection] = set()
        # (time at which to stop, engines followed for the router)
        self._left: list[tuple[float, dict[str, dict[str, FollowedEngine]]]] = []
        self._feeds = Feeds(SharedTurns(SLICE_S, pause_s=0.0))

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            while True:
                try:
                    await self.step(time.monotonic())
                except Exception:
                    log.exception("following KV events failed")
                await asyncio.sleep(STEP_S)
        finally:
            await self._feeds.close()

    async def step(self, now: float) -> None:
        """Follow exactly the engines that routers want, and report their state."""
        self._left = [(until, follows) for until, follows in self._left if until > now]
        for pool in list(self.pools):
            await self._follow(pool)
        costs = framed(Costs(_resident(), time.process_time()))
        for name, pool_index in list(self.pools.items()):
            pool_index.limit()
            status = framed(await pool_index.status(name))
            for router in self.routers:
                if name in router.follows:
                    router.write(status)
        for router in self.routers:
            router.write(costs)
        for pool_index in list(self.pools.values()):
            await sweep(pool_index.index)

    async def _follow(self, pool: str) -> None:
        wanted: dict[str, FollowedEngine] = {}
        for follows in (*(follows for _, follows in self._left), *(router.follows for router in self.routers)):
            wanted |= follows.get(pool, {})
        held = self.pools[pool]
        held.engines = wanted
        held.index.of_models({engine.model for engine in wanted.values()})
        for key in [key for key in held.feeds if key not in wanted]:
            await self._feeds.end(held.feeds.pop(key))
        for key, engine in wanted.items():
            if key not in held.feeds:
                place = RankPlace(*engine.rank, engine.engine_key, engine.tls)
                held.feeds[key] = self._feeds.follow(
                    key, engine.url, place, held.index, shares=engine.shares, chunk=engine.chunk
                )
        if not wanted:
            del self.pools[pool]

    def pool(self, name: str) -> PoolIndex:
        if name not in self.pools:
            self.pools[name] = PoolIndex(self.seed, self.max_blocks)
        return self.pools[name]

    def came(self, router: "RouterConnection") -> None:
        self.routers.add(router)

    def left(self, router: "RouterConnection") -> None:
        self.routers.discard(router)
        if router.follows:
            self._left.append((time.monotonic() + KEPT_S, router.follows))


class RouterConnection(asyncio.Protocol):
    def __init__(self, process: IndexProcess) -> None:
        self._process = process
        self._transport: asyncio.WriteTransport | None = None
        self._frames = Frames()
        self.follows: dict[str, dict[str, FollowedEngine]] = {}  # engines wanted by this router, by pool and key
        self._look_ups: OrderedDict[int, tuple[Hashes, float]] = OrderedDict()  # with their time (s, monotonic)
        self._under_way: dict[int, InFlight] = {}
        self._named: dict[str, tuple[PoolIndex, int]] = {}  # by pool: the slots whose engines the router knows

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._process.came(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._process.left(self)
        now = time.monotonic()
        for under_way in self._under_way.values():
            under_way.over(now)
        self._under_way.clear()

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._take(read(to_process, frame))
        except BadFrame as why:
            log.warning("a router sent %s", why)
            if self._transport is not None:
                self._transport.close()

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def _take(self, message: ToProcess) -> None:
        match message:
            case LookUp():
                self._look_up(message)
            case Sent():
                self._sent(message)
            case Over():
                under_way = self._under_way.pop(message.number, None)
                if under_way is not None:
                    under_way.over(time.monotonic())
            case Refuted():
                self._refuted(message)
            case Follow():
                self.follows[message.pool] = {engine.key: engine for engine in message.engines}
                self._process.pool(message.pool)
            case Hello():
                self.write(framed(Welcome(VERSION, self._process.seed)))

    def _look_up(self, asked: LookUp) -> None:
        hashes: Hashes = {size: (array("Q", prompt), {}) for size, prompt in asked.prompts}
        for size, pieces, within in asked.parts:
            hashes[size][1][pieces] = array("Q", within)
        pool = self._process.pools.get(asked.pool)
        if pool is None:
            self.write(framed(Found(asked.number, [([], []) for _ in hashes])))
            return
        now, rules = time.monotonic(), rules_of({rule: int.from_bytes(bits, "little") for rule, bits in asked.rules})
        found = [pool.look_up(size, prompt, now, parts, rules) for size, (prompt, parts) in hashes.items()]
        named = (pool, pool.index.renamed)
        if self._named.get(asked.pool) != named:
            self._named[asked.pool] = named
            self.write(framed(Slots(asked.pool, list(pool.index.names))))
        self.write(framed(Found(asked.number, found)))
        self._look_ups[asked.number] = hashes, now
        if len(self._look_ups) > LOOK_UPS_KEPT:
            self._look_ups.popitem(last=False)

    def _sent(self, sent: Sent) -> None:
        hashes, parts, _ = self._looked_up(sent)
        pool = self._process.pools.get(sent.pool)
        if hashes is not None and pool is not None and sent.key in pool.feeds:
            foreseen = min(max(sent.foreseen, 0), len(hashes))
            if sent.speculating:
                by_rule = pool.index.by_rule(sent.key, hashes, sent.block_size, parts, foreseen)
                self.write(framed(Speculating(sent.number, by_rule)))
            self._under_way[sent.number] = pool.index.sent(sent.key, hashes, foreseen)

    def _refuted(self, refuted: Refuted) -> None:
        hashes, _, asked_at = self._looked_up(refuted)
        pool = self._process.pools.get(refuted.pool)
        if hashes is not None and pool is not None:
            pool.index.refute(refuted.key, hashes, min(max(refuted.held, 0), len(hashes)), asked_at)

    def _looked_up(self, report: Sent | Refuted) -> tuple["array[int] | None", Parts, float]:
        """Return the hashes of the prompt and of its blocks' parts, and when it was looked up (s, monotonic)."""
        by_size, at = self._look_ups.get(report.look_up, (NO_HASHES, 0.0))
        hashes, parts = by_size.get(report.block_size, (None, NO_PARTS))
        return hashes, parts, at


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
