"""Forwards calls about files and batches to the web process, which stores them, so that clients need one base URL."""

import asyncio
from urllib.parse import urlsplit

from router.http import body, headers
from router.http.body import ClientGone
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.serving.passing import pass_on, request_bytes
from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError
from router.upstream.stalls import Stalls

CONNECT_S, FIRST_BYTE_S, SILENT_S = 2.0, 60.0, 60.0


def checked(url: str) -> str:
    """Return the URL without a trailing slash. Raise ValueError with a one-line message."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"--web {url[:100]}: allowed is http[s]://HOST[:PORT]")
    return url.rstrip("/")


class WebRelay:
    def __init__(self, url: str) -> None:
        self._upstream = ConnectionPool(checked(url))

    async def handle(self, incoming: IncomingRequest, client: ClientConnection, stalls: Stalls) -> None:
        """Forward the call. Raise ErrorResponse before the answer has begun."""
        by_name = dict(incoming.headers)
        name = headers.request_id(by_name)
        try:
            connection = await self._open(incoming, name, await body.read(by_name, client))
        except ClientGone:
            return
        except UpstreamError as error:
            message = f"the web process, which keeps files and batches, does not answer: {error}"
            raise ErrorResponse(503, "batches_unavailable", message, retry_after_s=5) from None
        await pass_on(connection, client, name, (stalls, SILENT_S))

    async def _open(self, incoming: IncomingRequest, name: str, sent: bytes) -> Connection:
        upstream = self._upstream
        upstream.close_idle(asyncio.get_running_loop().time())
        lines = headers.forwarded(incoming.headers, dict(incoming.headers)) + headers.id_line(name)
        request = request_bytes(incoming, upstream, lines, sent)
        return await upstream.open(request, connect_timeout_s=CONNECT_S, first_byte_timeout_s=FIRST_BYTE_S)
