"""Takes stalled instances out of routing for every router, and restores them. Routers judge by tokens
(router/pool/health/progress.py). An instance is stalled if every live router with requests there reports it; a router
that still receives tokens from it vetoes this.
"""

import datetime as dt
from collections.abc import Iterable, Mapping

from django.db.models import Q

from fleet.models import Instance, State
from fleet.observe.scrape import advance_each, apply_move, record_of
from fleet.plan.state import stall_move, stalled_reason
from fleet.redis import live_routers, values_of
from router.contract.redis import redis_keys
from router.contract.redis.router_status import RouterStatus

SERVING = (State.READY, State.DRAINING)


def stall_step(now: dt.datetime) -> list[str]:
    """Take one step. Return the names of instances that changed state."""
    reasons = reported(values_of(RouterStatus, redis_keys.router_key, live_routers()).values())
    at, named = now.timestamp(), {name for name, _ in reasons}
    concerned = Q(name__in=named, state__in=SERVING) | Q(state=State.UNREACHABLE, reason__startswith="stalled")
    rows = Instance.objects.select_related("pool").filter(concerned)
    return advance_each(rows, lambda row: _advance(row, reasons, at))


def reported(routers: Iterable[RouterStatus]) -> dict[tuple[str, int], str]:
    """Return the reason by instance and epoch."""
    every = list(routers)
    reasons = {
        (name, report.epoch): stalled_reason(report.why, proven=report.proven)
        for router in every
        for name, report in router.stalled.items()
    }
    served = {name for router in every for name in router.inflight if name not in router.stalled}
    return {key: why for key, why in reasons.items() if key[0] not in served}


def _advance(row: Instance, reasons: Mapping[tuple[str, int], str], at: float) -> bool:
    step = stall_move(record_of(row), reasons.get((row.name, row.epoch), ""))
    return step is not None and apply_move(row, step, at, None)
