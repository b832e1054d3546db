"""Polls the etcds named by the pools' instances, and combines each pool's instances with the registered workers."""

import asyncio
import base64
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec.structs import replace

from router.contract.net.addresses import ENGINES
from router.contract.redis.published import InstanceRole, PublishedInstance
from router.pool.pool import Pool
from router.workers.stepping import take_steps

if TYPE_CHECKING:
    import httpx


STEP_S = 0.25


# Workers registered under /workers/<role>/<host>/<port> in one etcd, read over its JSON gateway every LOOK_S. It is
# polled rather than watched: the end of a lease is noticed within half a second, and an etcd that hangs as fast as one
# that refuses connections, whereas a silent watch stream is ambiguous.
LOOK_S = 0.5
ANSWER_S = 2.0
PREFIX = "/workers/"
ROLES: tuple[InstanceRole, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Worker:
    role: InstanceRole
    address: str  # host:port of the worker's API
    epoch: int  # etcd's revision of the registration, which changes with each restart


class Registry:
    def __init__(self, url: str, changed: Callable[[], None]) -> None:
        self.url = url if "://" in url else f"http://{url}"
        self.found: Mapping[str, Worker] | None = None  # by address; None before the first answer
        self.lost_at: float | None = None  # s, Unix; None while it answers
        self.why = ""
        self._changed = changed

    def trouble(self, now: float) -> str:
        """Return a warning for the operator; empty while etcd answers."""
        if self.lost_at is None:
            return ""
        kept = "the last known workers are kept" if self.found is not None else "no worker is known yet"
        return f"etcd at {self.url} has not answered for {now - self.lost_at:.0f} s ({self.why}): {kept}"

    async def run(self) -> None:
        """Run until cancelled."""
        import httpx  # needed only with an etcd, and takes a quarter of the router's import time

        from router.contract.net.pinned_http import PinnedTransport

        transport = PinnedTransport(ENGINES)
        async with httpx.AsyncClient(base_url=self.url, timeout=ANSWER_S, transport=transport) as client:
            while True:
                await self.look(client)
                await asyncio.sleep(LOOK_S)

    async def look(self, client: "httpx.AsyncClient") -> None:
        import httpx

        try:
            answer = await client.post("/v3/kv/range", json=_EVERYTHING)
            answer.raise_for_status()
            found = workers(answer.json())
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            self.lost_at = self.lost_at or time.time()
            self.why = str(error) or type(error).__name__
            return
        self.lost_at = None
        if found != self.found:
            self.found = found
            self._changed()


def _coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


# The range of all keys with the prefix
_EVERYTHING = {"key": _coded(PREFIX), "range_end": _coded(PREFIX[:-1] + chr(ord(PREFIX[-1]) + 1))}


def workers(answer: Any) -> dict[str, Worker]:
    """Return workers by address from a range response; skip keys of another shape. Pure."""
    found = {}
    for pair in answer.get("kvs", ()):
        parts = base64.b64decode(pair["key"]).decode("utf-8", "replace").removeprefix(PREFIX).split("/")
        if len(parts) == 3 and parts[0] in ROLES and parts[2].isdigit():
            address = f"{parts[1]}:{parts[2]}"
            found[address] = Worker(parts[0], address, int(pair["create_revision"]))
    return found


class Discovery:
    def __init__(self, pools: Callable[[], Iterable[Pool]]) -> None:
        self._pools = pools
        self._registries: dict[str, Registry] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Run until cancelled."""
        await take_steps(STEP_S, self.step, self._tasks.values)

    def step(self) -> None:
        """Poll exactly the etcds named by the current instances."""
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
    """Take unregistered instances out of routing, and add registered workers that were not published. `registered` has
    the workers by address for each etcd, None before its first answer."""
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
