"""TTFT p90 of a class against its SLO: the verdict of one moment, and whether a miss lasts. Pure."""

from collections.abc import Mapping

from controlplane.dashboard.frame.types import Classes, ClassWindow, PoolSummary, SloMiss

LOW_N = 20  # minimum number of measurements for a percentile's line
HOLD_S = 30.0  # a miss of this length is listed; it is unlisted after the SLO was not missed for as long

MISSED = "SLO missed"
# Each verdict, with the status that it is drawn as.
VERDICTS = {"no SLO": "unseen", "idle": "unseen", "too few requests": "unseen", "SLO met": "ready", MISSED: "failed"}


def verdict(window: ClassWindow | None, limit: float | None) -> str:
    if window is not None and not window["n"] and not window["rate"]:
        return "idle"
    if limit is None:
        return "no SLO"
    n, value = (window["ttft_n"], window["ttft"][1]) if window else (0, None)
    if value is None or n < LOW_N:
        return "too few requests"
    return "SLO met" if value <= limit else MISSED


def misses(
    now: float,
    pools: Mapping[str, PoolSummary],
    classes: Mapping[str, Classes],
    before: Mapping[str, Mapping[str, SloMiss]],
) -> dict[str, dict[str, SloMiss]]:
    """Misses by pool and class with an SLO. `before`: misses of the previous frame."""
    return {
        pool: {
            name: held(now, verdict(classes[pool].get(name), limit) == MISSED, before.get(pool, {}).get(name))
            for name, limit in known["slo"].items()
        }
        for pool, known in pools.items()
    }


def held(now: float, missed: bool, before: SloMiss | None) -> SloMiss:
    """A change counts once it has lasted HOLD_S in frames that follow each other by less."""
    was: SloMiss = before or {"at": now, "listed": False, "turned_at": None}
    if missed == was["listed"]:
        return {"at": now, "listed": missed, "turned_at": None}
    turned = was["turned_at"] if now - was["at"] < HOLD_S else None
    if turned is not None and now - turned >= HOLD_S:
        return {"at": now, "listed": missed, "turned_at": None}
    return {"at": now, "listed": was["listed"], "turned_at": now if turned is None else turned}
