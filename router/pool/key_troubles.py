"""Instances whose engine key this router cannot read: they get no requests, and say why."""

import logging
from collections.abc import Sequence

from msgspec import structs

from router.contract.net.engine_key import is_refusal, trouble
from router.contract.redis.published import PublishedInstance

log = logging.getLogger("weir.router")

Instances = Sequence[PublishedInstance]


class KeyTroubles:
    def __init__(self, pool: str) -> None:
        self._pool = pool
        self._reasons: dict[str, str] = {}  # by the reference of a key

    def look(self, instances: Instances) -> bool:
        """Read the keys again; whether another one is missing, or one is back.

        The log has the reasons: everybody who reaches the router reads /healthz, which names no variable and no file.
        """
        named = {instance.engine_key for instance in instances if instance.engine_key}
        reasons = {reference: why for reference in sorted(named) if (why := trouble(reference))}
        if reasons == self._reasons:
            return False
        self._reasons = reasons
        for why in reasons.values():
            log.warning("pool %s: %s", self._pool, why)
        return True

    def without(self, instances: Instances) -> Instances:
        """The instances, of which those without their key are out of routing."""
        if not self._reasons:
            return instances
        return [
            structs.replace(instance, routable=False, reason=why)
            if (why := self._reasons.get(instance.engine_key))
            else instance
            for instance in instances
        ]

    def lacking(self, instances: Instances) -> list[str]:
        """For /healthz."""
        count = sum(instance.engine_key in self._reasons for instance in instances)
        return [f"{count} of {len(instances)} instances have no engine key here: the log says why"] if count else []


def refusals(instances: Instances) -> str:
    """Behind the fact that none is ready, for /healthz."""
    count = sum(is_refusal(instance.reason) for instance in instances)
    return f": {count} of them ask for a key (engine_key)" if count else ""
