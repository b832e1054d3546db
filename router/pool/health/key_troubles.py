"""Instances that get no requests because this router cannot read their engine key or certificates."""

import logging
from collections.abc import Sequence

from msgspec import structs

from router.contract.net import engine_key, engine_tls
from router.contract.net.engine_tls import EngineTls
from router.contract.redis.published import PublishedInstance

log = logging.getLogger("weir.router")

Instances = Sequence[PublishedInstance]
Named = tuple[str, EngineTls]  # references of the key and of the certificates


class KeyTroubles:
    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._reasons: dict[Named, str] = {}

    def look(self, instances: Instances) -> bool:
        """Check the keys and certificates. Return whether any has become unreadable or readable again. The reasons
        appear only in the log: /healthz is public and names no variable or file.
        """
        named = dict.fromkeys(map(_named, instances))
        reasons = {one: why for one in named if (why := _trouble(*one))}
        if reasons == self._reasons:
            return False
        self._reasons = reasons
        for why in reasons.values():
            log.warning("pool %s: %s", self._pool, why)
        return True

    def without(self, instances: Instances) -> Instances:
        """Return the instances; those that lack a key or certificate are marked as out of routing."""
        if not self._reasons:
            return instances
        return [
            structs.replace(instance, routable=False, reason=why)
            if (why := self._reasons.get(_named(instance)))
            else instance
            for instance in instances
        ]

    def lacking(self, instances: Instances) -> list[str]:
        """Return the number of instances that lack a key or certificate, for /healthz."""
        count = sum(_named(instance) in self._reasons for instance in instances)
        lack = "lack an engine key or certificates here: the log says why"
        return [f"{count} of {len(instances)} instances {lack}"] if count else []


def _named(instance: PublishedInstance) -> Named:
    return instance.engine_key, instance.tls


def _trouble(key: str, tls: EngineTls) -> str:
    return engine_key.trouble(key) or (engine_tls.trouble(tls) if tls.references else "")


def refusals(instances: Instances) -> str:
    """Return the reasons why no instance is ready, for /healthz."""
    count = sum(engine_key.is_refusal(instance.reason) for instance in instances)
    return f": {count} of them ask for a key (engine_key)" if count else ""
