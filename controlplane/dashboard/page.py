"""Rows of a frame for the templates. Pure; static/js updates the same page from the next frame on."""

from collections.abc import Mapping
from typing import Any

from controlplane.dashboard import history
from controlplane.dashboard.attention import instance_link
from controlplane.dashboard.frames import ALL_POOLS
from controlplane.dashboard.latency import LATENCIES, PERCENTILES, LatencyMetric
from controlplane.dashboard.status import KV_SATURATED
from router.contract.redis import staleness
from router.policy.types import CLASSES

Json = Mapping[str, Any]
LOW_N = 20  # minimum number of measurements for a percentile's line
TILES_SHOWN = 128
BLANK_TILE = {"id": "", "status": "unseen", "tick": round(KV_SATURATED * 100)}


def context(frame: Json | None, pool: str) -> dict[str, Any]:
    """An empty `pool` means all pools."""
    if frame is None:
        return {
            "frame": None,
            "tiles": [],
            "blank": BLANK_TILE,
            "classes": [_class(name, None, {}) for name in CLASSES],
        }
    shown = tiles(frame, pool)
    return {
        "frame": frame,
        "tiles": shown[:TILES_SHOWN],
        "hidden_tiles": max(0, len(shown) - TILES_SHOWN),
        "tile_total": len(shown),
        "matching": sum(tile["matches"] for tile in shown),
        "blank": BLANK_TILE,
        "classes": classes(frame, pool),
        "policies": policies(frame, pool),
        "totals": totals(frame, pool),
    }


def constants() -> dict[str, Any]:
    """Constants that static/js shares with these pages."""
    return {
        "latencies": [metric.key for metric in LATENCIES],
        "percentiles": list(PERCENTILES),
        "counts": history.COUNTS,
        "lowN": LOW_N,
        "tilesShown": TILES_SHOWN,
        "sampleStaleS": staleness.SAMPLE_STALE_S,
        "sampleOfflineS": staleness.SAMPLE_OFFLINE_S,
        "workerLateS": staleness.WORKER_LATE_S,
        "frameOldS": staleness.FRAME_OLD_S,
    }


def policies(frame: Json, pool: str) -> list[dict[str, Any]]:
    """Of each shown pool, with the deliveries in it."""
    return [
        {
            "pool": name,
            "simulated": frame["pools"][name].get("simulated"),
            "deliveries": [line for line in frame.get("deliveries", ()) if name in line["pools"]],
            **policy,
        }
        for name, policy in frame["policies"].items()
        if pool in ("", name)
    ]


def tiles(frame: Json, pool: str) -> list[dict[str, Any]]:
    columns = frame["instances"]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [
        {**row, "tick": BLANK_TILE["tick"], "fill": round((row["kv"] or 0) * 100, 1), "href": instance_link(row["id"])}
        for row in rows
        if pool in ("", row["pool"])
    ]


def classes(frame: Json, pool: str) -> list[dict[str, Any]]:
    chosen = shown_pool(frame, pool)
    windows = frame["classes"].get(chosen, {})
    limits = frame["policies"].get(chosen, {}).get("classes", {})
    return [_class(name, windows.get(name), limits) for name in CLASSES]


def shown_pool(frame: Json, pool: str) -> str:
    """Class metrics of the page: of the chosen pool, of the only pool, or summed over all pools."""
    if pool:
        return pool
    return next(iter(frame["pools"])) if len(frame["pools"]) == 1 else ALL_POOLS


def _class(name: str, window: Json | None, limits: Json) -> dict[str, Any]:
    lines = [_line(metric, window or {}) for metric in LATENCIES]
    return {"name": name, "means": means(name, limits), "window": window, "latencies": lines}


def _line(metric: LatencyMetric, window: Json) -> dict[str, Any]:
    n = window.get(f"{metric.key}_n")
    values = window.get(metric.key, (None,) * len(PERCENTILES))
    return {"key": metric.key, "label": metric.label, "values": values, "n": n, "few": n is not None and n < LOW_N}


def means(name: str, limits: Json) -> str:
    """Definition of a class by the thresholds of the live policy; empty when they are unknown."""
    if not {"heavy_new_tokens", "warm_hit_share", "warm_new_tokens"} <= limits.keys():
        return ""
    heavy, warm, share = limits["heavy_new_tokens"], limits["warm_new_tokens"], limits["warm_hit_share"]
    return {
        "warm": f"more than {share * 100:.0f} % cached or under {warm:,} new tokens",
        "medium": f"{warm:,} to {heavy:,} new tokens",
        "heavy": f"{heavy:,} new tokens or more",
    }[name]


def totals(frame: Json, pool: str) -> dict[str, Any]:
    """Sums over the shown instances; None where no instance reported a value."""
    columns = frame["instances"]
    shown = [i for i, name in enumerate(columns["pool"]) if pool in ("", name)]
    return {key: _sum([columns[key][i] for i in shown]) for key in ("running", "waiting", "tokens_s")}


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None
