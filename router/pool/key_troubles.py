"""Instances whose engine key this router cannot read: they get no requests, and say why."""

from collections.abc import Sequence

from msgspec import structs

from router.contract.net.engine_key import trouble
from router.contract.redis.published import PublishedInstance


def key_troubles(instances: Sequence[PublishedInstance]) -> dict[str, str]:
    """Why a key cannot be read, by its reference."""
    named = {instance.engine_key for instance in instances if instance.engine_key}
    return {reference: why for reference in sorted(named) if (why := trouble(reference))}


def without(instances: Sequence[PublishedInstance], troubles: dict[str, str]) -> Sequence[PublishedInstance]:
    """The instances, of which those without their key are out of routing."""
    if not troubles:
        return instances
    return [
        structs.replace(instance, routable=False, reason=why)
        if (why := troubles.get(instance.engine_key))
        else instance
        for instance in instances
    ]
