"""What each router knows of an instance's KV cache."""

import logging
from dataclasses import dataclass

import redis

from controlplane.policies.publication import live_routers
from fleet.redis import values_of
from router.contract.redis import redis_keys
from router.contract.redis.router_status import IndexStatus, RouterStatus

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownIndex:
    router: str
    status: IndexStatus

    @property
    def share(self) -> float | None:
        """Predicted over actual cached tokens; None when nothing was cached."""
        return self.status.predicted / self.status.actual if self.status.actual else None

    @property
    def mean_error(self) -> float | None:
        """Tokens by which a prediction was wrong, on average."""
        return self.status.error / self.status.n if self.status.n else None


def indexes_of(instance: str) -> list[KnownIndex]:
    """One per live router that knows the instance; empty without Redis."""
    try:
        routers = values_of(RouterStatus, redis_keys.router_key, live_routers())
    except redis.RedisError as error:
        log.warning("no indexes: %s", error)
        return []
    return [
        KnownIndex(name, router.indexes[instance]) for name, router in routers.items() if instance in router.indexes
    ]
