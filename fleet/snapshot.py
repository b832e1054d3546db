"""From rows and samples to the values that the pure parts (fleet/reconcile.py, fleet/drift.py) work on."""

import datetime as dt
import logging
from collections.abc import Iterable
from typing import Any

import redis

from fleet.agent import in_seconds
from fleet.kinds import KINDS
from fleet.models import Instance, Node, Pool
from fleet.reconcile import DesiredPool, ObservedInstance
from fleet.redis import connect
from fleet.services import pool_spec
from fleet.spec import config_hash
from router import wire

NODE_GONE_S = 30.0  # a node that has not been seen for so long is given nothing to do
IDLE_AFTER_S = 1.0  # figures younger than the drain by that much already show what routers did until then
log = logging.getLogger(__name__)


def nodes_seen(now: dt.datetime) -> set[str]:
    since = in_seconds(now, -NODE_GONE_S)
    return set(Node.objects.filter(last_seen__gte=since).values_list("name", flat=True))


def desired_of(pool: Pool, seen: set[str]) -> DesiredPool:
    kind = KINDS[pool.kind]
    return DesiredPool(
        name=pool.name,
        replicas=pool.replicas,
        config_hash=config_hash(pool_spec(pool)),
        node=pool.node,
        node_seen=pool.node in seen,
        load_timeout_s=kind.load_timeout_s,
        drain_timeout_s=kind.drain_timeout_s,
        removed=pool.removed,
    )


def samples_of(rows: Iterable[Instance]) -> dict[str, dict[str, Any]]:
    names = [row.name for row in rows]
    if not names:
        return {}
    try:
        values = connect().mget([wire.instance_key(name) for name in names])
    except redis.RedisError as error:
        log.warning("no samples: %s", error)
        return {}
    read = {name: wire.decode(value) for name, value in zip(names, values, strict=True)}
    return {name: sample for name, sample in read.items() if sample is not None}


def observed_of(row: Instance, sample: dict[str, Any] | None) -> ObservedInstance:
    return ObservedInstance(
        name=row.name,
        pool=row.pool.name,
        ordinal=row.ordinal,
        state=row.state,
        wish=row.desired,
        reason=row.reason,
        since=row.since.timestamp(),
        config_hash=row.config_hash,
        restart_asked=row.restart_asked,
        idle=_is_idle(row, sample),
        next_start_at=row.next_start_at.timestamp() if row.next_start_at else None,
        stop_deadline=row.stop_deadline.timestamp() if row.stop_deadline else None,
    )


def _is_idle(row: Instance, sample: dict[str, Any] | None) -> bool:
    if sample is None or sample["epoch"] != row.epoch or sample["at"] < row.since.timestamp() + IDLE_AFTER_S:
        return False
    return sample["running"] == 0 and sample["waiting"] == 0
