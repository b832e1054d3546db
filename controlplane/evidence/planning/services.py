"""Starts plans, and creates the draft of a fleet document from a row."""

import hashlib
import json

import redis

from controlplane.common.as_seen import found
from controlplane.evidence.plan import planned
from controlplane.evidence.plan.command import SIMULATED
from controlplane.evidence.planning.body import PlanIn
from controlplane.evidence.planning.measured import digest, engines_of
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews import policy_job
from controlplane.evidence.previews.policy_job import NUMBER_MAX
from controlplane.evidence.traces import library, recorded_traffic
from controlplane.evidence.twin.fingerprint import source_sha256
from controlplane.people.audit.services import Actor
from fleet.jobs import DONE
from fleet.kinds import KINDS
from fleet.services import current_spec
from router.contract.values.problem import InvalidInput, Problem

KEPT = 50  # newest plans kept
ABOUT = ("trace_name", "asked")  # fields in the audit log


def start(asked: PlanIn, actor: Actor) -> FleetPlan:
    """Start a plan; repeating the same question returns the earlier plan. Raise BadTrace, InvalidInput."""
    if asked.pool and (len(asked.gpus) > 1 or asked.host_gb != [0.0]):
        message = "has one GPU and its own host memory"
        raise InvalidInput(
            problems=[Problem("pool", asked.pool, message, "with one price in gpus and without host_gb")]
        )
    until, content = _content(asked.trace)
    body, source, engines = asked.model_dump(mode="json"), source_sha256(), digest(engines_of(asked.pool))
    key = hashlib.sha256(json.dumps([source, body, content, engines], sort_keys=True).encode()).hexdigest()
    if known := policy_job.asked_again(FleetPlan, key):
        return known
    made = FleetPlan(
        trace_name=asked.trace,
        trace={"until": until, "engines": engines},
        max_requests=asked.requests,
        asked=body,
        key=key,
        source=source,
    )
    policy_job.start(made, actor, ABOUT, KEPT)
    return made


def _content(trace: str) -> tuple[str, str]:
    """Return (the newest entry of recorded traffic, a digest of the trace's content). Raise BadTrace, InvalidInput."""
    try:
        if not trace.startswith(library.RECORDED):
            return "", library.sha256(trace)
        found, newest = recorded_traffic.newest_of(trace.removeprefix(library.RECORDED), 1)
        if found:
            return newest, newest
        message = "the routers have recorded no request of this pool"
    except library.NoSuchTrace as error:
        message = str(error)
    except redis.RedisError as error:
        message = f"recorded traffic is in Redis, which does not answer ({error})"
    raise InvalidInput(problems=[Problem("trace", trace, message)])


def numbered(number: int) -> FleetPlan:
    """Return the plan. Raise Http404."""
    plan = FleetPlan.objects.filter(pk=number).first() if number <= NUMBER_MAX else None
    return found(plan, f"there is no plan {number}; the newest ones are kept")


def pools(plan: FleetPlan) -> list[str]:
    """Return the pools for which a row can be drafted: the measured pool, or else simulated pools. Pools whose
    instances Weir does not start cannot be scaled."""
    measured = plan.asked.get("pool")
    every = [pool for pool in current_spec().pools if KINDS[pool.kind].launched]
    return [pool.name for pool in every if (pool.name == measured if measured else pool.kind == SIMULATED)]


def draft(plan: FleetPlan, row: int, pool: str) -> tuple[str, str]:
    """Return (the fleet document in which the pool matches this row, counted from 1; the difference from the current
    document). Raise InvalidInput."""
    answer: planned.Answer = (plan.result if plan.status == DONE else None) or {"rows": []}
    rows = answer["rows"]
    if not 1 <= row <= len(rows):
        message = f"is not a row of plan {plan.pk}, which is {plan.status}"
        raise InvalidInput(problems=[Problem("row", row, message, f"1 to {len(rows)}" if rows else "none")])
    if pool not in pools(plan):
        message = "is not the pool that was measured, or one of the kind sim, whose options a row has"
        raise InvalidInput(problems=[Problem("pool", pool, message, ", ".join(pools(plan)) or "none")])
    return planned.draft(answer, rows[row - 1], current_spec(), pool)
