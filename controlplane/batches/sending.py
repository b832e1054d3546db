"""Sends one line of a batch through the routers, until it has a final answer."""

import asyncio
import itertools
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass

import httpx
import orjson
import structlog

from controlplane.keys import workers_secret
from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedTransport
from router.contract.redis.api_keys import BAND_MAX, KEY_ID

log = structlog.get_logger(__name__)
CONNECT_S = 2.0
ANSWER_S = 3600.0  # until the first byte of an answer, which may wait for long in the lowest band
LATER = (429, 503)  # statuses that are tried again until the batch's window ends
TRIES = 4  # tries of a line that gets other server errors, or no answer
PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
NO_QUOTA = "insufficient_quota"


@dataclass(frozen=True, slots=True)
class LineAnswer:
    status: int
    request_id: str
    body: bytes


class Sender:
    """Has an event loop in a thread of its own. `urls`: of the routers; its owner keeps them up to date."""

    def __init__(self, key_id: int, api_path: str, urls: list[str]) -> None:
        self.urls = urls
        self._headers = {
            "authorization": f"Bearer {workers_secret.secret()}",
            KEY_ID.decode(): str(key_id),
            "x-weir-priority": str(-BAND_MAX),
            "content-type": "application/json",
        }
        self._api_path = api_path
        self._turn = itertools.count()
        self._paused_until = 0.0  # s, monotonic: the key's budget is used up
        transport = PinnedTransport(ENGINES, limits=httpx.Limits(max_connections=None, max_keepalive_connections=64))
        self._client = httpx.AsyncClient(transport=transport, timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"batch of key {key_id}", daemon=True)
        self._thread.start()

    def send(self, body: bytes, request_id: str) -> "Future[LineAnswer]":
        return asyncio.run_coroutine_threadsafe(self._send(body, request_id), self._loop)

    def close(self) -> None:
        """Stop; requests under way end without an answer."""
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

    async def _send(self, body: bytes, request_id: str) -> LineAnswer:
        failures, pause_s = 0, PAUSE_S
        while True:
            await asyncio.sleep(max(0.0, self._paused_until - time.monotonic()))
            answer = await self._try(body, request_id)
            if answer is not None and answer.status not in LATER:
                failures += answer.status >= 500
                if answer.status < 500 or failures >= TRIES:
                    return answer
            await asyncio.sleep(pause_s)
            pause_s = min(LONGEST_PAUSE_S, pause_s * 2)

    async def _try(self, body: bytes, request_id: str) -> LineAnswer | None:
        """The answer; None if no router took the request."""
        if not self.urls:
            return None
        url = self.urls[next(self._turn) % len(self.urls)]
        headers = {**self._headers, "x-request-id": request_id}
        try:
            response = await self._client.post(url + self._api_path, content=body, headers=headers)
        except httpx.TransportError as error:
            log.info("batch.not_sent", router=url, error=str(error)[:200])
            return None if isinstance(error, httpx.ConnectError) else LineAnswer(502, request_id, b"{}")
        if response.status_code == 429 and _code(response.content) == NO_QUOTA:
            self._paused_until = time.monotonic() + LONGEST_PAUSE_S
        return LineAnswer(response.status_code, response.headers.get("x-request-id", request_id), response.content)


def _code(body: bytes) -> str:
    try:
        return str(orjson.loads(body)["error"]["code"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return ""
