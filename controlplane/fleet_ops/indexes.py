"""What the routers know of an instance's KV cache, as each of them says in weir:router:<id>."""

import logging
from dataclasses import dataclass
from typing import Any

import redis

from controlplane.policies.publication import live_routers
from fleet.redis import connect
from router.contract import codec, redis_keys

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KnownIndex:
    router: str
    figures: dict[str, Any]  # `Index` of docs/redis.md

    @property
    def share(self) -> float | None:
        """Predicted over actual cached tokens; None when nothing was cached."""
        actual = self.figures.get("actual")
        return self.figures["predicted"] / actual if actual else None

    @property
    def mean_error(self) -> float | None:
        """Tokens by which a prediction was wrong, on average."""
        return self.figures["error"] / self.figures["n"] if self.figures.get("n") else None


def indexes_of(instance: str) -> list[KnownIndex]:
    """One per router that is there and knows the instance; without Redis there are none."""
    try:
        names = live_routers()
        raw: Any = connect().mget([redis_keys.router_key(name) for name in names]) if names else []
    except redis.RedisError as error:
        log.warning("no indexes: %s", error)
        return []
    said = [(name, (codec.decode(value) or {}).get("indexes") or {}) for name, value in zip(names, raw, strict=True)]
    return [KnownIndex(name, known[instance]) for name, known in said if instance in known]
