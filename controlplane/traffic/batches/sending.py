"""Sends lines of batches through the routers, each once, on behalf of its key."""

import asyncio
import itertools
import threading
from concurrent.futures import Future

import httpx
import structlog

from controlplane.traffic.batches.answers import LineAnswer
from controlplane.traffic.keys import workers_secret
from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedTransport
from router.contract.redis.api_keys import BAND_MAX, KEY_ID

log = structlog.get_logger(__name__)
CONNECT_S = 2.0
ANSWER_S = 3600.0  # time to the first byte of an answer, which may wait long in the lowest band
UNREACHABLE = b'{"error":{"code":"router_unreachable","message":"no router takes the request"}}'


class Sender:
    """Sends requests from an event loop in its own thread. The owner keeps `urls` of the routers up to date."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self._headers = {
            "authorization": f"Bearer {workers_secret.secret()}",
            "x-weir-priority": str(-BAND_MAX),
            "content-type": "application/json",
        }
        self._turn = itertools.count()
        transport = PinnedTransport(ENGINES)
        self._client = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="lines of batches", daemon=True)
        self._thread.start()

    def send(self, key_id: int, api_path: str, body: bytes, request_id: str) -> "Future[LineAnswer]":
        headers = {**self._headers, KEY_ID.decode(): str(key_id), "x-request-id": request_id}
        return asyncio.run_coroutine_threadsafe(self._send(api_path, body, headers), self._loop)

    def close(self) -> None:
        """Stop; requests in flight end without an answer."""
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._client.aclose()

    async def _send(self, api_path: str, body: bytes, headers: dict[str, str]) -> LineAnswer:
        request_id, urls, first = headers["x-request-id"], self.urls, next(self._turn)
        for number in range(len(urls)):
            url = urls[(first + number) % len(urls)]
            try:
                response = await self._client.post(url + api_path, content=body, headers=headers)
            except httpx.ConnectError as error:
                log.info("batch.router_unreachable", router=url, error=str(error)[:200])
            except httpx.HTTPError as error:
                log.info("batch.not_answered", router=url, error=str(error)[:200])
                return LineAnswer(502, request_id, b"{}")
            else:
                return answer_of(response, request_id)
        return LineAnswer(503, request_id, UNREACHABLE)


def answer_of(response: httpx.Response, request_id: str) -> LineAnswer:
    """Read a router's answer to a line."""
    headers = response.headers
    later_s, is_final = _seconds(headers.get("retry-after", "")), headers.get("x-should-retry") == "false"
    return LineAnswer(
        response.status_code, headers.get("x-request-id", request_id), response.content, later_s, is_final
    )


def _seconds(text: str) -> int | None:
    """Return the seconds of a Retry-After; None for a date or nonsense."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
