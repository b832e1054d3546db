"""Decides whether a failure counts against the instance."""

import asyncio
import time

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


def attribute(pool: Pool, endpoint: Endpoint, error: UpstreamError) -> None:
    """Count a failure, unless it is the router's own, or the engine is busy: late, but recently sampled."""
    if isinstance(error, RouterExhausted):
        pool.exhausted(time.time(), str(error))
        return
    if isinstance(error, KeyMissing):
        return  # the pool takes it out of routing (router/pool/key_troubles.py)
    if isinstance(error, FirstByteTimeout) and time.time() - endpoint.sampled_at <= SAMPLE_STALE_S:
        return
    if isinstance(error, ProtocolError):
        endpoint.note_refused(str(error))
    # Each further request to a dead host would wait as long.
    failed(pool, endpoint, 1 if isinstance(error, HostSilent) else None)
    if isinstance(error, ConnectFailed):
        for rank in endpoint.ranks.endpoints:
            pool.index.purge(rank.id)


def failed_with(endpoint: Endpoint, error: UpstreamError) -> list[str]:
    """Endpoints ruled out for the request: by a late answer one rank, by a failed connection all ranks."""
    late = isinstance(error, FirstByteTimeout)
    return [endpoint.id] if late else [rank.id for rank in endpoint.ranks.endpoints]


def failed(pool: Pool, endpoint: Endpoint, enough: int | None = None) -> None:
    """`enough`: failures in a row that open its breaker; else as the policy says."""
    limit = enough or pool.policy["failure.breaker_failures"]
    endpoint.breaker.failed(asyncio.get_running_loop().time(), limit)
    endpoint.ranks.touch()
