"""A pool's exact index, shared by routers and divided among index processes. Engines are assigned to processes by name,
so that all routers of a host ask the same process about an engine.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence, Set

import xxhash

from router.contract.net.engine_tls import PLAIN
from router.kv_events.link import ProcessLink, Prompts, SharedSent
from router.kv_events.messages import FeedStatus, FollowedEngine, Found, Stretch
from router.kv_events.sources import RankPlace
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.prefix.exact.groups import PartsBySize, masks_of
from router.prefix.exact.holders import Masks
from router.prefix.exact.index import NOTHING
from router.prefix.exact.stretches import Tokens, summed


class SharedFeed:
    """An endpoint's KV events as followed by an index process, with the attributes of a Feed."""

    def __init__(self, endpoint: Endpoint, place: RankPlace, link: ProcessLink) -> None:
        self.link = link
        self._place = (place.number, place.position, place.ranks)
        self._engine_key, self._tls = place.engine_key, place.tls
        self._url = endpoint.events_url
        self.key = f"{endpoint.id} {endpoint.epoch} {self._url} {self._place} {self._engine_key}".rstrip()
        self.key += f" {self._tls}" if self._tls != PLAIN else ""
        self.blocks = NOTHING
        self.refused: Counter[str] = Counter()
        self._take(FeedStatus(self.key, "the index process does not follow its events yet"))

    def _take(self, status: FeedStatus) -> None:
        self.trouble, self.complete, self.block_size = status.trouble, status.complete, status.block_size
        self.event_at, self.confirmed_at = status.event_at, status.confirmed_at
        self.gaps, self.replayed, self.purges = status.gaps, status.replayed, status.purges
        self.blocks, self.refused, self.but_for = status.blocks, Counter(status.refused), status.but_for
        self.names_layers, self.unit, self.ahead = status.names_layers, status.unit, status.ahead
        self.parts = status.parts

    def refresh(self) -> None:
        trouble = self.link.trouble
        if trouble:
            self.trouble = trouble
        elif status := self.link.feeds.get(self.key):
            self._take(status)

    def engine(self, endpoint: Endpoint, chunk: int) -> FollowedEngine:
        own = self.key, self._url, self._place, endpoint.kv_tokens, endpoint.block_size, self._engine_key
        return FollowedEngine(*own, endpoint.shares_store, chunk, self._tls, endpoint.tokenizer)


class ProcessIndex:
    """The shared index of one pool."""

    def __init__(self, pool: str, links: Sequence[ProcessLink]) -> None:
        self._pool = pool
        self._links = links
        self._feeds: dict[str, SharedFeed] = {}  # by endpoint
        self._endpoints: dict[str, str] = {}  # by key
        self._asked: Sequence[ProcessLink] = ()  # links to processes with a part of the index
        self._names: dict[ProcessLink, tuple[Sequence[str], Sequence[str]]] = {}  # keys, endpoints

    @property
    def seed(self) -> int:
        """Return the seed of the hash chains, equal for all processes whose sockets share a folder."""
        return next((link.seed for link in self._links if link.seed is not None), 0)

    @property
    def answers(self) -> bool:
        """Return whether a look-up can find anything."""
        return any(not link.trouble for link in self._asked)

    @property
    def has_lower(self) -> bool:
        return any(link.status[self._pool].has_lower for link in self._links if self._pool in link.status)

    @property
    def bytes(self) -> int:
        """Return the memory of all processes, which does not depend on the number of routers."""
        return sum(link.status[self._pool].bytes for link in self._links if self._pool in link.status)

    def blocks(self, instance: str) -> Tokens:
        feed = self._feeds.get(instance)
        return feed.blocks if feed is not None else NOTHING

    def follow(self, places: Mapping[Endpoint, RankPlace], chunk: int = 0) -> None:
        """Follow exactly these endpoints at their places. For `chunk` see FollowedEngine."""
        engines: dict[ProcessLink, list[FollowedEngine]] = {link: [] for link in self._links}
        self._feeds = {}
        for endpoint, place in places.items():
            feed = endpoint.feed
            if not isinstance(feed, SharedFeed):
                link = self._links[xxhash.xxh64_intdigest(endpoint.id.encode()) * len(self._links) >> 64]
                feed = endpoint.feed = SharedFeed(endpoint, place, link)
            self._feeds[endpoint.id] = feed
            engines[feed.link].append(feed.engine(endpoint, chunk))
        self._endpoints = {feed.key: name for name, feed in self._feeds.items()}
        self._names.clear()
        self._asked = [link for link, wanted in engines.items() if wanted]
        for link, wanted in engines.items():
            link.follow(self._pool, wanted)
        for feed in self._feeds.values():
            feed.refresh()

    async def look_up(self, prompts: Prompts, parts: PartsBySize, rules: Mapping[str, int]) -> "ProcessLookUp | None":
        """Look a prompt up; None if no process answers in time. For `rules` see ExactIndex.rules."""
        asked = [link.look_up(self._pool, prompts, parts, self._masks(link, rules)) for link in self._asked]
        answers = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        found = {link: answer for link, answer in zip(self._asked, answers, strict=True) if answer is not None}
        if not found:
            return None
        held: dict[str, Tokens] = {}
        for link, answer in found.items():
            held |= self._held(link, answer, [size for size, _ in prompts])
        numbers = {link: answer.number for link, answer in found.items()}
        return ProcessLookUp(held, numbers, self)

    def _masks(self, link: ProcessLink, rules: Mapping[str, int]) -> Mapping[int, int]:
        bits = {name: 1 << slot for slot, name in enumerate(self._names_of(link))} if rules else {}
        return masks_of(rules, bits)

    def _held(self, link: ProcessLink, answer: Found, sizes: Sequence[int]) -> dict[str, Tokens]:
        names = self._names_of(link)
        held: dict[str, Tokens] = {}
        for size, (stretches, foreseen) in zip(sizes, answer.prompts, strict=True):
            held |= summed([_masks(stretch) for stretch in stretches], size, names)
            held |= {names[slot]: (tokens, 0, 0) for slot, tokens in foreseen}
        held.pop("", None)  # engines that only other routers use
        return held

    def _names_of(self, link: ProcessLink) -> Sequence[str]:
        """Return the endpoint of each bit in the process's masks; empty for engines that only other routers use."""
        keys = link.names.get(self._pool, ())
        known = self._names.get(link)
        if known is None or known[0] is not keys:
            known = self._names[link] = (keys, [self._endpoints.get(key, "") for key in keys])
        return known[1]

    def sent(
        self, looked_up: "ProcessLookUp", instance: str, block_size: int, foreseen: int, *, speculating: bool
    ) -> SharedSent | None:
        feed = self._feeds.get(instance)
        number = looked_up.numbers.get(feed.link) if feed is not None else None
        if feed is None or number is None:
            return None
        return feed.link.sent(number, self._pool, feed.key, block_size, foreseen, speculating=speculating)

    def refuted(self, looked_up: "ProcessLookUp", instance: str, block_size: int, held: int) -> None:
        feed = self._feeds.get(instance)
        number = looked_up.numbers.get(feed.link) if feed is not None else None
        if feed is not None and number is not None:
            feed.link.refuted(number, self._pool, feed.key, block_size, held)


class ProcessLookUp:
    """An answered look-up."""

    __slots__ = ("_index", "held", "numbers")

    def __init__(self, held: Mapping[str, Tokens], numbers: Mapping[ProcessLink, int], index: ProcessIndex) -> None:
        self.held = held  # tokens that each instance will hold when it admits a request sent now
        self.numbers = numbers  # number of the look-up by process
        self._index = index

    def sent(self, instance: str, block_size: int, foreseen: int, *, speculating: bool = False) -> SharedSent | None:
        """Report that the prompt goes to this instance, with `foreseen` leading blocks expected at admission. With
        `speculating`, request its tokens by each rule of speculation."""
        return self._index.sent(self, instance, block_size, foreseen, speculating=speculating)

    def refuted(self, instance: str, block_size: int, held: int) -> None:
        """Report that this instance had only `held` leading blocks of the prompt."""
        self._index.refuted(self, instance, block_size, held)


class SharedIndexes:
    """The links to a host's index processes, and the index of each pool."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.links = [ProcessLink(path) for path in paths]
        self._pools: dict[str, ProcessIndex] = {}

    def follow(self, pool: Pool, places: Mapping[Endpoint, RankPlace]) -> None:
        """Follow the pool's endpoints that publish KV events."""
        shared = self._pools.get(pool.name)
        if shared is None:
            shared = self._pools[pool.name] = ProcessIndex(pool.name, self.links)
        shared.follow(places, pool.kv_event_state.attention_chunk)
        pool.kv_event_state.shared = shared

    def keep(self, pools: Set[str]) -> None:
        """Stop following removed pools."""
        for name in self._pools.keys() - pools:
            self._pools.pop(name).follow({})

    async def run(self) -> None:
        """Keep the links connected, until cancelled."""
        await asyncio.gather(*(link.run() for link in self.links))


def _masks(stretch: Stretch) -> tuple[int, Masks]:
    end, device, host, disk = stretch
    little = int.from_bytes
    return end, (little(device, "little"), little(host, "little"), little(disk, "little"))
