"""Notices that the client went away while it waits for its answer."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

Receive = Callable[[], Awaitable[dict[str, Any]]]

# An answer that is there sooner than this is not worth a task of its own.
AFTER_S = 0.01


class ClientWatch:
    """Calls `gone` once if the client disconnects before `stop`."""

    __slots__ = ("_gone", "_receive", "_task", "_timer")

    def __init__(self, receive: Receive, gone: Callable[[], None]) -> None:
        self._receive = receive
        self._gone = gone
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = asyncio.get_running_loop().call_later(AFTER_S, self._start)

    def _start(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while (await self._receive())["type"] != "http.disconnect":
                pass
            if self._task is not None:
                self._gone()

    def stop(self) -> None:
        task, self._task = self._task, None
        if self._timer is not None:
            self._timer.cancel()
        elif task is not None:
            task.cancel()
