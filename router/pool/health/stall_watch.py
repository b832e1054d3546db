"""Checks each engine's progress once a second (router/pool/health/progress.py)."""

import logging
from collections.abc import Iterable

from router.pool.endpoint import Endpoint
from router.pool.health.progress import prefill_s
from router.pool.health.stall_troubles import stalled_why
from router.pool.pool import Pool

# Servers that count tokens as they are generated. SGLang and TensorRT-LLM count them at the end of a request, and
# unknown servers may do the same.
COUNTS_AS_THEY_COME = ("vllm", "neuron", "sim")

log = logging.getLogger("weir.router")


def look(pool: Pool, now: float, passed_s: float, routers: int = 1) -> None:
    """Check every engine and forget outdated figures; `passed_s` is the time since the last check. `now` is Unix time;
    `routers` is the number of routers that send requests to the engines."""
    for endpoint in pool.endpoints.values():
        endpoint.look(now)
        was, progress = endpoint.progress.stalled, endpoint.progress
        alive = endpoint.routable and not pool.observed
        holds = endpoint.holds_requests or (endpoint.picked > 0 and _counts(endpoint))  # no router sees their tokens
        page_counts = not endpoint.awaiting and (progress.has_counters or not endpoint.unheld)
        if progress.look(passed_s, holds=holds, alive=alive, page_counts=page_counts, routers=routers):
            pool.stalls += _judge(pool, endpoint)
        if progress.stalled != was:
            log.warning("pool %s: %s is %s", pool.name, endpoint.id, progress.stalled or "no longer stalled")
            endpoint.touch()
            pool.queue.wake_all()
    pool.silent = [endpoint for endpoint in pool.endpoints.values() if endpoint.progress.fails_clients]


def _judge(pool: Pool, endpoint: Endpoint) -> bool:
    """Return True if the engine is stalled now."""
    rules, rates = pool.policy, pool.rates
    speed = rates.prefill_tokens_per_s * endpoint.pace
    longest_s = prefill_s(_longest_prompt(endpoint), speed, rates.equal_cost_tokens)
    after_s, factor = rules["failure.stall_after_s"], rules["failure.stall_factor"]
    late_s = float(rules["failure.first_byte_timeout_s"])
    if any(lease.has_media() for lease in endpoint.prefilling):
        longest_s = max(longest_s, late_s / factor)
    return endpoint.progress.judge(after_s, factor, longest_s, 0.0 if _counts(endpoint) else late_s)


def _counts(endpoint: Endpoint) -> bool:
    """Return whether the metrics page shows tokens as they are generated, including those of probes."""
    return endpoint.progress.shows_probes and endpoint.kind in COUNTS_AS_THEY_COME


def _longest_prompt(endpoint: Endpoint) -> float:
    """Return the new tokens of the longest prompt being computed; prompts of other routers count with their mean."""
    requests, tokens, decodes = endpoint.others
    mean = tokens / max(1, requests - decodes)
    return max(mean, max((lease.tokens for lease in endpoint.prefilling), default=0))


def stalled(pools: Iterable[Pool]) -> list[Endpoint]:
    """Return one endpoint of each instance whose ranks are all stalled."""
    firsts = {endpoint.ranks.endpoints[0]: None for pool in pools for endpoint in pool.endpoints.values()}
    return [endpoint for endpoint in firsts if endpoint.progress.stalled and stalled_why(endpoint.ranks.endpoints)]


def producing(pools: Iterable[Pool]) -> dict[str, int]:
    """Return the epoch of each instance that produced tokens before the last check."""
    endpoints = (endpoint for pool in pools for endpoint in pool.endpoints.values())
    return {endpoint.instance: endpoint.epoch for endpoint in endpoints if endpoint.progress.is_producing}
