"""One instance's KV events on their way into the index: found, subscribed to, kept complete, believed or not.

An engine is asked every few seconds whether something came after its last batch, so that one that is idle is told from
one whose events are lost. Whatever cannot be made good (a gap that it cannot replay, a connection that broke) empties
the instance's part of the index.
"""

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable

import zmq

from router.contract.redis.staleness import KV_EVENTS_STALE_S
from router.kv_events.batch import BlocksCleared, BlocksStored, KvEventBatch, Undecodable, decode
from router.kv_events.inbox import ZmqSubscription
from router.kv_events.sequence import Sequence
from router.kv_events.sources import KvEventSource, NoEvents
from router.prefix.exact.index import ExactIndex, IndexFull

log = logging.getLogger("weir.router")

CONFIRM_S = 2.0  # a quiet engine is asked this often
BEHIND_S = 1.0  # events that are taken later than this after they were sent speak of a cache that is no more
ANSWER_S = 5.0  # for the answer to a replay request
RETRY_S = 1.0  # doubles with each failure
LONGEST_RETRY_S = 30.0

Discover = Callable[[], Awaitable[KvEventSource]]


class Feed:
    """`run` until it is cancelled. `trouble` says why the index is not to be believed, "" when it is."""

    def __init__(
        self, instance: str, discover: Discover, index: ExactIndex, context: "zmq.Context[zmq.Socket[bytes]]"
    ) -> None:
        self.instance = instance
        self._discover = discover
        self._index = index
        self._context = context
        self._group: int | None = None  # of the layers that attend to everything; the first that is told of
        self._group_known = False
        self._sequence = self._new_sequence()
        self._lost = asyncio.Event()
        self._events: ZmqSubscription | None = None
        self._replay: ZmqSubscription | None = None
        self._asked_at: float | None = None  # s, monotonic
        self._why = "its events are not subscribed to yet"
        self.complete = False  # everything since the engine started, or since it was emptied, has been seen
        self.block_size = 0  # tokens; 0: no block has been told of
        self.event_at: float | None = None  # s, Unix, the engine's clock: of the latest batch
        self.confirmed_at: float | None = None  # s, Unix: known to be up to date then
        self.behind_s = 0.0  # how much later than the quickest one the latest batch was taken
        self._quickest_s = math.inf  # from the engine's clock to ours, which need not agree
        self.purges = 0
        self.batches = 0
        self._gaps = self._replayed = 0  # of earlier connections

    @property
    def trouble(self) -> str:
        if self._why:
            return self._why
        if self.confirmed_at is None:
            return "its events have not been caught up with yet"
        age = time.time() - self.confirmed_at
        if age > KV_EVENTS_STALE_S:
            return f"it has not confirmed its events for {age:.0f} s"
        return f"its events are {self.behind_s:.1f} s behind" if self.behind_s > BEHIND_S else ""

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
                self._stop(f"its events cannot be subscribed to: {error.strerror}")
            except IndexFull as error:
                self._stop(str(error))
                pause_s = LONGEST_RETRY_S
            except asyncio.CancelledError:
                self._stop("it is not followed any more")
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_RETRY_S)

    # Inside

    def _new_sequence(self) -> Sequence:
        return Sequence(self._apply, self._lose, self._ask)

    def _connect(self, source: KvEventSource) -> None:
        self._gaps, self._replayed = self.gaps, self.replayed
        self._sequence = self._new_sequence()
        self._group_known = False
        self._quickest_s, self.behind_s = math.inf, 0.0
        self._failure: Exception | None = None
        self._lost.clear()
        self._empty()
        self.complete = True
        self._events = ZmqSubscription(self._context, zmq.SUB, source.endpoint, self._live, self._gone)
        self._events.subscribe(source.topic)
        if source.replay is not None:
            self._replay = ZmqSubscription(self._context, zmq.DEALER, source.replay, self._replayed_frame, self._gone)
        self._why = ""
        self._sequence.start()

    async def _follow(self) -> None:
        """Until the connection is lost."""
        while not self._lost.is_set():
            try:
                async with asyncio.timeout(CONFIRM_S / 2):
                    await self._lost.wait()
            except TimeoutError:
                self._check(time.monotonic())
        if self._failure is not None:
            raise self._failure
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
            self.confirmed_at = time.time()  # heartbeats are answered: nothing is on its way for long

    def _live(self, frames: list[bytes]) -> None:
        if len(frames) != 3:
            return
        number = int.from_bytes(frames[1], "big")
        if not self._sequence.live(number, frames[2]):
            self._seen_before(frames[2])
        elif self._sequence.whole:
            self.confirmed_at = time.time()
            self._measure_delay(self.confirmed_at)

    def _measure_delay(self, now: float) -> None:
        if self.event_at is not None:
            self._quickest_s = min(self._quickest_s, now - self.event_at)
            self.behind_s = now - self.event_at - self._quickest_s

    def _seen_before(self, payload: bytes) -> None:
        """A replayed batch comes again; or the engine has started again and counts from the beginning."""
        try:
            newer = self.event_at is not None and decode(payload).at > self.event_at
        except Undecodable:
            newer = False
        if newer:
            self._gone()

    def _replayed_frame(self, frames: list[bytes]) -> None:
        if len(frames) < 3:
            return
        number = int.from_bytes(frames[-2], "big", signed=True)
        if number >= 0:
            self._asked_at = time.monotonic()  # it is answering
            self._sequence.replayed_one(number, frames[-1])
            return
        self._asked_at = None
        self._sequence.replay_ended()
        if self._sequence.whole and not self._sequence.asking:
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
            log.warning("%s: %s", self.instance, why)
            self._lose()
        except IndexFull as error:
            self._failure = error
            self._lost.set()
        except Exception:  # of ours: what has been taken by half is not to be believed
            log.exception("%s: its events could not be taken", self.instance)
            self._lose()
        else:
            self.event_at = batch.at
            self.batches += 1

    def _tell(self, batch: KvEventBatch) -> None:
        index, instance = self._index, self.instance
        for event in batch.events:
            if isinstance(event, BlocksCleared):
                self._empty()
                self.complete = True
            elif isinstance(event, BlocksStored):
                if self._counts(event):
                    self.block_size = event.block_size if event.tokens else self.block_size
                    index.store(
                        instance, event.names, event.parent, event.tokens, event.block_size, event.tier, event.extras
                    )
            elif event.group == self._group:
                index.drop(instance, event.names, event.tier)

    def _counts(self, event: BlocksStored) -> bool:
        """Whether it is of the group of layers that is followed, the first that attends to everything."""
        if not event.whole:
            return False
        if not self._group_known:
            self._group, self._group_known = event.group, True
        return event.group == self._group

    def _lose(self) -> None:
        """Something is missing and will not come."""
        self._empty()
        self.complete = False

    def _empty(self) -> None:
        if any(self._index.blocks(self.instance)):
            self.purges += 1
        self._index.clear(self.instance)

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
