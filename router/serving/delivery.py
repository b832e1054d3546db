"""Decides each request by its arm's version during a delivery (router/pool/rollout.py). A request keeps its arm and its
class across retries and while it is queued. If the split ends, is stopped or changes in the meantime, the next decision
is the live version's, unless the newest generation still assigns the request to the candidate.
"""

import logging
import time
from collections.abc import Mapping

from router.policy.held import most
from router.policy.rules.classify import classify
from router.policy.types import Decision, RoutingRequest
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.pool.rollout import Assignment
from router.request.call import Call

log = logging.getLogger("weir.router")


def assign(call: Call) -> None:
    """Assign the request to an arm before its first attempt, if there is a split."""
    split = call.pool.split
    if split is None:
        return
    now = time.perf_counter()
    assigned = call.assigned = split.assign(call.session_key, call.own_id, now)
    if assigned is not None:
        call.candidate = split.policy_of(assigned, now)


def decide(
    call: Call,
    assigned: Assignment,
    request: RoutingRequest,
    tried: Mapping[str, str],
    now: float,
    homes: FleetView[Endpoint] | None = None,
) -> Decision:
    """Decide, and record the version and the policy that decided. `now` is the loop's time."""
    pool, split = call.pool, call.pool.split
    if not assigned.request_class:
        assigned.request_class = classify(request.prompt_tokens, most(request.held), pool.policy)
    call.candidate = None if split is None else split.policy_of(assigned, time.perf_counter())
    if split is not None and call.candidate is not None:
        try:
            decision = pool.decide(request, tried, now, call.candidate, homes)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"[:300]
            log.exception("pool %s: version %d cannot decide", pool.name, split.rollout.candidate.version)
            pool.trip(f"version {split.rollout.candidate.version} cannot decide: {why}", call.id)
            call.candidate = None
        else:
            call.version = split.rollout.candidate.version
            return decision
    call.version = pool.version
    return pool.decide(request, tried, now, None, homes)
