"""The SLOs of a pool beside its current latencies."""

import time

import redis

from controlplane.live.dashboard.frame.slo import SloRow, rows
from controlplane.live.dashboard.frame.types import Frame
from controlplane.live.dashboard.step import latest
from fleet.models import Pool
from fleet.redis import connect
from fleet.spec.sections import slo_of
from router.contract.redis.staleness import FRAME_OLD_S


def slo_rows(pool: Pool) -> list[SloRow]:
    """Return rows for the classes with a target."""
    limits = slo_of(pool.slo, pool.autoscale)
    if not limits:
        return []
    frame = _recent_frame()
    if frame is None:
        return rows(limits, None)
    return rows(limits, frame["classes"].get(pool.name, {}), frame.get("slo", {}).get(pool.name, {}))


def _recent_frame() -> Frame | None:
    try:
        frame = latest(connect())
    except redis.RedisError:
        return None
    if frame is None or time.time() - frame["at"] > FRAME_OLD_S:
        return None
    return frame
