"""Authenticates WebSocket handshakes: by bearer token, or by a browser session from the server's own origin."""

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

from asgiref.typing import ASGIReceiveCallable, ASGISendCallable, WebSocketScope
from channels.db import database_sync_to_async
from django.conf import settings
from django.http.request import validate_host

from controlplane.doors.api.auth import principal_by_token
from controlplane.doors.api.handlers import unauthenticated
from controlplane.doors.api.problems import ApiProblem, raw
from controlplane.live.dashboard.consumers import asked_seconds, may_look
from controlplane.live.dashboard.history import RANGES_S
from controlplane.pages.shares.places import place_for
from router.contract.net.addresses import network_of

Application = Callable[[Any, Any, Any], Awaitable[None]]
PORTS = {"http": 80, "https": 443}
LOOPBACK = ("127.0.0.1", "::1", "localhost")
principal_of_header = database_sync_to_async(principal_by_token)


async def refuse(scope: WebSocketScope, send: ASGISendCallable, problem: ApiProblem) -> None:
    """Refuse a handshake without opening a WebSocket; otherwise the socket would have to be closed by a client that may
    never answer."""
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 4000 + problem.status % 1000, "reason": problem.detail})
        return
    status, headers, body = raw(scope["path"], problem)
    await send({"type": "websocket.http.response.start", "status": status, "headers": headers})
    await send({"type": "websocket.http.response.body", "body": body, "more_body": False})


class OwnOrigins:
    """Refuses handshakes from pages of other origins, including another port of the same host, which shares its
    cookies.
    Browsers always send the page's origin, so a handshake without one comes from a program, not from a foreign page.
    """

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: WebSocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        headers = dict(scope["headers"])
        origin, host = (headers.get(name, b"").decode("latin-1").lower() for name in (b"origin", b"host"))
        if b"origin" in headers and not is_own(origin, host):
            await refuse(scope, send, ApiProblem(403, detail="pages of this host and port only"))
            return
        await self.app(scope, receive, send)


def is_own(origin: str, host: str) -> bool:
    """Return whether an origin is the requested host and port, or an allowed host over HTTPS behind a proxy with
    another name. Such a proxy is not needed for this host's loopback name, whose ports other users share."""
    try:
        parts = urlsplit(origin)
        asked = urlsplit(f"{parts.scheme}://{host}")
        same = (parts.hostname, parts.port or PORTS[parts.scheme]) == (
            asked.hostname,
            asked.port or PORTS[parts.scheme],
        )
    except (KeyError, ValueError):  # `null`, or not an address
        return False
    if origin in settings.CSRF_TRUSTED_ORIGINS and parts.hostname not in (*LOOPBACK, asked.hostname):
        return True
    name = parts.hostname or ""
    return same and validate_host(f"[{name}]" if ":" in name else name, settings.ALLOWED_HOSTS)


class LiveHandshake:
    """Refuses handshakes of callers without permission to view live data, and handshakes for a range that is not
    offered."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        problem = await self._problem(scope)
        if problem is None:
            await self.app(scope, receive, send)
        else:
            await refuse(scope, send, problem)

    async def _problem(self, scope: Any) -> ApiProblem | None:
        user = scope["user"]
        if not await may_look(user):
            known = user is not None and not getattr(user, "is_anonymous", False)
            return ApiProblem(403, detail="live:read is needed") if known else unauthenticated()
        if asked_seconds(scope["query_string"]) is None:
            return ApiProblem(422, detail=f"seconds: must be a whole number from 1; at most {RANGES_S[-1]:,} are kept")
        return None


class ShareHandshake:
    """Refuses handshakes of shared walls beyond the limit per address, or beyond the limit for all."""

    def __init__(self, app: Application) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        client = scope.get("client")
        place = place_for(network_of(client[0] if client else ""))
        if place is None:
            await refuse(scope, send, ApiProblem(503, detail="too many shared walls are open; try again"))
            return
        try:
            await self.app({**scope, "place": place}, receive, send)
        finally:
            place.leave()


class Handshake:
    """Passes handshakes with an Authorization header to `socket` directly, and all others through `sessions`."""

    def __init__(self, socket: Application, sessions: Callable[[Application], Application]) -> None:
        self.socket = socket
        self.by_session = sessions(socket)

    async def __call__(self, scope: WebSocketScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        headers = dict(scope["headers"])
        header = headers.get(b"authorization")
        if header is None and settings.SESSION_COOKIE_NAME.encode() not in headers.get(b"cookie", b""):
            # At once, because one thread for each of a thousand handshakes takes seconds
            await refuse(scope, send, unauthenticated())
            return
        if header is None:
            await self.by_session(scope, receive, send)
            return

        async def caller() -> Any:
            return await principal_of_header(header.decode("latin-1"))

        await self.socket({**scope, "caller": caller, "user": await caller()}, receive, send)
