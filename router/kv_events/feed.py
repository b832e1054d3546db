"""The feed of one instance's KV events into the index: discovery, subscription, completeness, trust. Every few seconds
the feed asks the engine for batches after the last one, to tell an idle engine from lost events. An unrecoverable loss
(a gap that the engine cannot replay, a broken connection) clears the instance's part of the index. An engine whose
events are refused too often is ignored for LONGEST_RETRY_S.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

import zmq

from router.contract.redis.staleness import KV_EVENTS_STALE_S
from router.kv_events.batch import BlocksCleared, BlocksRemoved, BlocksStored, KvEventBatch, Undecodable, decode
from router.kv_events.followed_groups import FollowedGroups
from router.kv_events.inbox import ZmqSubscription
from router.kv_events.sequence import Sequence, ShortestDelay
from router.kv_events.sources import KvEventSource, NoEvents
from router.kv_events.turns import SharedTurns
from router.prefix.exact.holders import FURTHER
from router.prefix.exact.index import ExactIndex, IndexFull
from router.prefix.exact.store import STORE

log = logging.getLogger("weir.router")

CONFIRM_S = 2.0  # interval at which a quiet engine is asked for missed batches
BEHIND_S = 1.0  # events applied later than this describe an outdated cache
ANSWER_S = 5.0  # time-out of a replay request
RETRY_S = 1.0  # doubles with each failure
LONGEST_RETRY_S = 30.0
UNTOLD_STORE = "what its store has removed, which no event tells"
MOST_REFUSED = 10  # batches and messages of one connection
MOST_BLOCKS = 4_000_000  # blocks of one engine; the index has space for four times as many
NUMBER_BYTES = 8  # length of a sequence number

Discover = Callable[[], Awaitable[KvEventSource]]


class EventsRefused(Exception):
    """The engine's events will not be followed for some time; the message has the reason."""


class Feed:
    """Follows one engine with `run`, until cancelled. `trouble` says why the index cannot be trusted; it is empty
    otherwise."""

    def __init__(
        self,
        instance: str,
        discover: Discover,
        index: ExactIndex,
        context: "zmq.Context[zmq.Socket[bytes]]",
        turns: SharedTurns | None = None,
        *,
        shares: bool = False,
        chunk: int = 0,
    ) -> None:
        """`turns` are shared by all followed engines. `shares` is True if the whole pool shares the engine's store.
        `chunk` is the number of tokens in a chunk of its model's attention, if known."""
        self.instance = instance
        self._discover = discover
        self._index = index
        self._context = context
        self._turns = turns or SharedTurns()
        self._shares = shares
        self._untold = False  # True if it has blocks in a store that does not report removals
        self._chunk = chunk
        self._groups = FollowedGroups(chunk)
        self._sequence = self._new_sequence()
        self._lost = asyncio.Event()
        self._events: ZmqSubscription | None = None
        self._replay: ZmqSubscription | None = None
        self._asked_at: float | None = None  # s, monotonic
        self._why = "the router has not subscribed to its events yet"
        self.complete = False  # True if no event since the engine's start or last clear was missed
        self.event_at: float | None = None  # s, Unix, engine's clock: time of the latest batch
        self.confirmed_at: float | None = None  # s, Unix: last time the index was known to be up to date
        self.behind_s = 0.0  # delay of the latest batch beyond the shortest recent one
        self._shortest = ShortestDelay()  # includes the difference between the clocks
        self.purges = 0
        self.batches = 0
        self._gaps = self._replayed = 0  # counts from earlier connections
        self.refused: Counter[str] = Counter()  # reason → how often
        self._refused_here = 0  # on this connection

    @property
    def trouble(self) -> str:
        if self._why:
            return self._why
        if self._groups.trouble:
            return self._groups.trouble
        if self.confirmed_at is None:
            return "the replay of its earlier events is not complete yet"
        age = time.time() - self.confirmed_at
        if age > KV_EVENTS_STALE_S:
            return f"it has not confirmed its events for {age:.0f} s"
        return f"its events are {self.behind_s:.1f} s behind" if self.behind_s > BEHIND_S else ""

    @property
    def block_size(self) -> int:
        """Return the tokens per block; 0 before the first block event."""
        return self._groups.block_size

    @property
    def but_for(self) -> str:
        """Return the kinds of request that this engine's exact index cannot predict."""
        store = UNTOLD_STORE if self._untold or self._shares else ""
        return "; ".join(filter(None, (self._groups.but_for, store)))

    @property
    def names_layers(self) -> bool:
        """Return whether the engine's events name the kind of layers that stored a block."""
        return self._groups.names_layers

    @property
    def ahead(self) -> int:
        """Return the tokens after each block that the block's name covers."""
        return self._groups.ahead

    @property
    def parts(self) -> tuple[int, ...]:
        """Return the block size, in tokens, of windows whose blocks are parts of its blocks."""
        return self._groups.parts

    @property
    def unit(self) -> int:
        """Return the tokens of an offloaded chunk, which is loaded as a whole; 0 if blocks are loaded one by one."""
        return self._groups.unit

    @property
    def gaps(self) -> int:
        return self._gaps + self._sequence.gaps

    @property
    def replayed(self) -> int:
        return self._replayed + self._sequence.replayed

    async def run(self) -> None:
        pause_s = RETRY_S
        while True:
            try:
                source = await self._discover()
                self._connect(source)
                pause_s = RETRY_S
                await self._follow()
            except NoEvents as why:
                self._stop(str(why))
            except zmq.ZMQError as error:
                self._stop(f"cannot subscribe to its events: {error.strerror}")
            except (IndexFull, EventsRefused) as error:
                self._stop(str(error))
                pause_s = LONGEST_RETRY_S
            except asyncio.CancelledError:
                self._stop("its events are no longer followed")
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    def _new_sequence(self) -> Sequence:
        return Sequence(self._apply, self._lose, self._ask)

    def _connect(self, source: KvEventSource) -> None:
        self._gaps, self._replayed = self.gaps, self.replayed
        self._sequence = self._new_sequence()
        self._groups = FollowedGroups(self._chunk)
        self._shortest, self.behind_s = ShortestDelay(), 0.0
        self._failure: Exception | None = None
        self._refused_here = 0
        self._lost.clear()
        self._empty()
        self.complete = True
        self._events = ZmqSubscription(self._context, zmq.SUB, source.endpoint, self._live, self._gone, self._turns)
        self._events.subscribe(source.topic)
        if source.replay is not None:
            self._replay = ZmqSubscription(
                self._context, zmq.DEALER, source.replay, self._replayed_frame, self._gone, self._turns
            )
        self._why = ""
        self._sequence.start()

    async def _follow(self) -> None:
        """Follow the events until the connection is lost."""
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(CONFIRM_S / 2):
                    await self._lost.wait()
            except TimeoutError:
                self._check(time.monotonic())
        if self._failure is not None:
            raise self._failure
        for inbox in (self._events, self._replay):
            if inbox is not None and inbox.cut_off:
                self.refused[f"KV events that {inbox.cut_off}"] += 1
                raise EventsRefused(f"its KV events {inbox.cut_off}")
        self._stop("the connection to its events was lost")

    def _check(self, now: float) -> None:
        for inbox in (self._events, self._replay):
            if inbox is not None:
                inbox.look()
        if self._asked_at is not None and now - self._asked_at > ANSWER_S:
            self._asked_at = None
            self._sequence.replay_ended()
        quiet_s = time.time() - (self.confirmed_at or 0.0)
        if self._replay is not None and quiet_s > CONFIRM_S:
            self._sequence.confirm()
        elif self._replay is None and self._events is not None and self._events.connected and self.batches:
            self.confirmed_at = time.time()  # heartbeats are answered, so no event is long delayed

    def _live(self, frames: list[bytes]) -> None:
        if len(frames) != 3 or len(frames[1]) != NUMBER_BYTES:
            self._refuse("KV event messages of another form", "a message of another form")
            return
        number = int.from_bytes(frames[1], "big")
        if not self._sequence.live(number, frames[2]):
            self._seen_before(frames[2])
        elif self._sequence.whole:
            self.confirmed_at = time.time()
            self._measure_delay(self.confirmed_at)

    def _measure_delay(self, now: float) -> None:
        if self.event_at is not None:
            self.behind_s = self._shortest.beyond(now - self.event_at, time.monotonic())

    def _seen_before(self, payload: bytes) -> None:
        """Handle a number seen before: either a replayed batch, or an engine that restarted and counts from 0; then
        reconnect."""
        try:
            newer = self.event_at is not None and decode(payload).at > self.event_at
        except Undecodable:
            newer = False
        if newer:
            self._gone()

    def _replayed_frame(self, frames: list[bytes]) -> None:
        if len(frames) < 3 or len(frames[-2]) != NUMBER_BYTES:
            self._refuse("KV event messages of another form", "a message of another form")
            return
        number = int.from_bytes(frames[-2], "big", signed=True)
        if number >= 0:
            self._asked_at = time.monotonic()  # the replay makes progress
            self._sequence.replayed_one(number, frames[-1])
            return
        self._asked_at = None
        self._sequence.replay_ended()
        # Batches sent after the replay's last one, but before the subscription is established, are lost.
        stands = self._events is None or self._events.connected
        if stands and self._sequence.whole and not self._sequence.asking:
            self.confirmed_at = time.time()
            self.behind_s = 0.0

    def _ask(self, number: int) -> bool:
        if self._replay is None:
            return False
        self._asked_at = time.monotonic()
        self._replay.send([b"", number.to_bytes(8, "big")])
        return True

    def _apply(self, payload: bytes) -> None:
        try:
            batch = decode(payload)
            self._tell(batch)
        except Undecodable as why:
            self._refuse("KV event batches that cannot be decoded", str(why))
            self._lose()
        except IndexFull as error:
            self._failure = error
            self._lost.set()
        except Exception:  # our own bug: do not trust a half-applied batch
            log.exception("%s: could not apply its events", self.instance)
            self._lose()
        else:
            self.event_at = batch.at
            self.batches += 1

    def _refuse(self, kind: str, why: str) -> None:
        self.refused[kind] += 1
        self._refused_here += 1
        if self._refused_here == 1:
            log.warning("%s: %s", self.instance, why)
        if self._refused_here > MOST_REFUSED:
            self._failure = EventsRefused(f"its KV events are refused: {why}")
            self._lost.set()

    def _tell(self, batch: KvEventBatch) -> None:
        groups, later = self._groups, list[BlocksStored]()
        if self._shares:
            self._index.read_store(self.instance)
        for event in batch.events:
            if isinstance(event, BlocksCleared):
                # vLLM's reset keeps blocks below the device, its sleep clears them, and no event distinguishes the two.
                # A shared store keeps its blocks.
                self._empty(still_reads=True)
                self.complete = True
                later.clear()
            elif isinstance(event, BlocksRemoved):
                if later and any(stored.group == event.group for stored in later):
                    self._store_further(later)
                if (place := groups.place(event)) is not None:
                    self._index.drop(self.instance, groups.names(event), place)
            elif groups.is_first(event):
                self._store(groups.in_blocks(event), event.tier)
                self._store_further(later)
            else:
                later.append(event)
        self._store_further(later)

    def _store_further(self, events: list[BlocksStored]) -> None:
        """Store blocks of a further group. They follow the events of the first group, which define the names."""
        for event in events:
            if (place := self._groups.further(event)) is not None:
                self._index.need(self.instance, self._groups.needs)
                self._store(event, place)
        events.clear()

    def _store(self, event: BlocksStored, place: int) -> None:
        index, named = self._index, place >= FURTHER and self._groups.needs.rooted
        shared = not event.reports_removal and (event.remote or self._shares)
        tokens = b"" if named and not self._groups.in_parts(place) else event.tokens
        store = index.share if shared else index.store
        store(self.instance, event.names, event.parent, tokens, event.block_size, place, event.extras)
        if not event.reports_removal:
            self._untold = True
            index.untold(STORE if shared else self.instance, event.names, event.tier, time.monotonic())
        if index.held_by(self.instance) > MOST_BLOCKS:
            self.refused["KV events of more blocks than an engine may have"] += 1
            raise IndexFull(f"its KV events name more than {MOST_BLOCKS:,} blocks")

    def _lose(self) -> None:
        """Clear the instance, because missing events cannot be replayed."""
        self._empty()
        self.complete = False

    def _empty(self, *, still_reads: bool = False) -> None:
        if any(self._index.blocks(self.instance)):
            self.purges += 1
        self._index.clear(self.instance, still_reads=still_reads)

    def _gone(self) -> None:
        self._lost.set()

    def _stop(self, why: str) -> None:
        self._why = why
        self.complete = False
        self.confirmed_at = None
        self._asked_at = None
        for inbox in (self._events, self._replay):
            if inbox is not None:
                inbox.close()
        self._events = self._replay = None
        self._empty()
