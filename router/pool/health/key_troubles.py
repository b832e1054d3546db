"""Instances without requests because this router cannot read their engine key."""

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
        self._reasons: dict[str, str] = {}  # by key reference

    def look(self, instances: Instances) -> bool:
        """Read the keys again; return whether a key went missing or came back.

        Only the log has the reasons: /healthz is public and names no variable or file.
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
        """Return the instances, with those whose key is missing out of routing."""
        if not self._reasons:
            return instances
        return [
            structs.replace(instance, routable=False, reason=why)
            if (why := self._reasons.get(instance.engine_key))
            else instance
            for instance in instances
        ]

    def lacking(self, instances: Instances) -> list[str]:
        """Return the instances without their key, for /healthz."""
        count = sum(instance.engine_key in self._reasons for instance in instances)
        return [f"{count} of {len(instances)} instances have no engine key here: the log says why"] if count else []


def refusals(instances: Instances) -> str:
    """Return the reasons why no instance is ready, for /healthz."""
    count = sum(is_refusal(instance.reason) for instance in instances)
    return f": {count} of them ask for a key (engine_key)" if count else ""
