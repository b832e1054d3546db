"""Runs one feed per endpoint that publishes KV events, selects the index to trust for each instance, and loads once the
tokenizer that a pool's instances name."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from random import getrandbits

from router.contract.net import whereabouts
from router.contract.redis.published import AS_SGLANG
from router.kv_events.feeds import Feeds, sweep
from router.kv_events.shared import SharedIndexes
from router.kv_events.sources import WHOLE, RankPlace
from router.kv_events.turns import SharedTurns
from router.pool.endpoint import Endpoint
from router.pool.kv_event_state import EventFeed, KvEventState
from router.pool.pool import Pool
from router.prefix.belief import UNCACHED, Doubt
from router.prefix.exact.groups import NONE
from router.prefix.exact.index import ExactIndex
from router.tokenize.sim import SimTokenizer
from router.tokenize.tokenizer import Tokenizer

log = logging.getLogger("weir.router")

STEP_S = 0.5
RESTING = ("stopped", "failed", "starting")  # states in which no engine runs
SIM = "sim"
RETRY_S = 30.0  # a folder that is unreadable now may become readable
UNNAMED = "hits that end where a layer keeps no window or state, as its events name no layers"
UNLIKE = "its blocks are named by {} tokens after them, those of another instance by {}: prompts are hashed one way"
_MISSING = "no tokenizer is named for its model"


class Listener:
    def __init__(self, shared: SharedIndexes | None = None) -> None:
        """`shared`: the index processes that follow the events instead of this router."""
        self._feeds = Feeds(SharedTurns())
        self._shared = shared

    async def run(self, pools: Iterable[Pool]) -> None:
        """Run until cancelled; `pools` is read again at each step."""
        try:
            while True:
                try:
                    await self.step(list(pools))
                except Exception:
                    log.exception("following KV events failed")
                await asyncio.sleep(STEP_S)
        finally:
            await self.close()

    async def step(self, pools: Iterable[Pool]) -> None:
        """Stop feeds of removed endpoints, start feeds of new ones, and select each endpoint's index."""
        pools = list(pools)
        followed = {endpoint.feed for pool in pools for endpoint in pool.endpoints.values() if _publishes(endpoint)}
        for feed in self._feeds:
            if feed not in followed:
                await self._feeds.end(feed)
        if self._shared is not None:
            self._shared.keep({pool.name for pool in pools})
        for pool in pools:
            await provide_tokenizer(pool)
            self._follow(pool)
            judge(pool)
            if pool.kv_event_state.index is not None:
                await sweep(pool.kv_event_state.index)

    async def close(self) -> None:
        await self._feeds.close()

    def _follow(self, pool: Pool) -> None:
        """Follow each endpoint by its own feed, per epoch and data-parallel rank."""
        state = pool.kv_event_state
        publishing = [endpoint for endpoint in pool.endpoints.values() if _publishes(endpoint)]
        if self._shared is not None:
            if publishing or state.shared is not None:
                self._shared.follow(pool, {endpoint: _place(endpoint) for endpoint in publishing})
            return
        if state.index is None:
            if not publishing:
                return
            state.index = ExactIndex(getrandbits(64))
        state.index.of_models({endpoint.tokenizer for endpoint in publishing})
        for endpoint in publishing:
            if endpoint.feed in self._feeds:
                continue
            endpoint.feed = self._feeds.follow(
                *(endpoint.id, endpoint.events_url, _place(endpoint), state.index),
                shares=endpoint.shares_store,
                chunk=state.attention_chunk,
            )


def judge(pool: Pool) -> None:
    """Select the index to trust for each endpoint."""
    state = pool.kv_event_state
    state.ahead = _ahead(pool.endpoints.values())
    for endpoint in pool.endpoints.values():
        feed, before = endpoint.feed, endpoint.belief
        if feed is not None and state.index is not None:
            blocks = endpoint.kv_tokens // (feed.block_size or endpoint.block_size)
            state.index.limit(endpoint.id, max(blocks - 1, 0))  # vLLM reserves one block
        trouble = (feed.trouble or state.no_tokens or _unlike(feed, state.ahead)) if feed is not None else None
        doubt = _doubt(feed, state)
        belief, endpoint.beliefs = endpoint.by_kind.beliefs(trouble, endpoint.unconfirmed, doubt=doubt)
        if endpoint.uncached:
            belief, endpoint.beliefs = UNCACHED, {"": UNCACHED}
        exact_but = _but_for(feed, doubt) if belief.index == "exact" and feed is not None else ""
        endpoint.belief = replace(belief, but_for=exact_but) if exact_but else belief
        if endpoint.belief.index != before.index:
            log.info(
                "%s: %s index%s",
                endpoint.id,
                endpoint.belief.index,
                f" ({why})" if (why := endpoint.belief.why) else "",
            )
    state.reach = _reach(pool.endpoints)
    if (rules := _rules(pool.endpoints)) != state.rules:
        state.rules = rules
    in_force = {belief.index for endpoint in pool.endpoints.values() for belief in endpoint.beliefs.values()}
    state.believed_of_all, state.some_unknown = in_force == {"exact"} or not in_force, "none" in in_force
    followed = [endpoint for endpoint in pool.endpoints.values() if endpoint.feed is not None]
    useless = state.shared is not None and not state.shared.answers
    state.parts = tuple(sorted({part for endpoint in followed if endpoint.feed for part in endpoint.feed.parts}))
    state.sizes = tuple(
        sorted({endpoint.feed.block_size or endpoint.block_size for endpoint in followed if endpoint.feed})
        if not useless
        else ()
    )


def _reach(endpoints: Mapping[str, Endpoint]) -> dict[str, dict[str, tuple[int, int]]]:
    """Return the reach of hits, in the form used by KvEventState."""
    short = {kind for one in endpoints.values() for kind, known in one.by_kind.kinds.items() if known.shortfall.tokens}
    made = {}
    for kind in ("", *short):
        made[kind] = {
            name: reach
            for name, endpoint in endpoints.items()
            if any(reach := (endpoint.by_kind.short_of(kind), endpoint.feed.unit if endpoint.feed is not None else 0))
        }
    return {kind: reach for kind, reach in made.items() if reach}


def _rules(endpoints: Mapping[str, Endpoint]) -> dict[str, dict[str, int]]:
    """Return the rules by which engines speculate, in the form used by KvEventState."""
    made: dict[str, dict[str, int]] = {}
    for name, endpoint in endpoints.items():
        for kind, known in endpoint.by_kind.kinds.items():
            if known.speculation.rule != NONE:
                made.setdefault(kind, {})[name] = known.speculation.rule
    return made


def _ahead(endpoints: Iterable[Endpoint]) -> int:
    """Return the tokens after a block that its name covers, as most of the followed feeds report; on a tie, the smaller
    number.
    """
    feeds = [endpoint.feed for endpoint in endpoints if _publishes(endpoint)]
    counts = Counter(feed.ahead for feed in feeds if feed is not None and feed.block_size)
    return min(counts, key=lambda ahead: (-counts[ahead], ahead), default=0)


def _unlike(feed: EventFeed, ahead: int) -> str:
    return UNLIKE.format(feed.ahead, ahead) if feed.block_size and feed.ahead != ahead else ""


def _doubt(feed: EventFeed | None, state: KvEventState) -> Doubt:
    if feed is None or not feed.complete:
        return "from_start"
    # SGLang's events do not describe a cache that contains only windows, nor its layers.
    names = feed.names_layers if feed.block_size else not state.reader_name.startswith(AS_SGLANG)
    return "layers" if state.forgetful and not names else ""


def _but_for(feed: EventFeed, doubt: Doubt) -> str:
    return "; ".join(filter(None, (UNNAMED if doubt == "layers" else "", feed.but_for)))


async def provide_tokenizer(pool: Pool) -> None:
    """Give the pool the tokenizer that its instances name; on failure the reason is in `no_tokens`."""
    named = {endpoint.tokenizer for endpoint in pool.endpoints.values() if endpoint.events_url}
    state = pool.kv_event_state
    if len(named) != 1 or "" in named:
        state.reader, state.reader_name = None, ""
        state.no_tokens = "its instances name different tokenizers" if len(named) > 1 else _MISSING
        return
    (name,) = named
    if name == state.reader_name and (state.reader is not None or time.monotonic() - state.reader_at < RETRY_S):
        return
    state.reader_name, state.reader_at = name, time.monotonic()
    try:
        state.reader = await _loaded(name)
        state.no_tokens = ""
    except Exception as error:  # the folder may contain anything; fall back to the approximate index
        state.reader = None
        why = error if whereabouts.listed(whereabouts.FOLDERS) else whereabouts.UNTOLD
        state.no_tokens = f"the tokenizer {name} cannot be used: {why}"[:300]


async def _loaded(name: str) -> Tokenizer:
    if name == SIM:
        return SimTokenizer()
    return await asyncio.get_running_loop().run_in_executor(None, _folder, name)


def _folder(name: str) -> Tokenizer:
    # Imported on first use, as the library takes 30 MB and 0.1 s.
    from router.tokenize.folder import FolderTokenizer
    from router.tokenize.sglang.template import SglangTemplate
    from router.tokenize.template import Template

    folder = name.removeprefix(AS_SGLANG)
    return FolderTokenizer(Path(folder), template=Template if folder == name else SglangTemplate)


def _publishes(endpoint: Endpoint) -> bool:
    return bool(endpoint.events_url) and endpoint.state not in RESTING


def _place(endpoint: Endpoint) -> RankPlace:
    """Return the place of a rank; an engine's key is sent only to the engine's own address."""
    dp, number = endpoint.ranks.dp, endpoint.rank
    place = WHOLE if number is None else RankPlace(number, number - dp.first, dp.ranks)
    own = endpoint.events_url.rstrip("/") == endpoint.upstream.url.rstrip("/")
    return replace(place, engine_key=endpoint.engine_key, tls=endpoint.upstream.tls) if own else place
