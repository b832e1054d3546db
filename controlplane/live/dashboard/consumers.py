"""The WebSocket /ws/live?seconds=900: first a snapshot, then each frame, or the reason why there is none (trouble,
waiting). With &deflate=1 it sends binary messages (zlib), with &folded=1 frames in their published form
(frame/types.py). It needs a session, or a bearer token with the scope live:read (controlplane/doors/api/sockets.py
refuses others), and is closed with 4401 when neither is valid any more.
"""

import asyncio
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

from channels.auth import get_user
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.conf import settings

from controlplane.live.dashboard import history
from controlplane.live.dashboard.bridge import DeflatedText, bridge
from controlplane.people.permissions import has_scope

SESSIONS = import_module(settings.SESSION_ENGINE)
SIGN_IN_NEEDED = 4401
SIGNED_IN_CHECK_S = 4.0
LONGEST = 9  # digits of `seconds`


async def may_look(who: Any) -> bool:
    return bool(await database_sync_to_async(has_scope)(who, "live:read"))


class LiveConsumer(AsyncWebsocketConsumer):
    async def connect(self) -> None:
        await self.accept()
        self.tasks = [asyncio.create_task(self._feed()), asyncio.create_task(self._watch_session())]

    async def disconnect(self, code: int) -> None:
        for task in getattr(self, "tasks", ()):
            task.cancel()

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Ignore messages of viewers."""

    async def _feed(self) -> None:
        with bridge.viewer() as viewer:
            seconds = asked_seconds(self.scope["query_string"]) or history.RANGES_S[0]
            asked = parse_qs(self.scope["query_string"].decode("latin-1"))
            folded, deflated = (asked.get(name) == ["1"] for name in ("folded", "deflate"))
            message = DeflatedText(await bridge.snapshot(seconds))
            while True:
                shown = message if folded else message.unfolded
                await (self.send(bytes_data=shown.deflated) if deflated else self.send(shown.text))
                message = await viewer.take()

    async def _watch_session(self) -> None:
        """Close when the session or token has been revoked or has expired."""
        allowed = True
        while allowed:
            await asyncio.sleep(SIGNED_IN_CHECK_S)
            allowed = await may_look(await self._who())
        await self.close(code=SIGN_IN_NEEDED)

    async def _who(self) -> Any:
        if "caller" in self.scope:
            return await self.scope["caller"]()
        # A new store is needed, because the one in the scope caches the data from the handshake.
        self.scope["session"] = SESSIONS.SessionStore(self.scope["session"].session_key)
        return await get_user(self.scope)


def asked_seconds(query: bytes) -> int | None:
    """Return the shortest offered range that covers the requested one, or the longest if none does; None unless it is a
    number."""
    asked = parse_qs(query.decode("latin-1")).get("seconds", ["300"])[0]
    wanted = int(asked) if asked.isascii() and asked.isdigit() and len(asked) <= LONGEST else 0
    return (
        next((seconds for seconds in history.RANGES_S if wanted <= seconds), history.RANGES_S[-1]) if wanted else None
    )
