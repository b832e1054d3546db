"""The SLOs of a pool beside its latencies at this moment."""

import time

import redis

from controlplane.dashboard.frame.slo import SloRow, rows
from controlplane.dashboard.frame.types import Classes
from controlplane.dashboard.step import latest
from fleet.models import Pool
from fleet.redis import connect
from fleet.spec.sections import slo_of
from router.contract.redis.staleness import FRAME_OLD_S


def slo_rows(pool: Pool) -> list[SloRow]:
    """Of the classes with a target."""
    limits = slo_of(pool.slo, pool.autoscale)
    return rows(limits, _classes(pool.name)) if limits else []


def _classes(pool: str) -> Classes | None:
    """None without a recent frame."""
    try:
        frame = latest(connect())
    except redis.RedisError:
        return None
    if frame is None or time.time() - frame["at"] > FRAME_OLD_S:
        return None
    return frame["classes"].get(pool, {})
