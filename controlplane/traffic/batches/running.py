"""Runs the batches that are due, in one worker at a time, with the routers and engines that Redis shows."""

import asyncio
import contextlib
import itertools
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import redis
import structlog
from celery import shared_task
from django.db import close_old_connections
from django.utils import timezone

from controlplane.traffic.batches import services, store
from controlplane.traffic.batches.dispatcher import Dispatcher
from controlplane.traffic.batches.lines import LineAnswer
from controlplane.traffic.batches.turns import EngineReports
from controlplane.traffic.keys import workers_secret
from fleet.models import Instance, Pool
from fleet.redis import live_routers, value_of, values_of
from router.contract import models
from router.contract.net.addresses import ENGINES
from router.contract.net.pinned_http import PinnedTransport
from router.contract.redis import redis_keys
from router.contract.redis.api_keys import BAND_MAX, KEY_ID
from router.contract.redis.published import ModelsValue
from router.contract.redis.router_status import RouterStatus
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import is_recent
from router.contract.values.problem import InvalidInput

log = structlog.get_logger(__name__)
CONNECT_S = 2.0
ANSWER_S = 3600.0  # time allowed until the first byte of an answer, which may wait long in the lowest band
UNREACHABLE = b'{"error":{"code":"router_unreachable","message":"no router takes the request"}}'


class Sender:
    """Sends requests from an event loop in a separate thread. The owner keeps `urls` of the routers up to date."""

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
    """Return the seconds of a Retry-After; None for a date or an invalid value."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


class Files:
    """A thread that reads and creates whole files and does not keep stale database connections."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "files of batches")

    def submit(self, work: Callable[..., Any], /, *given: Any) -> "Future[Any]":
        return self._thread.submit(_with_connection, work, *given)

    def shutdown(self, *, cancel_futures: bool) -> None:
        self._thread.shutdown(cancel_futures=cancel_futures)


def _with_connection(work: Callable[..., Any], *given: Any) -> Any:
    close_old_connections()
    try:
        return work(*given)
    finally:
        close_old_connections()


@shared_task(name="batches.run")
def run_batches(batch_id: int = 0) -> None:
    """Send the batches that are due, unless another worker does so. `batch_id` is the batch that was created or is
    late. It runs twice, to pick up batches that arrive in between."""
    for _ in range(2):
        if not services.due(timezone.now()).exists():
            return
        with store.alone(store.DISPATCHER) as mine:
            if not mine:
                return
            with sending() as dispatcher:
                dispatcher.run()


@contextlib.contextmanager
def sending() -> Iterator[Dispatcher]:
    """Yield a dispatcher. At the end, unsent lines are left to other workers."""
    sender = Sender(router_urls())
    dispatcher = Dispatcher(sender, Files(), router_urls, loads)
    try:
        yield dispatcher
    finally:
        dispatcher.release()
        sender.close()


def loads() -> EngineReports:
    """Return the engines' load, without old samples; empty while Redis is unreachable."""
    now = time.time()
    of_pools: defaultdict[str, list[InstanceSample]] = defaultdict(list)
    serve: defaultdict[str, set[str]] = defaultdict(set)
    pool_of = dict(Instance.objects.values_list("name", "pool__name"))
    for name, model in Pool.objects.values_list("name", "model"):
        serve[model].add(name)
    try:
        for name, sample in values_of(InstanceSample, redis_keys.instance_key, list(pool_of)).items():
            if is_recent(now - sample.at):
                of_pools[pool_of[name]].append(sample)
        live = value_of(ModelsValue, redis_keys.MODELS)
        aliases = models.parse(live.document) if live is not None else {}
    except (redis.RedisError, InvalidInput):
        return EngineReports()
    for name, alias in aliases.items():
        serve[name] = {target.pool for target in alias.targets}
    return EngineReports(of_pools, {name: frozenset(pools) for name, pools in serve.items()})


def router_urls() -> list[str]:
    try:
        statuses = values_of(RouterStatus, redis_keys.router_key, live_routers())
    except redis.RedisError:
        return []
    return [status.url for status in statuses.values() if status.url]
