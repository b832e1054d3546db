"""Forwards calls about files and batches to the web process, which stores them, so that clients need one base URL."""

import asyncio
from urllib.parse import urlsplit

from router.http import body, errors, headers
from router.http.body import ClientGone
from router.http.client import ClientConnection, IncomingRequest
from router.http.errors import ErrorResponse
from router.upstream.connection import Connection
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError

PATHS = ("/v1/files", "/v1/batches")
METHODS = ("GET", "POST", "DELETE")
CONNECT_S, FIRST_BYTE_S = 2.0, 60.0


def checked(url: str) -> str:
    """The URL without a trailing slash; ValueError with a message of one line."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError(f"--web {url[:100]}: allowed is http[s]://HOST[:PORT]")
    return url.rstrip("/")


class WebRelay:
    def __init__(self, url: str) -> None:
        self._upstream = ConnectionPool(checked(url))

    @staticmethod
    def serves(path: str) -> bool:
        return path.startswith(PATHS) and (path in PATHS or path.startswith(tuple(f"{known}/" for known in PATHS)))

    async def handle(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        by_name = dict(incoming.headers)
        name = headers.request_id(by_name)
        try:
            if incoming.method not in METHODS:
                allow = ", ".join(METHODS)
                message = f"{incoming.path[:200]} takes {allow}, not {incoming.method}"
                raise ErrorResponse(405, "method_not_allowed", message, allow=allow)
            connection = await self._open(incoming, name, await body.read(by_name, client))
        except ClientGone:
            return None
        except UpstreamError as error:
            message = f"the web process, which keeps files and batches, does not answer: {error}"
            return _refuse(incoming, ErrorResponse(503, "batches_unavailable", message, retry_after_s=5), name, client)
        except ErrorResponse as refusal:
            return _refuse(incoming, refusal, name, client)
        try:
            lines = headers.returned(connection.headers, without_length=False)
            client.start(connection.status, b"%bx-request-id: %b\r\n" % (lines, name.encode()))
            client.on_room = connection.resume
            client.end(await connection.pour(client.write))
        except UpstreamError:
            return None  # the answer is incomplete: the connection closes
        finally:
            client.on_room = None
            connection.release()

    async def _open(self, incoming: IncomingRequest, name: str, sent: bytes) -> Connection:
        upstream = self._upstream
        upstream.close_idle(asyncio.get_running_loop().time())
        target = incoming.path.encode() + (b"?" + incoming.query if incoming.query else b"")
        lines = headers.forwarded(incoming.headers, dict(incoming.headers)) + headers.id_line(name)
        head = b"%b %b HTTP/1.1\r\nhost: %b\r\n%bcontent-length: %d\r\n\r\n" % (
            *(incoming.method.encode(), target, upstream.authority, lines, len(sent)),
        )
        return await upstream.open(head + sent, connect_timeout_s=CONNECT_S, first_byte_timeout_s=FIRST_BYTE_S)


def _refuse(incoming: IncomingRequest, refusal: ErrorResponse, name: str, client: ClientConnection) -> None:
    lines, text = errors.answer(incoming.path, refusal, name)
    client.start(refusal.status, b"%bx-request-id: %b\r\n" % (lines, name.encode()))
    client.end(text)
