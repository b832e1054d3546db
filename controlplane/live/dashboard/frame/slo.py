"""Decides whether TTFT p90 of a class misses its SLO, and whether the miss lasts. Pure."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controlplane.live.dashboard.frame.types import Classes, ClassWindow, PoolSummary, SloMiss
from router.policy.types import CLASSES

LOW_N = 20  # smallest number of measurements for which a percentile is drawn
HOLD_S = 30.0  # a miss is listed after this long, and unlisted after this long without a miss


def missed(window: ClassWindow | None, limit: float) -> bool:
    value = window["ttft"][1] if window and window["ttft_n"] >= LOW_N else None
    return value is not None and value > limit


@dataclass(frozen=True, slots=True)
class SloRow:
    name: str  # name of the class
    limit: float  # limit, ms
    p90: float | None  # TTFT over the last minute, ms
    n: int
    verdict: str  # verdict, in the terms of static/js/live_frame.js
    status: str  # style of the verdict


def rows(
    limits: Mapping[str, float], classes: Classes | None, misses: Mapping[str, SloMiss] | None = None
) -> list[SloRow]:
    """Return the rows. `classes` of the pool is None without a recent frame; `misses` holds those listed, by class."""
    listed = {name for name, miss in (misses or {}).items() if miss["listed"]}
    return [_row(name, limits[name], classes, listed) for name in CLASSES if name in limits]


def _row(name: str, limit: float, classes: Classes | None, listed: Collection[str]) -> SloRow:
    window = (classes or {}).get(name)
    if window is None:
        return SloRow(name, limit, None, 0, "unknown", "unseen")
    n, p90 = window["ttft_n"], window["ttft"][1]
    if n < LOW_N:
        lost = _lost(window)
        word = lost or ("too few requests" if n or window["n"] else "idle")
        return SloRow(name, limit, p90, n, word, "failed" if lost else "unseen")
    if missed(window, limit):
        return SloRow(name, limit, p90, n, "SLO missed", "failed")
    if name in listed:
        return SloRow(name, limit, p90, n, "SLO met again", "saturated")
    return SloRow(name, limit, p90, n, "SLO met", "ready")


def _lost(window: ClassWindow) -> str:
    """If few requests were served, describe what happened to most of them; empty if most were served, or if there were
    few.
    """
    failed, refused = window["errors"], window["refused"]
    if failed + refused < LOW_N or 2 * (failed + refused) <= window["n"] - window["client_errors"]:
        return ""
    return "most fail" if failed >= refused else "most are refused"


def misses(
    now: float,
    pools: Mapping[str, PoolSummary],
    classes: Mapping[str, Classes],
    before: Mapping[str, Mapping[str, SloMiss]],
) -> dict[str, dict[str, SloMiss]]:
    """Return misses by pool and class with an SLO. `before`: misses of the previous frame."""
    return {
        pool: {
            name: held(now, missed(classes[pool].get(name), limit), before.get(pool, {}).get(name))
            for name, limit in known["slo"].items()
        }
        for pool, known in pools.items()
    }


def held(now: float, missed: bool, before: SloMiss | None) -> SloMiss:
    """Return the miss; a change takes effect once it has lasted HOLD_S without a gap between frames as long."""
    was: SloMiss = before or {"at": now, "listed": False, "turned_at": None}
    if missed == was["listed"]:
        return {"at": now, "listed": missed, "turned_at": None}
    turned = was["turned_at"] if now - was["at"] < HOLD_S else None
    if turned is not None and now - turned >= HOLD_S:
        return {"at": now, "listed": missed, "turned_at": None}
    return {"at": now, "listed": was["listed"], "turned_at": now if turned is None else turned}
