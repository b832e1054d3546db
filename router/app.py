"""The ASGI callable: which path is whose, and what starts and ends with the server."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

import orjson

from router.call import Call
from router.errors import Refusal
from router.headers import request_id
from router.link import FAILURES, Link
from router.live import Live
from router.metrics import render
from router.pools import Pools
from router.prompt import RENDERERS
from router.proxy import Proxy, answer
from router.recorder import Recorder
from router.relay import Send
from router.reporter import FLUSH_S, REPORT_S, Reporter
from router.sessions import Sessions
from router.stalls import CHECK_S
from router.watch import Receive

log = logging.getLogger("weir.router")

FIRST_POLL_S = 2.0
STOP_S = 2.0
JSON = b"application/json"
TEXT = b"text/plain; version=0.0.4; charset=utf-8"


class Router:
    def __init__(self, redis_url: str, router_id: str, url: str) -> None:
        self.id = router_id
        self.pools = Pools()
        self.recorder = Recorder()
        self.link = Link(redis_url)
        self.live = Live(self.link, self.pools, router_id)
        self.reporter = Reporter(router_id, url, self.link, self.live, self.pools, self.recorder)
        self.proxy = Proxy(self.pools, Sessions(self.link, self.live), self.recorder)
        self._tasks: list[asyncio.Task[None]] = []
        self._pages: dict[str, Callable[[], tuple[bytes, bytes]]] = {
            "/v1/models": self._models,
            "/healthz": self._healthz,
            "/metrics": self._metrics,
        }

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["method"] == "POST" and scope["path"] in RENDERERS:
            await self.proxy.handle(scope, receive, send)
        else:
            await self._other(scope, send)

    async def _other(self, scope: dict[str, Any], send: Send) -> None:
        path, method = scope["path"], scope["method"]
        page = self._pages.get(path)
        if page is not None and method in ("GET", "HEAD"):
            kind, body = page()
            length = b"%d" % len(body)
            await _send(send, 200, [(b"content-type", kind), (b"content-length", length)], body)
            return
        call = Call(request_id(dict(scope["headers"])), path, 0.0, 0.0)
        await answer(call, self._wrong(path, method), send)

    def _wrong(self, path: str, method: str) -> Refusal:
        allow = "POST" if path in RENDERERS else "GET, HEAD" if path in self._pages else ""
        if allow:
            return Refusal(405, "method_not_allowed", f"{method} is not allowed here, {allow} is", allow=allow)
        known = ", ".join([*RENDERERS, *self._pages])
        return Refusal(404, "not_found", f"there is no {path[:200]}; there are {known}")

    # Pages

    def _models(self) -> tuple[bytes, bytes]:
        data = [
            {"id": model, "object": "model", "created": int(pool.fleet_at or 0), "owned_by": "weir"}
            for model, pool in self.pools.models().items()
        ]
        return JSON, orjson.dumps({"object": "list", "data": data})

    def _healthz(self) -> tuple[bytes, bytes]:
        """Always 200 while it serves: a balancer must not take out a router because Redis is away."""
        now = time.time()
        degraded = self.live.degraded()
        pools = {
            pool.name: {
                "model": pool.model,
                "policy": pool.policy_name,
                "version": pool.version,
                "fleet_age_s": round(now - self.live.polled_at, 3) if self.live.polled_at is not None else None,
                "fleet_at": pool.fleet_at,
                "ready": pool.ready,
                "instances": len(pool.members),
            }
            for pool in self.pools.all()
        }
        return JSON, orjson.dumps(
            {
                "status": "degraded" if degraded else "ok",
                "id": self.id,
                "degraded": degraded,
                "redis": self.link.up,
                "unreadable": self.live.unreadable,
                "pools": pools,
            }
        )

    def _metrics(self) -> tuple[bytes, bytes]:
        return TEXT, render(self.pools, self.recorder, self.live)

    # Start and end

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        await self.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Take up what Redis has before the first request comes; go on without it when it is not there."""
        try:
            async with asyncio.timeout(FIRST_POLL_S):
                await self.live.poll()
                await self.live.samples()
        except FAILURES as error:
            self.link.failed(error)
        loops: list[Awaitable[None]] = [
            *self.live.tasks(),
            self.link.every(REPORT_S, self.reporter.report),
            self.link.every(FLUSH_S, self.reporter.flush),
            self.link.every(CHECK_S, self._check_connections),
        ]
        self._tasks = [asyncio.ensure_future(loop) for loop in loops]

    async def stop(self) -> None:
        self.link.stopping.set()
        _, late = await asyncio.wait(self._tasks, timeout=STOP_S)
        for task in late:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=STOP_S)
        for pool in self.pools.all():
            pool.close()
        with contextlib.suppress(*FAILURES):
            await self.reporter.leave()
        await self.link.close()

    async def _check_connections(self) -> None:
        self.proxy.stalls.check()
        now = asyncio.get_running_loop().time()
        for pool in self.pools.all():
            for member in pool.members.values():
                member.upstream.close_idle(now)


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
