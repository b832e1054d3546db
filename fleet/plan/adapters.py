"""Assigns LoRA adapters to instances. Pure.
An adapter keeps its homes. Further homes are chosen by rendezvous hashing among the instances with a free slot, so that
control workers agree and a new instance takes over few adapters. Instances of different roles (prefill, decode) serve a
request together, so each role has its own homes. After two failures, a load is not tried again in that epoch.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import xxhash

FAILURES = 2  # failed loads before another home is chosen
FULL_S = 30.0  # a home is added after all homes have been full for this long
CALM_S = 600.0  # a home is dropped after none has been full for this long

HomeState = Literal["loading", "loaded", "failed", "leaving"]


@dataclass(frozen=True, slots=True)
class WantedAdapter:
    pool: str
    name: str
    source: str
    homes: int  # homes per role


@dataclass(frozen=True, slots=True)
class AdapterHost:
    """A ready instance that may hold adapters."""

    instance: str
    pool: str
    slots: int
    role: str = "both"
    homes: Mapping[str, HomeState] = field(default_factory=dict)  # homes in its current epoch


@dataclass(frozen=True, slots=True)
class HomeChange:
    instance: str
    name: str
    source: str  # path of the adapter; empty to unload it

    @property
    def loads(self) -> bool:
        return bool(self.source)


def plan_homes(wanted: Iterable[WantedAdapter], hosts: Iterable[AdapterHost]) -> list[HomeChange]:
    """Return the adapters to load and unload; empty if every adapter is in place."""
    there = list(hosts)
    adapters = {(one.pool, one.name): one for one in wanted}
    taken = {host.instance: sum(state != "failed" for state in host.homes.values()) for host in there}
    changes = [
        HomeChange(host.instance, name, "")
        for host in there
        for name, state in sorted(host.homes.items())
        if state != "leaving" and (host.pool, name) not in adapters
    ]
    for (pool, _), adapter in sorted(adapters.items()):
        of_pool = [host for host in there if host.pool == pool]
        for role in sorted({host.role for host in of_pool}):
            changes += _of_role(adapter, [host for host in of_pool if host.role == role], taken)
    return changes


def _of_role(adapter: WantedAdapter, hosts: list[AdapterHost], taken: dict[str, int]) -> list[HomeChange]:
    name = adapter.name
    ranked = sorted(hosts, key=lambda host: _rank(name, host.instance), reverse=True)
    held = [host for host in ranked if host.homes.get(name) in ("loading", "loaded")]
    # Loaded homes are dropped last, because a home that is still loading may fail.
    held.sort(key=lambda host: host.homes[name] != "loaded")
    changes = [HomeChange(host.instance, name, "") for host in held[adapter.homes :]]
    free = [host for host in ranked if name not in host.homes and taken[host.instance] < host.slots]
    for host in free[: max(0, adapter.homes - len(held))]:
        taken[host.instance] += 1
        changes.append(HomeChange(host.instance, name, adapter.source))
    return changes


def _rank(name: str, instance: str) -> int:
    return xxhash.xxh64_intdigest(f"{name}\0{instance}".encode())


@dataclass(frozen=True, slots=True)
class AdapterHomes:
    """Homes of an adapter beyond its replicas; times are Unix s."""

    extra: int = 0
    full_since: float | None = None
    calm_since: float | None = None


def next_demand(demand: AdapterHomes, full: Iterable[bool], now: float) -> AdapterHomes:
    """Return the next demand. `full` is, for each home, whether requests wait there."""
    homes = list(full)
    if homes and all(homes):
        since = demand.full_since if demand.full_since is not None else now
        return AdapterHomes(demand.extra + 1) if now - since >= FULL_S else AdapterHomes(demand.extra, full_since=since)
    if not demand.extra or any(homes):
        return AdapterHomes(demand.extra)
    since = demand.calm_since if demand.calm_since is not None else now
    return AdapterHomes(demand.extra - 1) if now - since >= CALM_S else AdapterHomes(demand.extra, calm_since=since)
