"""A connection of an HTTP/1.1 client, which carries one request at a time: an asyncio.Protocol that feeds httptools.
The router's requests to engines, probes and replays all use it. A subclass receives the body (`on_body`) and defines
the errors: `lost` when the connection ends too early, `invalid` when the answer is not HTTP. The size of an answer is
limited: its head and trailers together by MAX_HEAD and MAX_HEADERS. Trailers are dropped.
"""

import asyncio
from typing import Final, cast

import httptools

from router.contract.net.tls_refusal import HINT

Headers = list[tuple[bytes, bytes]]  # names in lower case
MAX_HEAD: Final = 64 * 1024  # bytes of status line, headers and trailers, and of anything else that is not body
MAX_HEADERS: Final = 256
APART: Final = 64 * 1024  # bytes; a longer body is written separately, as copying it costs more than a second write
_TOO_LARGE = f"its head is larger than {MAX_HEAD} bytes or {MAX_HEADERS} headers"


class HttpClientProtocol(asyncio.Protocol):
    """One exchange at a time: `send`, then `whole`, then `finish`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.busy = False
        self._may_refuse = False  # True over TLS until the first whole answer: the server may refuse the client
        self._reset()

    def _reset(self) -> None:
        self.status = 0
        self.headers: Headers = []
        self._head_bytes = 0  # bytes read until the end of the head
        self._trailer_bytes = 0
        self._complete = False
        self._keep_alive = False
        self._until_close = False  # the answer has no length and ends with the connection
        self._silent = True
        self._error: Exception | None = None

    def lost(self, exc: Exception | None) -> Exception:
        raise NotImplementedError

    @property
    def hint(self) -> str:
        """Describe likely causes when a connection ends without an answer."""
        return HINT if self._may_refuse and self._silent else ""

    def invalid(self, why: str) -> Exception:
        raise NotImplementedError

    def send(self, request: bytes, body: bytes = b"") -> None:
        self._reset()
        self.busy = True
        if self._transport is None:
            self._fail(self.lost(None))
        elif len(body) < APART:
            self._transport.write(request + body)
        else:
            self._transport.writelines((request, body))

    async def whole(self) -> None:
        """Wait until the answer is complete. Raise the errors of `lost` and `invalid`."""
        while not self._complete:
            if self._error is not None:
                raise self._error
            await self._wait()

    def finish(self) -> bool:
        """End the exchange. Return True if the connection can carry another request; otherwise it is closed."""
        self.busy = False
        if self._complete and self._keep_alive and self._error is None and self._transport is not None:
            return True
        self.abort()
        return False

    @property
    def stale(self) -> bool:
        """Return whether a kept connection ended before any byte of an answer: the server had closed it before the
        request arrived."""
        return self._silent and self._error is not None and self._transport is None

    @property
    def closed(self) -> bool:
        return self._transport is None or self._transport.is_closing()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _wait(self) -> asyncio.Future[None]:
        self._waiter = self._loop.create_future()
        return self._waiter

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _fail(self, error: Exception) -> None:
        if self._error is None and not self._complete:
            self._error = error
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Uvloop's transport is not a subclass of asyncio.Transport
        self._transport = cast(asyncio.Transport, transport)
        self._may_refuse = transport.get_extra_info("ssl_object") is not None

    def data_received(self, data: bytes) -> None:
        if not self.busy or self._complete:
            self._drop_unasked()
            return
        self._silent = False
        self._feed(data)
        if self._complete:
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if not self.busy:
            return
        if self._until_close and exc is None and self._error is None:
            self._complete = True
            self._wake()
        else:
            self._fail(self.lost(exc))

    def _drop_unasked(self) -> None:
        """Drop bytes that arrive between requests; they would be taken for the next answer."""
        self._keep_alive = False
        self.abort()

    def _feed(self, data: bytes) -> None:
        if not self.status:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._reject("it switched protocols")
        except httptools.HttpParserError as error:
            self._reject(str(error) or type(error).__name__)
        if not self.status and self._head_bytes > MAX_HEAD:
            self._reject(_TOO_LARGE)

    def _reject(self, why: str) -> None:
        self._keep_alive = False
        self._fail(self.invalid(why))
        self.abort()

    # httptools.HttpResponseParser

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.status:
            self._on_trailer(len(name) + len(value))
            return
        headers = self.headers
        headers.append((name.lower(), value))
        if len(headers) > MAX_HEADERS:
            self._check_head(MAX_HEAD + 1)

    def _on_trailer(self, size: int) -> None:
        if self._complete:
            raise ValueError("a response without a request")
        self._trailer_bytes += size
        self._check_head(self._trailer_bytes)

    def _check_head(self, size: int) -> None:
        if size > MAX_HEAD:
            self._fail(self.invalid(_TOO_LARGE))
            raise ValueError("the head is too large")

    def on_headers_complete(self) -> None:
        if self._complete:
            raise ValueError("a response without a request")
        status: int = self._parser.get_status_code()
        if status < 200:  # 100 Continue and 103 Early Hints come before the answer
            self.headers.clear()
            return
        if self._head_bytes > MAX_HEAD:  # the read may also hold much of the body
            self._check_head(sum(len(name) + len(value) for name, value in self.headers))
        self.status = status
        self._until_close = status not in (204, 304)
        for name, _ in self.headers:
            if name == b"content-length" or name == b"transfer-encoding":
                self._until_close = False
                break

    def on_message_complete(self) -> None:
        if self.status:
            self._complete = True
            self._may_refuse = False
            self._keep_alive = self._parser.should_keep_alive()
