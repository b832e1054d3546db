"""The WebSocket of a shared wall, /ws/share: the first message contains the share's token, {"token": …}; after that, it
works like /ws/live. It is closed with 4401 if the token is unknown, revoked or expired, and with 1013 if it is late or
there are too many viewers. controlplane/doors/api/sockets.py refuses handshakes beyond the limits (places.py)."""

import asyncio
import time

import orjson
import redis
import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer

from controlplane.live.dashboard import history
from controlplane.live.dashboard.bridge import DeflatedText, bridge
from controlplane.live.dashboard.frame.types import Frame, unfolded
from controlplane.live.dashboard.step import current, rows
from controlplane.pages.shares import view
from controlplane.pages.shares.services import share_of
from fleet.redis import connect

log = structlog.get_logger(__name__)

NOT_SHARED, TRY_AGAIN = 4401, 1013
FIRST_MESSAGE_S = 5.0
CHECK_S = 4.0
LONGEST = 512  # characters of the first message
SECONDS = 300
found = database_sync_to_async(share_of)


class ShareConsumer(AsyncWebsocketConsumer):
    async def connect(self) -> None:
        self.token: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        await self.accept()
        self.task = asyncio.create_task(self._serve())

    async def disconnect(self, code: int) -> None:
        if hasattr(self, "task"):
            self.task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Read the first message only; it contains the token."""
        if not self.token.done():
            self.token.set_result(_token(text_data or ""))

    async def _serve(self) -> None:
        try:
            async with asyncio.timeout(FIRST_MESSAGE_S):
                token = await self.token
        except TimeoutError:
            # A busy viewer or server: the wall connects again, as its share may be valid.
            await self.close(code=TRY_AGAIN)
            return
        share = await found(token)
        if share is not None and not self.scope["place"].becomes_viewer():
            await self.close(code=TRY_AGAIN)
            return
        if share is not None:
            feed = asyncio.create_task(self._feed(share.pool))
            try:
                await self._while_usable(token)
            finally:
                feed.cancel()
        await self.close(code=NOT_SHARED)

    async def _while_usable(self, token: str) -> None:
        usable = True
        while usable:
            await asyncio.sleep(CHECK_S)
            usable = await found(token) is not None

    async def _feed(self, pool: str) -> None:
        with bridge.viewer() as viewer:
            message = DeflatedText(await asyncio.to_thread(_snapshot, pool))
            while True:
                await self.send(message.text)
                message = _shown(await viewer.take(), pool)


def _token(text: str) -> str:
    try:
        said = orjson.loads(text[:LONGEST])
    except orjson.JSONDecodeError:
        return ""
    token = said.get("token") if isinstance(said, dict) else None
    return token if isinstance(token, str) else ""


def _snapshot(pool: str) -> str:
    return orjson.dumps({"type": "snapshot", **snapshot(pool, SECONDS)}).decode()


def snapshot(pool: str, seconds: int) -> dict[str, object]:
    """Return the newest frame and the history in the share's form; `trouble` if Redis is unreachable."""
    now = time.time()
    try:
        client = connect()
        shown = _shown_frame(client, pool, now)
        kept = view.history_of(rows(client, now, seconds), shown) if shown is not None else []
        return {"sent_at": now, "frame": shown, "history": history.charted(kept, now, seconds), "trouble": ""}
    except redis.RedisError as error:
        log.warning("live.redis_down", error=str(error))
        return {"sent_at": now, "frame": None, "history": history.charted((), now, seconds), "trouble": "redis"}


def frame_now(pool: str) -> Frame | None:
    """Return the newest frame in the share's form; None without a frame, or if Redis is unreachable."""
    try:
        return _shown_frame(connect(), pool, time.time())
    except redis.RedisError as error:
        log.warning("live.redis_down", error=str(error))
        return None


def _shown_frame(client: redis.Redis, pool: str, now: float) -> Frame | None:
    frame = current(client, now)
    return view.frame_of(frame, pool) if frame is not None else None


def _shown(message: DeflatedText, pool: str) -> DeflatedText:
    """Return the frame in this share's form, built once for all of its viewers."""
    if pool not in message.shown:
        said = orjson.loads(message.text)
        shown: dict[str, object] = said if said["type"] == "waiting" else {"type": "trouble", "what": "redis"}
        if said.get("frame") is not None:
            frame = view.frame_of(unfolded(said["frame"]), pool)
            shown = {"type": "frame", "sent_at": said["sent_at"], "frame": frame}
        message.shown[pool] = DeflatedText(orjson.dumps(shown).decode())
    return message.shown[pool]
