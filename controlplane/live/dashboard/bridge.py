"""Passes frames from Redis to every open socket of this web process: one subscription, one message per second. It runs
only while there are viewers. A viewer holds only the newest message, so a slow socket skips frames. A message is
compressed once for all viewers that request compression.
"""

import asyncio
import contextlib
import time
import zlib
from collections.abc import Iterator
from functools import cached_property

import orjson
import redis
import redis.asyncio
import structlog

from controlplane.live.dashboard.charted import ranges
from controlplane.live.dashboard.frame.types import unfolded
from controlplane.live.dashboard.step import current, encode, step
from fleet.redis import connect, connect_async
from router.contract.redis import redis_keys

log = structlog.get_logger(__name__)

FRAME_EVERY_S = 1.0  # time without a frame after which this process tries to build one
RECONNECT_S = 1.0
SILENT_S = 2.0  # a viewer assumes that the server is dead after three times as long without a message
WAITING = orjson.dumps({"type": "waiting"}).decode()
DEFLATE_LEVEL = 4  # takes 3 ms for a frame of 1,000 instances


class DeflatedText:
    """A text and its compressed form (zlib), which is created on first use."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.shown: dict[str, DeflatedText] = {}  # the same message for shares of a pool, or of all pools

    @cached_property
    def deflated(self) -> bytes:
        return zlib.compress(self.text.encode(), DEFLATE_LEVEL)

    @cached_property
    def unfolded(self) -> "DeflatedText":
        """Return the message for programs, and for pages served by an earlier release."""
        said = orjson.loads(self.text)
        if said.get("frame") is None:
            return self
        return DeflatedText(orjson.dumps({**said, "frame": unfolded(said["frame"])}).decode())


class Viewer:
    """A socket's mailbox: the newest unsent message."""

    def __init__(self) -> None:
        self._message = DeflatedText("")
        self._arrived = asyncio.Event()

    def put(self, message: DeflatedText) -> None:
        self._message = message
        self._arrived.set()

    async def take(self) -> DeflatedText:
        await self._arrived.wait()
        self._arrived.clear()
        return self._message


class Bridge:
    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()
        self._task: asyncio.Task[None] | None = None
        self._meanwhile = WAITING  # sent to viewers while Redis is awaited
        self._sent_at = 0.0  # monotonic

    @contextlib.contextmanager
    def viewer(self) -> Iterator[Viewer]:
        viewer = Viewer()
        self._viewers.add(viewer)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run(), name="frame bridge")
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)

    def tell(self, text: str) -> None:
        self._sent_at = time.monotonic()
        message = DeflatedText(text)
        for viewer in self._viewers:
            viewer.put(message)

    async def snapshot(self, seconds: int) -> str:
        """Return the first message of a socket: the newest frame, and the history as columns."""
        try:
            return await asyncio.to_thread(self._snapshot, seconds)
        except redis.RedisError as error:
            log.warning("live.redis_down", error=str(error))
            return trouble("redis")

    def _snapshot(self, seconds: int) -> str:
        now = time.time()
        found = current(connect(), now)
        frame = "null" if found is None else encode(found).decode()
        charted = ranges.newest(seconds).text
        return f'{{"type":"snapshot","sent_at":{now:.3f},"frame":{frame},"history":{charted}}}'

    async def _run(self) -> None:
        # The task ends within a second after the last viewer leaves. It is not cancelled: a viewer that joins at that
        # moment, such as a reloaded page, must find the task either running or ended, never being cancelled.
        alive = asyncio.get_running_loop().create_task(self._stay_alive(), name="bridge stays alive")
        try:
            while self._viewers:
                await self._pass_on_or_tell()
        finally:
            alive.cancel()
        self._task = None

    async def _pass_on_or_tell(self) -> None:
        try:
            await self._pass_on()
        except redis.RedisError as error:
            log.warning("live.redis_down", error=str(error))
            self._meanwhile = trouble("redis")
            self.tell(self._meanwhile)
            await asyncio.sleep(RECONNECT_S)

    async def _stay_alive(self) -> None:
        """Show viewers that this process is running while it waits for a silent Redis."""
        while True:
            await asyncio.sleep(SILENT_S)
            if time.monotonic() - self._sent_at >= SILENT_S:
                self.tell(self._meanwhile)

    async def _pass_on(self) -> None:
        client = connect_async()
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as subscription:
                await subscription.subscribe(redis_keys.FRAME)
                while self._viewers:
                    await self._next(subscription)
        finally:
            await client.aclose()

    async def _next(self, subscription: redis.asyncio.client.PubSub) -> None:
        message = await subscription.get_message(timeout=FRAME_EVERY_S)
        if message is not None:
            self.tell(f'{{"type":"frame","sent_at":{time.time():.3f},"frame":{message["data"].decode()}}}')
        else:
            # A frame built by this process arrives through the subscription like any other.
            await asyncio.to_thread(step, connect(), time.time(), "web")
        self._meanwhile = WAITING


def trouble(what: str) -> str:
    return orjson.dumps({"type": "trouble", "what": what, "at": time.time()}).decode()


bridge = Bridge()
