"""The routers' knowledge of an instance's KV cache, and the instance's refused answers."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import redis

from fleet.redis import live_routers, values_of
from router.contract import ranks
from router.contract.redis import redis_keys
from router.contract.redis.router_status import IndexStatus, RouterStatus
from router.contract.redis.sample import InstanceSample

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownIndex:
    router: str
    status: IndexStatus
    rank: str = ""  # data-parallel rank; empty if the instance has only one

    @property
    def share(self) -> float | None:
        """Return predicted over actual cached tokens; None if nothing was cached."""
        return self.status.predicted / self.status.actual if self.status.actual else None

    @property
    def mean_error(self) -> float | None:
        """Return the mean error of a prediction, in tokens."""
        return self.status.error / self.status.n if self.status.n else None


def live_statuses() -> dict[str, RouterStatus]:
    """Return status by router; empty without Redis."""
    try:
        return values_of(RouterStatus, redis_keys.router_key, live_routers())
    except redis.RedisError as error:
        log.warning("no routers: %s", error)
        return {}


def indexes_of(instance: str) -> list[KnownIndex]:
    """Return an index for each live router that knows the instance, and for each rank."""
    return [
        KnownIndex(name, status, ranks.split(endpoint)[1])
        for name, router in live_statuses().items()
        for endpoint, status in router.indexes.items()
        if ranks.instance_of(endpoint) == instance
    ]


@dataclass(frozen=True, slots=True)
class RefusedAnswers:
    by: str  # the node, or a router, that refused them
    reason: str
    n: int


def refused_answers(node: str, sample: InstanceSample | None, indexes: Iterable[KnownIndex]) -> list[RefusedAnswers]:
    """Return the refused answers, the most frequent first."""
    counts = [(node, sample.refused if sample is not None else {})]
    counts += [(known.router, known.status.refused) for known in indexes]
    found = [RefusedAnswers(by, reason, n) for by, refused in counts for reason, n in refused.items()]
    return sorted(found, key=lambda one: -one.n)
