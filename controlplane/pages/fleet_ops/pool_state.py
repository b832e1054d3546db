"""What the newest frame says about pools, and the state of the fleet in one sentence."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from urllib.parse import quote

import redis

from controlplane.live.dashboard.frame import slo
from controlplane.live.dashboard.frame.status import BROKEN
from controlplane.live.dashboard.frame.types import Frame
from controlplane.live.dashboard.step import latest
from controlplane.pages.fleet_ops.rows import PoolRow
from fleet.counted import counted
from fleet.redis import connect
from fleet.spec.sections import slo_of
from router.contract.redis.staleness import FRAME_OLD_S

WORST_FIRST = ("failed", "saturated", "stale", "ready", "stopped")


@dataclass(frozen=True, slots=True)
class FleetState:
    status: str  # the style of a status
    text: str
    cause: str = ""  # the first of its causes
    href: str = ""  # where the cause is
    more: int = 0  # further causes


def with_frame(rows: Iterable[PoolRow]) -> list[PoolRow]:
    """Return the rows with their load and, by class with a target, their SLO: unknown without a recent frame."""
    frame = _recent_frame()
    return [_with(row, frame) for row in rows]


def _with(row: PoolRow, frame: Frame | None) -> PoolRow:
    name, limits = row.pool.name, slo_of(row.pool.slo, row.pool.autoscale)
    if frame is None:
        return replace(row, slo=tuple(slo.rows(limits, None)))
    found = slo.rows(limits, frame["classes"].get(name, {}), frame.get("slo", {}).get(name, {}))
    return replace(row, slo=tuple(found), load=frame.get("totals", {}).get(name))


def _recent_frame() -> Frame | None:
    try:
        frame = latest(connect())
    except redis.RedisError:
        return None
    return None if frame is None or time.time() - frame["at"] > FRAME_OLD_S else frame


def fleet_state(pools: Sequence[PoolRow]) -> FleetState | None:
    """Return the state of all pools; None without any."""
    if not pools:
        return None
    worst_first = sorted(pools, key=lambda row: WORST_FIRST.index(row.health))
    causes = [cause for row in worst_first for cause in _causes(row)]
    ready, desired = sum(row.ready for row in pools), sum(row.desired_count for row in pools)
    of = counted(len(pools), "pool")
    text = f"{ready} of {counted(desired, 'instance')} ready in {of}"
    if not causes:
        return FleetState("ready" if desired else "stopped", text + ", as configured" * bool(desired))
    status = worst_first[0].health
    cause, href = causes[0]
    return FleetState("warning" if status == "ready" else status, text, cause, href, len(causes) - 1)


def _causes(row: PoolRow) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a pool and where to look, failed instances first."""
    place = f"/fleet/pools/{quote(row.pool.name)}/"
    for one in row.shown:
        if one.status in BROKEN:
            why = one.beside.partition(": ")[0]
            yield (
                f"{one.instance.name} {one.status}{f', {why}' if why else ''}",
                f"/fleet/instances/{one.instance.name}/",
            )
    if row.pool.halted:
        yield f"{row.pool.name}: rollout halted", place
    if row.source is not None and row.source.trouble:
        yield f"{row.pool.name}: its source does not answer", place
    if row.unplaceable or row.waits_for_pools:
        yield f"{row.pool.name}: {row.unplaceable or row.waits_for_pools}", place
    if row.missed_slo:
        yield f"{row.pool.name}: SLO missed by {row.missed_slo}", place
    elif row.differences:
        yield f"{row.pool.name}: {', '.join(row.differences)}", place
