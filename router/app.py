"""The ASGI app of a router process: `Router` for `python -m router`, and `app` for any other ASGI server."""

import asyncio
import logging
import os
import time
from collections.abc import Coroutine
from typing import Any

from router.contract.api_paths import ROUTED, Handling
from router.http import asgi, doors
from router.http.asgi import AsgiClient, Message, Receive, Send
from router.http.client import ClientConnection, IncomingRequest
from router.http.clients import ClientConnections
from router.http.cors import Cors, cors, is_asked
from router.http.doors import below
from router.http.errors import ErrorResponse
from router.kv_events.listener import Listener
from router.kv_events.shared import SharedIndexes
from router.options import CORS, WEB, from_environment, spans_settings
from router.pool.health.stall_watch import look
from router.serving.pages import Pages
from router.serving.proxy import Proxy
from router.serving.stored_calls import StoredCalls
from router.serving.web_relay import WebRelay
from router.source import PoolSource
from router.spans.settings import SpanSettings
from router.telemetry.request_spans import ServerAttributes
from router.telemetry.tracer import Tracer
from router.upstream.stalls import CHECK_S
from router.workers.discovery import Discovery
from router.workers.pace_probes import PaceProbes
from router.workers.rank_numbers import RankNumbers
from router.workers.stall_probes import StallProbes

log = logging.getLogger("weir.router")

STOP_S = 2.0


class Router:
    def __init__(
        self, source: PoolSource, clients: ClientConnections | None = None, spans: SpanSettings | None = None
    ) -> None:
        """`clients` is set only under the router's own server; `spans` is None if no spans are exported."""
        self.source = source
        self.pools = source.pools
        self.recorder = source.recorder
        self.proxy = Proxy(source.pools, source.sessions, source.recorder)
        self.proxy.responses = source.responses
        self._stored_calls = StoredCalls(source.pools, source.responses, self.proxy.stalls)
        if spans is not None:
            self.proxy.tracer = Tracer(spans, source.id, source.recorder, self._server)
        self.root = ""  # path prefix that a proxy leaves in requests
        self.cors: Cors | None = None  # None: pages of other origins may not read answers
        self.web: WebRelay | None = None  # None: files and batches are not served
        self.clients = clients or ClientConnections()
        self.pages = Pages(source, self.clients)
        self._indexes = SharedIndexes(source.pools.index_sockets) if source.pools.index_sockets else None
        self.pools.index_links = self._indexes.links if self._indexes is not None else ()
        self._listener = Listener(self._indexes)
        self._discovery = Discovery(source.pools.all)
        self._rank_numbers = RankNumbers(source.pools.all)
        self._pace_probes = PaceProbes(source.pools.all, source.recorder.computed)
        self._stall_probes = StallProbes(source.pools.all)
        self._listening: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []  # the last task watches connections

    def handle(self, incoming: IncomingRequest, client: ClientConnection) -> Coroutine[Any, Any, None]:
        if self.root:
            incoming.path = below(self.root, incoming.path)
        if self.cors is not None:
            self.cors.open(incoming, client)
        if (incoming.method, incoming.path) in ROUTED:
            return self.proxy.handle(incoming, client)
        return self._answer(incoming, client)

    async def _answer(self, incoming: IncomingRequest, client: ClientConnection) -> None:
        """Answer a request that needs no routing decision."""
        try:
            if self.cors is not None and is_asked(incoming):
                return await self.cors.answer(incoming, client)
            row = doors.admitted(incoming)
            if row.handling is Handling.OWN:
                await self.pages.handle(incoming, client)
            elif row.handling is Handling.STORED:
                await self._stored_calls.handle(incoming, client)
            elif self.web is not None:
                self.pools.auth.require_known(incoming, time.time())
                await self.web.handle(incoming, client, self.proxy.stalls)
            else:
                raise doors.not_served(incoming.path, "the router was started without --web")
        except ErrorResponse as refusal:
            doors.refuse(incoming, refusal, client)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await asgi.lifespan(receive, send, self.start, self.stop)
        elif scope["type"] == "http":
            peer = scope["client"][0] if scope["client"] else ""
            path = below(scope.get("root_path", ""), scope["path"])
            incoming = IncomingRequest(path, scope["query_string"], scope["headers"], peer, scope["method"])
            await AsgiClient(receive, send, self.clients, incoming).serve(self.handle)
        else:
            await send({"type": "websocket.close"})

    async def start(self) -> None:
        await self.source.start()
        tracing = self.proxy.tracer.tasks() if self.proxy.tracer is not None else []
        loops = [*self.source.tasks(), *tracing, self._look_after_connections()]
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]
        followers = (
            self._listener.run(self.pools.all()),
            self._discovery.run(),
            self._rank_numbers.run(),
            self._pace_probes.run(),
            self._stall_probes.run(),
            *((self._indexes.run(),) if self._indexes is not None else ()),
        )
        self._listening = [asyncio.ensure_future(follower) for follower in followers]

    async def stop(self) -> None:
        self.source.end()
        if self.proxy.tracer is not None:
            self.proxy.tracer.end()
        for task in self._listening:
            task.cancel()
        if self._listening:
            await asyncio.wait(self._listening, timeout=STOP_S)
        self._tasks.pop().cancel()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in late:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=STOP_S)
        if self.proxy.tracer is not None:
            self.proxy.tracer.close()
        for pool in self.pools.all():
            pool.close()
        await self.source.leave()

    def _server(self, pool: str, endpoint: str) -> ServerAttributes:
        """Return the span attributes of an instance; empty once it has left the fleet."""
        served = self.pools.get(pool)
        one = served.endpoints.get(endpoint) if served is not None else None
        return (
            ServerAttributes()
            if one is None
            else ServerAttributes(one.kind or None, one.upstream.host, one.upstream.port)
        )

    async def _look_after_connections(self) -> None:
        while True:
            try:
                self._check_connections()
            except Exception:
                log.exception("looking after connections failed")
            await asyncio.sleep(CHECK_S)

    def _check_connections(self) -> None:
        self.proxy.stalls.check()
        now, unix = asyncio.get_running_loop().time(), time.time()
        for pool in self.pools.all():
            look(pool, unix, CHECK_S, self.source.routers)
            for endpoint in pool.endpoints.values():
                endpoint.upstream.close_idle(now)
                endpoint.upstream.check_host()
            pool.queue.look_again()
            pool.look_at_keys()


class EnvironmentRouter:
    """A router configured from the environment when the server starts it; importing this module reads nothing."""

    def __init__(self) -> None:
        self._router: Router | None = None

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await asgi.lifespan(receive, send, self._start, self._stop)
        elif self._router is None:
            raise RuntimeError("the ASGI server did not start the router: it must send lifespan events")
        else:
            await self._router(scope, receive, send)

    async def _start(self) -> None:
        router = Router(from_environment(), spans=spans_settings())
        try:
            router.cors = cors(os.environ.get(CORS))
        except ValueError as error:
            raise ValueError(str(error).replace("--cors-origins", CORS)) from None
        if url := os.environ.get(WEB):
            router.web = WebRelay(url)
        await router.start()
        self._router = router

    async def _stop(self) -> None:
        if self._router is not None:
            await self._router.stop()


app = EnvironmentRouter()
