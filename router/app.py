"""The ASGI callable: which path is whose, and what starts and ends with the server."""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

import orjson

from router.http import errors
from router.http.asgi import AsgiClient, Receive, Send, answer
from router.http.client import IncomingRequest
from router.http.errors import ErrorResponse
from router.http.headers import request_id
from router.http.protocol import RouterProtocol, deadlines
from router.kv_events.listener import Listener
from router.metrics import render
from router.pool.pool import Pool
from router.request.call import Call
from router.serving.proxy import Proxy
from router.serving.relay import own_lines
from router.source import PoolSource
from router.timers import Deadlines
from router.tokenize.prompt import RENDERERS
from router.upstream.stalls import CHECK_S
from router.workers.discovery import Discovery

log = logging.getLogger("weir.router")

ONE_MODEL = "/v1/models/"
STOP_S = 2.0
JSON = b"application/json"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Router:
    def __init__(self, source: PoolSource) -> None:
        self.source = source
        self.pools = source.pools
        self.recorder = source.recorder
        self.proxy = Proxy(source.pools, source.sessions, source.recorder)
        self.handle = self.proxy.handle
        self._listener = Listener()
        self._discovery = Discovery(source.pools.all)
        self._listening: list[asyncio.Task[None]] = []
        self._tasks: list[asyncio.Task[None]] = []  # the last one looks after connections
        self._pages: dict[str, Callable[[], tuple[bytes, bytes]]] = {
            "/v1/models": self._models,
            "/healthz": self._healthz,
            "/health": self._healthz,
            "/metrics": self._metrics,
        }

    @cached_property
    def idle(self) -> Deadlines[RouterProtocol]:
        """Connections of clients between two requests."""
        return deadlines()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["method"] == "POST" and scope["path"] in RENDERERS:
            peer = scope["client"][0] if scope["client"] else ""
            incoming = IncomingRequest(scope["path"], scope["query_string"], scope["headers"], peer)
            await AsgiClient(receive, send).serve(incoming, self.handle)
        else:
            await self._other(scope, send)

    async def _other(self, scope: dict[str, Any], send: Send) -> None:
        call = Call(request_id(dict(scope["headers"])), scope["path"], 0.0, 0.0)
        try:
            kind, body = self._page(scope)
        except ErrorResponse as refusal:
            lines, body = errors.answer(call.api_path, refusal, call.id)
            await answer(send, refusal.status, lines + own_lines(call), body)
            return
        lines = b"content-type: %b\r\ncontent-length: %d\r\n" % (kind, len(body))
        await answer(send, 200, lines + own_lines(call), body)

    def _page(self, scope: dict[str, Any]) -> tuple[bytes, bytes]:
        path, method = scope["path"], scope["method"]
        model = path.removeprefix(ONE_MODEL) if path.startswith(ONE_MODEL) else ""
        page = self._pages.get(path)
        if method in ("GET", "HEAD") and (page is not None or model):
            return page() if page is not None else self._model(model)
        special = self.source.page(path, (scope["client"] or ("",))[0]) if method in ("GET", "HEAD") else None
        if special is not None:
            return JSON, special
        raise self._wrong(scope, allow="GET, HEAD" if page is not None or model else "")

    def _wrong(self, scope: dict[str, Any], allow: str) -> ErrorResponse:
        path, method = scope["path"], scope["method"]
        if dict(scope["headers"]).get(b"upgrade", b"").lower() == b"websocket":
            return ErrorResponse(400, "no_websockets", "no WebSocket is served here: send requests as HTTP POSTs")
        allow = allow or ("POST" if path in RENDERERS else "")
        if allow:
            return ErrorResponse(405, "method_not_allowed", f"{path[:200]} takes {allow}, not {method}", allow=allow)
        known = ", ".join([*RENDERERS, *self._pages])
        return ErrorResponse(404, "not_found", f"there is no {path[:200]}; there are {known}")

    # Pages

    def _models(self) -> tuple[bytes, bytes]:
        data = [_described(model, pool) for model, pool in self.pools.models().items()]
        return JSON, orjson.dumps({"object": "list", "data": data})

    def _model(self, model: str) -> tuple[bytes, bytes]:
        pool = self.pools.models().get(model)
        if pool is None:
            known = ", ".join(self.pools.models()) or "none"
            raise ErrorResponse(404, "model_not_found", f"there is no model {model[:100]!r}; known: {known}")
        return JSON, orjson.dumps(_described(model, pool))

    def _healthz(self) -> tuple[bytes, bytes]:
        """Always 200 while it serves: a balancer must not take out a router because Redis is away."""
        now = time.time()
        degraded, looked_at = self.source.degraded(), self.source.looked_at
        pools = {
            pool.name: {
                "model": pool.model,
                "policy": pool.policy_name,
                "version": pool.version,
                "fleet_age_s": round(now - looked_at, 3) if looked_at is not None else None,
                "fleet_at": pool.fleet_at,
                "ready": pool.ready,
                "instances": len(pool.endpoints),
            }
            for pool in self.pools.all()
        }
        return JSON, orjson.dumps(
            {
                "status": "degraded" if degraded else "ok",
                "id": self.source.id,
                "degraded": degraded,
                "warnings": self.pools.gate.warnings(),
                **self.source.health(),
                "pools": pools,
            }
        )

    def _metrics(self) -> tuple[bytes, bytes]:
        return TEXT, render(self.source)

    # Start and end

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        await self.source.start()
        loops = [*self.source.tasks(), self._look_after_connections()]
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]
        followers = (self._listener.run(self.pools.all()), self._discovery.run())
        self._listening = [asyncio.ensure_future(follower) for follower in followers]

    async def stop(self) -> None:
        self.source.end()
        for task in self._listening:
            task.cancel()
        if self._listening:
            await asyncio.wait(self._listening, timeout=STOP_S)
        self._tasks.pop().cancel()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in late:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=STOP_S)
        for pool in self.pools.all():
            pool.close()
        await self.source.leave()

    async def _look_after_connections(self) -> None:
        while True:
            try:
                self._check_connections()
            except Exception:
                log.exception("looking after connections failed")
            await asyncio.sleep(CHECK_S)

    def _check_connections(self) -> None:
        self.proxy.stalls.check()
        now = asyncio.get_running_loop().time()
        for pool in self.pools.all():
            for endpoint in pool.endpoints.values():
                endpoint.upstream.close_idle(now)
                endpoint.upstream.check_host()
            pool.queue.look_again()


def _described(model: str, pool: Pool) -> dict[str, Any]:
    return {"id": model, "object": "model", "created": int(pool.fleet_at or 0), "owned_by": "weir"}
