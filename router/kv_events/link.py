"""A router's connection to an index process. While there is no connection, `why` gives the reason and no look-up
waits."""

import asyncio
import logging
import time
from array import array
from collections.abc import Mapping, Sequence
from itertools import count
from typing import cast

from msgspec import Struct

from router.contract.metrics.metrics_page import Histogram
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
    ToRouter,
    Welcome,
    framed,
    read,
    to_router,
)
from router.prefix.exact.groups import PartsBySize

log = logging.getLogger("weir.router")

RETRY_S = 0.5
ANSWER_S = 0.05  # longest wait for a look-up
REST_S = 1.0  # pause in look-ups after a late answer
SILENT_S = 3.0  # time without a message after which the process counts as lost; it reports its costs twice a second
LOOK_UP_BOUNDS = (0.0001, 0.0002, 0.0003, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05)  # s

Prompts = Sequence[tuple[int, Sequence[int]]]  # (tokens per block, hashes) of the same prompt


class ProcessLink:
    def __init__(self, path: str) -> None:
        self.path = path
        self.seed: int | None = None  # unknown until the first connection
        self.why = f"the index process at {path} has not been connected to yet"  # "" while connected
        self.resident_bytes, self.cpu_s = 0, 0.0  # memory and CPU time, as reported by the process
        self.answered = self.late = self.lost = 0  # look-ups
        self.seconds = Histogram(LOOK_UP_BOUNDS)  # duration of the answered look-ups
        self.names: dict[str, list[str]] = {}  # keys by slot, for each pool
        self.status: dict[str, IndexReport] = {}  # by pool
        self.feeds: dict[str, FeedStatus] = {}  # by key
        self._follows: dict[str, list[FollowedEngine]] = {}
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Found | None]] = {}
        self._asking: dict[int, SharedSent] = {}  # requests in flight whose tokens by each rule were requested
        self._rests_until = 0.0  # s, monotonic
        self._heard_at = 0.0  # s, monotonic
        self._connection: _Connection | None = None

    @property
    def trouble(self) -> str:
        """Return why the process's answers cannot be used; empty if they can be used."""
        if self.why:
            return self.why
        silent_s = time.monotonic() - self._heard_at
        return f"the index process at {self.path} has been silent for {silent_s:.0f} s" if silent_s > SILENT_S else ""

    async def run(self) -> None:
        """Keep the connection open until the task is cancelled."""
        loop, said = asyncio.get_running_loop(), ""
        try:
            while True:
                lost: asyncio.Future[str] = loop.create_future()
                try:
                    await loop.create_unix_connection(lambda lost=lost: _Connection(self, lost), self.path)  # type: ignore[misc]
                    why = await lost
                except OSError as error:
                    why = f"the index process at {self.path} does not answer: {error.strerror or error}"
                self.why = why
                if why != said:
                    log.warning("%s: its engines' KV events are not known meanwhile", why)
                    said = why
                await asyncio.sleep(RETRY_S)
        finally:
            if self._connection is not None:
                self._connection.close()

    def follow(self, pool: str, engines: list[FollowedEngine]) -> None:
        """Set the engines of the pool that the process should follow."""
        if self._follows.get(pool, []) != engines:
            self._follows[pool] = engines
            self._tell(Follow(pool, engines))
            if not engines:
                del self._follows[pool]

    async def look_up(self, pool: str, prompts: Prompts, parts: PartsBySize, rules: Mapping[int, int]) -> Found | None:
        """Look a prompt up; None if no answer arrives in time. `rules` has the slots of engines that speculate, by
        rule."""
        connection, now = self._connection, time.monotonic()
        if connection is None or self.trouble or now < self._rests_until:
            self.lost += 1
            return None
        number = next(self._numbers)
        waiting: asyncio.Future[Found | None] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        asked = [
            (size, (hashes if isinstance(hashes, array) else array("Q", hashes)).tobytes()) for size, hashes in prompts
        ]
        within = [
            (size, pieces, array("Q", hashes).tobytes())
            for size, by_pieces in parts.items()
            for pieces, hashes in by_pieces.items()
        ]
        masks = [(rule, bits.to_bytes((bits.bit_length() + 7) // 8, "little")) for rule, bits in rules.items()]
        connection.write(framed(LookUp(number, pool, asked, within, masks)))
        timer = asyncio.get_running_loop().call_later(ANSWER_S, self._give_up, number)
        try:
            found = await waiting
        finally:
            timer.cancel()
            self._waiting.pop(number, None)
        if found is not None:
            self.answered += 1
            self.seconds.observe(time.monotonic() - now)
        return found

    def sent(
        self, look_up: int, pool: str, key: str, block_size: int, foreseen: int, *, speculating: bool
    ) -> "SharedSent":
        """Report the engine to which a looked-up prompt is sent."""
        number = next(self._numbers)
        self._tell(Sent(number, look_up, pool, key, block_size, foreseen, speculating))
        sent = SharedSent(self, number)
        if speculating:
            self._asking[number] = sent
        return sent

    def refuted(self, look_up: int, pool: str, key: str, block_size: int, held: int) -> None:
        self._tell(Refuted(look_up, pool, key, block_size, held))

    def over(self, number: int) -> None:
        self._asking.pop(number, None)
        self._tell(Over(number))

    def _tell(self, message: Struct) -> None:
        if self._connection is not None:
            self._connection.write(framed(message))

    def _give_up(self, number: int) -> None:
        waiting = self._waiting.get(number)
        if waiting is not None and not waiting.done():
            self.late += 1
            self._rests_until = time.monotonic() + REST_S
            waiting.set_result(None)

    # Connection

    def connected(self, connection: "_Connection") -> None:
        self._connection, self._heard_at = connection, time.monotonic()
        self._tell(Hello(VERSION))

    def lost_connection(self) -> None:
        self._connection = None
        self.why = f"the connection to the index process at {self.path} was lost"
        self.names.clear()
        self.status.clear()
        self.feeds.clear()
        self._asking.clear()
        for waiting in self._waiting.values():
            if not waiting.done():
                self.lost += 1
                waiting.set_result(None)

    def take(self, message: ToRouter) -> None:
        self._heard_at = time.monotonic()
        match message:
            case Found():
                self._found(message)
            case Speculating():
                if (sent := self._asking.pop(message.number, None)) is not None:
                    sent.by_rule = message.by_rule
            case Slots():
                self.names[message.pool] = message.keys
            case IndexReport():
                self._report(message)
            case Costs():
                self.resident_bytes, self.cpu_s = message.resident_bytes, message.cpu_s
            case Welcome():
                self._welcome(message)

    def _found(self, found: Found) -> None:
        waiting = self._waiting.get(found.number)
        if waiting is not None and not waiting.done():
            waiting.set_result(found)

    def _report(self, report: IndexReport) -> None:
        before = self.status.get(report.pool)
        for gone in before.feeds if before is not None else ():
            self.feeds.pop(gone.key, None)
        self.status[report.pool] = report
        self.feeds |= {feed.key: feed for feed in report.feeds}

    def _welcome(self, message: Welcome) -> None:
        if message.version != VERSION:
            raise BadFrame(f"version {message.version} of the messages, this router knows {VERSION}")
        self.seed, self.why = message.seed, ""
        log.info("the index process at %s follows KV events", self.path)
        for pool, engines in self._follows.items():
            self._tell(Follow(pool, engines))


class SharedSent:
    """A request in flight, as the index process knows it."""

    __slots__ = ("_link", "_number", "by_rule")

    def __init__(self, link: ProcessLink, number: int) -> None:
        self._link = link
        self._number = number
        self.by_rule: Sequence[int] = ()

    def over(self, now: float) -> None:
        self._link.over(self._number)


class _Connection(asyncio.Protocol):
    def __init__(self, link: ProcessLink, lost: "asyncio.Future[str]") -> None:
        self._link = link
        self._lost = lost
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._why = f"the index process at {link.path} closed the connection"

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._link.connected(self)

    def data_received(self, data: bytes) -> None:
        try:
            for frame in self._frames.feed(data):
                self._link.take(read(to_router, frame))
        except BadFrame as why:
            self._why = f"the index process at {self._link.path} sent {why}"
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._link.lost_connection()
        if not self._lost.done():
            self._lost.set_result(self._why)

    def write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
