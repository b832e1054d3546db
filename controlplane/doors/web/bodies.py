"""Limits bodies before Django reads them, because Django would write a large one to disk before it knows the sender."""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from asgiref.typing import (
    ASGIReceiveCallable,
    ASGIReceiveEvent,
    ASGISendCallable,
    ASGISendEvent,
    HTTPScope,
)
from channels.db import database_sync_to_async
from django.conf import settings
from django.contrib.auth import get_user
from django.db import DatabaseError
from django.http import HttpRequest
from django.http.cookie import parse_cookie

from controlplane.doors.api.auth import principal_by_token
from controlplane.doors.api.problems import ApiProblem, raw
from controlplane.evidence.traces.formats import registry
from controlplane.people.accounts.sessions import SessionStore
from controlplane.people.permissions import role_of
from controlplane.traffic.batches import store as batches
from controlplane.traffic.batches.api import key_of

Application = Callable[[Any, Any, Any], Awaitable[None]]
log = structlog.get_logger(__name__)
ANONYMOUS = 16_384  # bytes; a sign-in takes a few hundred
OF_CALLER = 512 * 1024 * 1024  # bytes of the bodies of one caller in requests in progress; the first body always fits
FORM = 65_536  # bytes that an upload's form adds to its file
UPLOADS = {
    "/api/v1/traces": registry.MAX_BYTES + FORM,
    "/experiments/traces/": registry.MAX_BYTES + FORM,
    "/v1/files": batches.LARGEST + FORM,
}


class BodyRefused(Exception):
    """The body was refused; raised where Django awaits it."""

    def __init__(self, problem: ApiProblem) -> None:
        self.problem = problem
        super().__init__(problem.detail)


def limit_of(path: str) -> int:
    """Return the size limit of a signed-in caller's body, in bytes."""
    return UPLOADS.get(path, settings.DATA_UPLOAD_MAX_MEMORY_SIZE or ANONYMOUS)


class BoundedBodies:
    """Reads no more than 16 kB from a caller who is not signed in, and from others what the endpoint needs."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self._under_way: Counter[str] = Counter()  # bytes by caller, as announced, otherwise as allowed

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        headers = dict(scope["headers"])
        size = headers.get(b"content-length")
        if size is None and b"transfer-encoding" not in headers:
            return await self.app(scope, receive, send)
        started = False

        async def noting_send(message: ASGISendEvent) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            caller, limit = await self._allowed(scope["path"], headers, None if size is None else int(size))
            with self._room(caller, limit):
                await self.app(scope, _counted(receive, limit), noting_send)
        except BodyRefused as refused:
            if not started:
                await _answer(scope, send, refused.problem)

    async def _allowed(self, path: str, headers: dict[bytes, bytes], size: int | None) -> tuple[str, int]:
        """Return the caller (empty if the endpoint needs none) and how many bytes may arrive, never more than
        announced. Raise BodyRefused if too many are announced."""
        if size is not None and size <= ANONYMOUS:
            return "", ANONYMOUS
        known = key_named if path.startswith("/v1/") else user_named
        caller = await database_sync_to_async(known)(headers)
        if not caller:
            if size is None:
                return "", ANONYMOUS  # the 413 names this limit
            raise BodyRefused(
                ApiProblem(401, detail=f"a body of more than {ANONYMOUS:,} bytes needs a signed-in caller")
            )
        limit = limit_of(path)
        if size is not None and size > limit:
            raise too_large(limit)
        return caller, limit if size is None else size

    @contextmanager
    def _room(self, caller: str, size: int) -> Iterator[None]:
        """Count the body as the caller's until its request has ended. Raise BodyRefused beyond OF_CALLER."""
        under_way = self._under_way[caller]
        if caller and under_way and under_way + size > OF_CALLER:
            detail = f"your requests under way have {under_way:,} bytes, at most {OF_CALLER:,} are allowed: retry later"
            raise BodyRefused(ApiProblem(429, detail=detail, headers={"Retry-After": "5"}))
        self._under_way[caller] += size
        try:
            yield
        finally:
            self._under_way[caller] -= size
            if not self._under_way[caller]:
                del self._under_way[caller]


def too_large(limit: int) -> BodyRefused:
    return BodyRefused(ApiProblem(413, detail=f"the body may have at most {limit:,} bytes"))


def _counted(receive: ASGIReceiveCallable, limit: int) -> ASGIReceiveCallable:
    received = 0

    async def counted() -> ASGIReceiveEvent:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b"")) if message["type"] == "http.request" else 0
        if received > limit:
            raise too_large(limit)
        return message

    return counted


def user_named(headers: dict[bytes, bytes]) -> str:
    """Return the user of a valid token or session; empty without one. The request's view looks the user up again.
    Raise without a database."""
    authorization = headers.get(b"authorization")
    with _database():
        if authorization is not None:
            principal = principal_by_token(authorization.decode("latin-1"))
            return f"user {principal.user_id}" if principal is not None else ""
        user = _user_of(headers)
        return f"user {user.pk}" if role_of(user) else ""


def key_named(headers: dict[bytes, bytes]) -> str:
    """Return the API key, which the API of batches accepts; empty without one. Raises like `user_named`."""
    with _database():
        key = key_of(headers)
        return f"key {key.pk}" if key is not None else ""


@contextmanager
def _database() -> Iterator[None]:
    try:
        yield
    except DatabaseError as error:
        log.warning("web.callers_unknown", error=str(error))
        raise BodyRefused(ApiProblem(503, detail="the database does not answer")) from None


def _user_of(headers: dict[bytes, bytes]) -> Any:
    request = HttpRequest()
    cookies = parse_cookie(headers.get(b"cookie", b"").decode("latin-1"))
    request.session = SessionStore(cookies.get(settings.SESSION_COOKIE_NAME))
    return get_user(request)


async def _answer(scope: HTTPScope, send: ASGISendCallable, problem: ApiProblem) -> None:
    """Answer without reading the rest of the body; the connection closes."""
    status, headers, body = raw(scope["path"], problem)
    headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers, "trailers": False})
    await send({"type": "http.response.body", "body": body, "more_body": False})
