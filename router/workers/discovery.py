"""Polls the etcds named by the pools' instances, and combines each pool's instances with the registered workers."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from msgspec.structs import replace

from router.contract.redis.published import PublishedInstance
from router.pool.pool import Pool
from router.workers.etcd import Registry, Worker
from router.workers.stepping import take_steps

STEP_S = 0.25


class Discovery:
    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools
        self._registries: dict[str, Registry] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        await take_steps(STEP_S, self.step, self._tasks.values)

    def step(self) -> None:
        """Poll exactly the etcds named at present."""
        named = {name: pool for pool in self._pools() for name in _named(pool)}
        for name in named.keys() - self._registries.keys():
            registry = self._registries[name] = Registry(name, self._changed)
            self._tasks[name] = asyncio.get_running_loop().create_task(registry.run())
        for name in self._registries.keys() - named.keys():
            del self._registries[name]
            self._tasks.pop(name).cancel()
        now = time.time()
        for pool in self._pools():
            names = _named(pool)
            if names and pool.amend is None:
                pool.amend = self._amended
                pool.amend_again()
            pool.trouble = "; ".join(filter(None, (self._registries[name].trouble(now) for name in names)))

    def _changed(self) -> None:
        for pool in self._pools():
            if pool.amend is not None:
                pool.amend_again()

    def _amended(self, instances: Sequence[PublishedInstance]) -> list[PublishedInstance]:
        return merged(instances, {name: registry.found for name, registry in self._registries.items()})


def _named(pool: Pool) -> list[str]:
    return sorted({name for instance in pool.published if (name := instance.kv.etcd)})


def merged(
    instances: Sequence[PublishedInstance], registered: Mapping[str, Mapping[str, Worker] | None]
) -> list[PublishedInstance]:
    """Take unregistered instances out of routing, and add registered workers that were not published.

    `registered`: workers by address for each etcd; None before its first answer.
    """
    made = [_checked(instance, registered.get(instance.kv.etcd)) for instance in instances]
    known = {_address(instance) for instance in instances}
    for name in dict.fromkeys(instance.kv.etcd for instance in instances):
        pattern = next(instance for instance in instances if instance.kv.etcd == name)
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
