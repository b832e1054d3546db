"""Authenticates WebSocket handshakes: by bearer token, or by a browser session from this origin."""

from collections.abc import Awaitable, Callable
from typing import Any

from channels.db import database_sync_to_async
from channels.security.websocket import OriginValidator

from controlplane.api.auth import principal_by_token

Application = Callable[[dict[str, Any], Any, Any], Awaitable[None]]
principal_of_header = database_sync_to_async(principal_by_token)


class OwnOrigins(OriginValidator):
    """Browsers always send the page's origin, so a handshake without one comes from a program, not a foreign page."""

    def valid_origin(self, parsed_origin: Any) -> bool:
        return parsed_origin is None or super().valid_origin(parsed_origin)


class Handshake:
    """`socket` serves handshakes with an Authorization header directly, all others behind `sessions`."""

    def __init__(self, socket: Application, sessions: Callable[[Application], Application]) -> None:
        self.socket = socket
        self.by_session = sessions(socket)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        header = dict(scope["headers"]).get(b"authorization")
        if header is None:
            return await self.by_session(scope, receive, send)

        async def caller() -> Any:
            return await principal_of_header(header.decode("latin-1"))

        await self.socket({**scope, "caller": caller, "user": await caller()}, receive, send)
