"""Decides whether a failure counts against the instance."""

import asyncio
import time
from functools import partial

from router.contract.redis.staleness import SAMPLE_STALE_S
from router.pool.endpoint import Endpoint
from router.pool.pool import Pool
from router.upstream.errors import (
    ConnectFailed,
    FirstByteTimeout,
    HostSilent,
    KeyMissing,
    ProtocolError,
    RouterExhausted,
    UpstreamError,
)

# Roles whose instances together can replace an instance of this role
_HALVES: dict[str, set[str]] = {"prefill": {"prefill"}, "decode": {"decode"}, "both": {"prefill", "decode"}}


def attribute(pool: Pool, endpoint: Endpoint, error: UpstreamError, tenant: str = "") -> None:
    """Count a failure, unless the router caused it or the engine is merely busy: late, but recently sampled. `tenant`
    is the owner of the failed request."""
    if isinstance(error, RouterExhausted):
        pool.exhausted(time.time(), str(error))
        return
    if isinstance(error, KeyMissing):
        return  # such an instance leaves routing by key_troubles.py
    if isinstance(error, FirstByteTimeout) and time.time() - endpoint.sampled_at <= SAMPLE_STALE_S:
        has_no_capacity(pool, endpoint, tenant)
        return
    if isinstance(error, ProtocolError):
        endpoint.note_refused(str(error))
    unreachable = isinstance(error, ConnectFailed | HostSilent)
    # Every further request to an unreachable host would wait just as long.
    failed(pool, endpoint, None if unreachable else tenant, 1 if isinstance(error, HostSilent) else None)
    if isinstance(error, ConnectFailed):
        for rank in endpoint.ranks.endpoints:
            pool.index.purge(rank.id)


def failed_with(endpoint: Endpoint, error: UpstreamError) -> list[str]:
    """Return the endpoints ruled out for the request: one rank after a late answer, all ranks after a failed
    connection."""
    late = isinstance(error, FirstByteTimeout)
    return [endpoint.id] if late else [rank.id for rank in endpoint.ranks.endpoints]


def has_no_capacity(pool: Pool, endpoint: Endpoint, tenant: str) -> None:
    """Note that the instance has no capacity for `tenant` now. This is not a failure, but it may leave another instance
    as the last one available.
    """
    endpoint.note_full()
    if _is_last(pool, endpoint):
        _reconsider(pool, endpoint, tenant)


def failed(pool: Pool, endpoint: Endpoint, tenant: str | None = None, enough: int | None = None) -> None:
    """Count a failure of a request of `tenant`; None counts for every tenant, because nothing listens at the address.
    `enough` is the number of consecutive failures that opens the breaker, by default the policy's.
    """
    now = asyncio.get_running_loop().time()
    limit, was_open = enough or pool.policy["failure.breaker_failures"], endpoint.breaker.opened_at is not None
    spares = partial(_spares, pool, endpoint, tenant) if tenant is not None else None
    endpoint.breaker.failed(now, limit, tenant or "", spares)
    endpoint.ranks.touch()
    if not was_open and endpoint.breaker.opened_by:
        accused = {other.breaker.opened_by for other in pool.endpoints.values()}
        pool.accused = {name for name in accused if name in pool.accused or name == tenant}
    if _is_last(pool, endpoint):
        _reconsider(pool, endpoint, tenant if endpoint.breaker.opened_at is None else None)


def _spares(pool: Pool, endpoint: Endpoint, tenant: str, several: bool) -> bool:
    """Return whether others need the instance: it is the last one of its role, or this tenant's failures have shut out
    another instance and no instance has served the tenant since. `several`: whether requests of other tenants fail
    there, too."""
    others = (other for other in pool.endpoints.values() if other.instance != endpoint.instance)
    is_accused = tenant in pool.accused and not several
    return _is_last(pool, endpoint) or (is_accused and any(other.breaker.opened_by == tenant for other in others))


def _is_last(pool: Pool, endpoint: Endpoint) -> bool:
    """Return whether no other instance of its role takes requests."""
    now, open_s = asyncio.get_running_loop().time(), pool.policy["failure.breaker_open_s"]
    others = (other for other in pool.endpoints.values() if other.instance != endpoint.instance)
    taking = {other.role for other in others if not other.refusal(now, open_s)}
    return "both" not in taking and not taking >= _HALVES[endpoint.role]


def _reconsider(pool: Pool, failing: Endpoint, tenant: str | None) -> None:
    """Let instances that failed for one other tenant only be tried at once, because no other instance is left. `tenant`
    owns the failing request."""
    for other in pool.endpoints.values():
        if other.instance != failing.instance and other.breaker.reconsider(tenant):
            other.ranks.touch()


def take_back(pool: Pool, endpoint: Endpoint, count: int) -> bool:
    """Undo the latest `count` failures, which were the requests' own fault. Return False if too many have already been
    undone."""
    taken = endpoint.breaker.take_back(pool.policy["failure.breaker_failures"], count)
    endpoint.ranks.touch()
    return taken
