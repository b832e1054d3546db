"""The lowest cost of a router in Python: parse a request, send it to the engines in turn, pass the answer on.

`python -m bench.floor PORT ENGINE…` (ports). It decides nothing, keeps nothing and recovers from nothing;
bench/router.py measures it as `floor`.
"""

import asyncio
import sys
from typing import cast

import httptools
import uvloop

Idle = dict[int, list["Upstream"]]


class Upstream(asyncio.Protocol):
    """A connection to an engine."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.transport: asyncio.Transport
        self.client: Client | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        client = self.client
        self._parser.feed_data(data)
        if client is not None:
            client.transport.write(data)

    def on_header(self, name: bytes, value: bytes) -> None:
        pass

    def on_message_complete(self) -> None:
        if self.client is not None:
            self.client.idle.append(self)
        self.client = None


class Client(asyncio.Protocol):
    turn = 0

    def __init__(self, engines: list[int], idle: Idle) -> None:
        self._parser = httptools.HttpRequestParser(self)
        self._engines = engines
        self._idle_of = idle
        self.idle: list[Upstream] = []
        self.transport: asyncio.Transport
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers: list[bytes] = []
        self._body: list[bytes] = []

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append(b"%b: %b\r\n" % (name, value))

    def on_body(self, data: bytes) -> None:
        self._body.append(data)

    def on_message_complete(self) -> None:
        Client.turn += 1
        engine = self._engines[Client.turn % len(self._engines)]
        self.idle = self._idle_of[engine]
        head = b"POST %b HTTP/1.1\r\n%b\r\n" % (self._url, b"".join(self._headers))
        request = head + b"".join(self._body)
        if self.idle:
            self._send(self.idle.pop(), request)
        else:
            self._task = asyncio.ensure_future(self._connect(engine, request))

    async def _connect(self, engine: int, request: bytes) -> None:
        _, upstream = await asyncio.get_running_loop().create_connection(Upstream, "127.0.0.1", engine)
        self._send(upstream, request)

    def _send(self, upstream: Upstream, request: bytes) -> None:
        upstream.client = self
        upstream.transport.write(request)


async def serve(port: int, engines: list[int]) -> None:
    idle: Idle = {engine: [] for engine in engines}
    server = await asyncio.get_running_loop().create_server(lambda: Client(engines, idle), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), [int(port) for port in sys.argv[2:]]))
