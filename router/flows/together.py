"""Prefill and decode sent at the same time: when one fails, the other is cancelled."""

import asyncio
from collections.abc import Coroutine
from typing import Any
from urllib.parse import SplitResult, urlsplit

from router.flows.decode import decode
from router.flows.prefill import prefill
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.connection import Connection


def both_halves(
    call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int, bodies: tuple[bytes, bytes]
) -> "Together":
    """Send the first body to the prefill instance, the second to the decoder."""
    asked, body = bodies
    return Together(offload, prefill(call, prefiller, offload, asked, tokens), decode(call, decoder, offload, body))


def bootstrap(prefiller: Endpoint) -> SplitResult:
    """Return the URL of the server at which the two engines meet. Raise PrefillFailed."""
    try:
        url = urlsplit(prefiller.kv.bootstrap)
        if url.hostname and url.port:
            return url
    except ValueError:
        pass  # the URL's port is out of range
    raise PrefillFailed(f"{prefiller.id}: its fleet entry has no kv.bootstrap (address of its bootstrap server)")


class Together:
    def __init__(
        self, offload: Offload, prefill: Coroutine[Any, Any, Any], decode: Coroutine[Any, Any, Connection]
    ) -> None:
        loop = asyncio.get_running_loop()
        self.offload = offload
        self.prefill: asyncio.Task[Any] = loop.create_task(prefill)
        self.decode: asyncio.Task[Connection] = loop.create_task(decode)
        self.prefill.add_done_callback(_look)

    @property
    def needs_no_prefill(self) -> bool:
        """True if the decoder failed, fell back to its own prefill, or refused the request."""
        if not self.decode.done():
            return False
        return self.offload.outcome == "fallback" or bool(self.decode.exception()) or self.decode.result().status != 200

    async def prefilled(self) -> None:
        """Wait until the prompt is computed or no longer needed. Raise PrefillFailed, UpstreamError."""
        try:
            while not self.prefill.done():
                await asyncio.wait({self.prefill, self.decode}, return_when=asyncio.FIRST_COMPLETED)
                if self.needs_no_prefill:
                    self.prefill.cancel()
                    self.decode.result()
                    return
                if self.decode.done():
                    await asyncio.wait({self.prefill})
            if not self.needs_no_prefill:
                self.prefill.result()
        except BaseException:
            await self.end()
            raise

    async def decoded(self) -> Connection:
        """Return the decoder's connection. Raise UpstreamError."""
        try:
            return await asyncio.shield(self.decode)
        except BaseException:
            await self.end()
            raise

    async def end(self) -> None:
        """Cancel both halves and close an answer that the decoder has begun."""
        for task in (self.prefill, self.decode):
            task.cancel()
        await asyncio.wait({self.prefill, self.decode})
        self.forget()

    def forget(self) -> None:
        """Do the same as `end`, without waiting."""
        self.prefill.cancel()
        self.decode.cancel()
        self.decode.add_done_callback(_close)


def _look(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()  # marks it as retrieved; `prefilled` raises it


def _close(task: "asyncio.Task[Connection]") -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().release()
