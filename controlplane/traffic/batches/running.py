"""Runs the batches that are due, in one worker at a time, with Redis' view of routers and engines."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import redis
from django.db import close_old_connections
from django.utils import timezone

from controlplane.traffic.batches import services, store
from controlplane.traffic.batches.dispatcher import Dispatcher
from controlplane.traffic.batches.pace import EngineReports
from controlplane.traffic.batches.sending import Sender
from fleet.models import Instance, Pool
from fleet.redis import live_routers, value_of, values_of
from router.contract import models
from router.contract.problem import InvalidInput
from router.contract.redis import redis_keys
from router.contract.redis.published import ModelsValue
from router.contract.redis.router_status import RouterStatus
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import SAMPLE_OFFLINE_S


class Files:
    """A thread that reads and makes whole files and keeps no stale database connection."""

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


def run_batches() -> None:
    """Send what is due, unless another worker does so. Runs twice, for batches that come in between."""
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
    """Yield a dispatcher. At the end, unsent lines are left to others."""
    sender = Sender(router_urls())
    dispatcher = Dispatcher(sender, Files(), router_urls, loads)
    try:
        yield dispatcher
    finally:
        dispatcher.release()
        sender.close()


def loads() -> EngineReports:
    """Return the engines' load: no old samples, and none while Redis is away."""
    now = time.time()
    of_pools: defaultdict[str, list[InstanceSample]] = defaultdict(list)
    serve: defaultdict[str, set[str]] = defaultdict(set)
    pool_of = dict(Instance.objects.values_list("name", "pool__name"))
    for name, model in Pool.objects.values_list("name", "model"):
        serve[model].add(name)
    try:
        for name, sample in values_of(InstanceSample, redis_keys.instance_key, list(pool_of)).items():
            if now - sample.at <= SAMPLE_OFFLINE_S:
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
