"""Combines a pool's instances with the workers registered in their etcd. Pure."""

from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from msgspec.structs import replace

from router.contract.redis.published import PublishedInstance
from router.workers.etcd import Worker


def etcd_of(instance: PublishedInstance) -> str:
    """The etcd named by a published instance, or empty."""
    named = instance.kv.get("etcd")
    return named if isinstance(named, str) else ""


def merged(
    instances: Sequence[PublishedInstance], registered: Mapping[str, Mapping[str, Worker] | None]
) -> list[PublishedInstance]:
    """Take unregistered instances out of routing, and add registered workers that were not published.

    `registered`: workers by address for each etcd; None before its first answer.
    """
    made = [_checked(instance, registered.get(etcd_of(instance))) for instance in instances]
    known = {_address(instance) for instance in instances}
    for name in dict.fromkeys(etcd_of(instance) for instance in instances):
        pattern = next(instance for instance in instances if etcd_of(instance) == name)
        for worker in (registered.get(name) or {}).values():
            if worker.address not in known:
                made.append(_instance(pattern, worker))
    return made


def _address(instance: PublishedInstance) -> str:
    return urlsplit(instance.url).netloc


def _checked(instance: PublishedInstance, found: Mapping[str, Worker] | None) -> PublishedInstance:
    if found is None or _address(instance) in found or not instance.url:
        return instance
    return replace(instance, routable=False, reason="it is not registered in etcd")


def _instance(pattern: PublishedInstance, worker: Worker) -> PublishedInstance:
    return replace(
        pattern,
        id=f"{worker.role}-{worker.address}",
        epoch=worker.epoch,
        url=f"http://{worker.address}",
        state="ready",
        routable=True,
        reason="registered in etcd",
        role=worker.role,
    )
