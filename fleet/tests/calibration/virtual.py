"""A simulated engine in this process and in virtual time, so that measurements do not depend on the machine."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import httpx
import pytest

from fleet.engine.engine import Engine
from fleet.simengine.arguments import parse_arguments
from fleet.simengine.http.app import App
from fleet.simengine.metrics import EngineInfo
from fleet.simengine.model import model_of
from fleet.simengine.service import Service

T = TypeVar("T")
URL = "http://engine"
TICK_S = 1e-6


class VirtualLoop(asyncio.SelectorEventLoop):
    """A loop whose timers fire at once, moving its clock forward."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 1_000.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        timers = [handle.when() for handle in self._scheduled if not handle.cancelled()]  # type: ignore[attr-defined]
        if not self._ready and timers:  # type: ignore[attr-defined]
            self._now = max(self._now + TICK_S, min(timers))  # otherwise rounding could keep the clock at a standstill
        super()._run_once()  # type: ignore[misc]


def run(monkeypatch: pytest.MonkeyPatch, made: Callable[[], Coroutine[Any, Any, T]]) -> T:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner, monkeypatch.context() as patched:
        patched.setattr("time.monotonic", runner.get_loop().time)
        return runner.run(made())


class InProcess(httpx.AsyncBaseTransport):
    """Sends requests to an ASGI application and streams its responses in pieces."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        pending = [{"type": "http.request", "body": await request.aread(), "more_body": False}]

        async def receive() -> dict[str, Any]:
            return pending.pop() if pending else await asyncio.get_running_loop().create_future()

        headers = [(name.lower(), value) for name, value in request.headers.raw]
        scope = {"type": "http", "method": request.method, "path": request.url.path, "headers": headers}
        task = asyncio.create_task(self._app(scope, receive, sent.put))
        start = await sent.get()
        return httpx.Response(start["status"], headers=start["headers"], stream=_Body(sent, task))


class _Body(httpx.AsyncByteStream):
    def __init__(self, sent: asyncio.Queue[dict[str, Any]], task: asyncio.Task[None]) -> None:
        self._sent, self._task = sent, task

    async def __aiter__(self) -> AsyncIterator[bytes]:
        more = True
        while more:
            message = await self._sent.get()
            more = message.get("more_body", False)
            yield message.get("body", b"")

    async def aclose(self) -> None:
        self._task.cancel()


def sim_engine(**flags: object) -> InProcess:
    """Make an engine on the running loop, with flags of `python -m fleet.simengine`."""
    words = [word for name, value in flags.items() for word in (f"--{name.replace('_', '-')}", str(value))]
    arguments = parse_arguments(["--port", "1", "--model", "m", *words])
    model = model_of(arguments, "both")
    about = EngineInfo(
        "m", model.limits.block_size, model.kv_blocks, arguments.time_scale, model.window or model.kv_tokens
    )
    engine = Engine(model.law, model.kv_blocks, model.limits)
    return InProcess(App(Service(engine, about, 1, None, lambda is_busy, release: None, recomputes=False)))
