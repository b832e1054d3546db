"""The router's own server protocol: uvicorn's, with a short way for what is served through the proxy.

Such a request becomes an Exchange, which answers to the socket; everything else goes on as ASGI (`Router.__call__`).
"""

import asyncio
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from router.http.client import IncomingRequest
from router.http.exchange import Handler, HttpExchange
from router.timers import Deadlines
from router.tokenize.prompt import RENDERERS

PIPELINED = 8  # requests that may wait on a connection while another is answered

_ENDPOINTS = {path.encode(): path for path in RENDERERS}


class ServedRequest(Protocol):
    """What the ASGI callable of the server is to have besides."""

    idle: "Deadlines[RouterProtocol]"
    handle: Handler


class RouterProtocol(HttpToolsProtocol):
    app: Any  # Served
    _answering: HttpExchange | None = None

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        path, _, query = self.url.partition(b"?")
        api_path = _ENDPOINTS.get(path)
        parser = self.parser
        if api_path is None or parser.get_method() != b"POST" or parser.should_upgrade():
            self._as_asgi()
            return
        incoming = IncomingRequest(api_path, query, self.headers, self.client[0] if self.client else "")
        exchange = HttpExchange(incoming, self.app.handle, self.transport, self.flow, self.on_response_complete)
        exchange.http_1_0 = parser.get_http_version() == "1.0"
        exchange.keep_alive = not exchange.http_1_0 and parser.should_keep_alive()
        exchange.expects = self.expect_100_continue
        before, self.cycle = self.cycle, exchange
        if before is None or before.response_complete:
            self._start_asgi_task(exchange, self.app)
        else:
            self.pipeline.appendleft((exchange, self.app))
            if len(self.pipeline) > PIPELINED:  # not before: who does not read does not see that the client is gone
                self.flow.pause_reading()

    def _as_asgi(self) -> None:
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        super().on_message_begin()  # forgets what has been read of it
        self.url, self.expect_100_continue = url, expects
        self.headers += headers
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if not isinstance(cycle, HttpExchange):
            super()._start_asgi_task(cycle, app)
            return
        self._answering = cycle
        task = cycle.task = self.loop.create_task(cycle.run(self.tasks))
        self.tasks.add(task)

    def on_body(self, body: bytes) -> None:
        cycle = self.cycle
        if isinstance(cycle, HttpExchange):
            cycle.feed(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        cycle = self.cycle
        if isinstance(cycle, HttpExchange):
            cycle.fed()
        else:
            super().on_message_complete()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._answering is not None and self._answering.on_room is not None:
            self._answering.on_room()

    # The time that a connection may be idle

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self.app.idle.start(self, self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        self.app.idle.stop(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.app.idle.stop(self)
        super().connection_lost(exc)


def close_idle(door: RouterProtocol) -> None:
    door.timeout_keep_alive_handler()


def deadlines() -> Deadlines[RouterProtocol]:
    return Deadlines(asyncio.get_running_loop(), close_idle)
