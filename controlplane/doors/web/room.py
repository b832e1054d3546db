"""Limits the connections of a process and of an address, and chooses the idle connection that makes room for a new
one."""

import resource
from collections.abc import Collection, Sequence
from functools import lru_cache
from ipaddress import ip_address, ip_network

from router.contract.net.addresses import network_of

MAX_CONNECTIONS = 1_000  # limit, in addition to half of the process's open files
SHARE = 0.5  # largest share for one address, unless it is a trusted proxy


class SpareConnection:
    """A connection that can be asked to close."""

    served = False  # whether a whole request has arrived

    @property
    def spare_since(self) -> float | None:
        """Return the loop time since which it has waited for the head of a request; None while a request is in
        progress."""
        raise NotImplementedError

    def make_way(self) -> None:
        raise NotImplementedError


def max_connections() -> int:
    return min(MAX_CONNECTIONS, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2)


def make_room(connections: Collection[object], address: str, proxies: Sequence[str]) -> bool:
    """Return True if another connection from `address` is allowed, perhaps in place of the oldest half-open or idle
    one."""
    most = max_connections()
    share = int(most * SHARE)
    if len(connections) >= share and not is_trusted(address, tuple(proxies)):
        own = [each for each in connections if network_of(_address_of(each)) == network_of(address)]
        if len(own) >= share:
            return _close_oldest(own)
    return len(connections) < most or _close_oldest(connections)


def _close_oldest(connections: Collection[object]) -> bool:
    """Close the oldest half-open connection, or else the oldest that is idle between two requests."""
    spare = [
        (each.served, since, each)
        for each in connections
        if isinstance(each, SpareConnection) and (since := each.spare_since) is not None
    ]
    if not spare:
        return False
    min(spare, key=lambda found: found[:2])[2].make_way()
    return True


def _address_of(connection: object) -> str:
    client: tuple[str, int] | None = getattr(connection, "client", None)
    return client[0] if client else ""


@lru_cache(maxsize=4096)
def is_trusted(address: str, proxies: tuple[str, ...]) -> bool:
    """Return whether the address is in the list, in uvicorn's format: addresses, networks, or * for all."""
    if "*" in proxies:
        return True
    try:
        found = ip_address(address)
    except ValueError:  # a Unix socket
        return True
    return any(found in ip_network(proxy, strict=False) for proxy in proxies if _is_network(proxy))


def _is_network(proxy: str) -> bool:
    try:
        ip_network(proxy, strict=False)
    except ValueError:
        return False
    return True
