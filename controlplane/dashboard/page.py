"""Rows of a frame for the templates. Pure; static/js updates the same page from the next frame on."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from controlplane.dashboard import history
from controlplane.dashboard.frame.attention import instance_link
from controlplane.dashboard.frame.latency import ALL_POOLS, LATENCIES, PERCENTILES, LatencyMetric
from controlplane.dashboard.frame.slo import LOW_N, VERDICTS, verdict
from controlplane.dashboard.frame.status import KV_SATURATED
from controlplane.dashboard.frame.types import AttentionItem, ClassWindow, Frame, ShownEvent
from fleet.systems.prices import per_million
from router.contract.redis import staleness
from router.policy.types import CLASSES

TILES_SHOWN = 128
# Statuses in which an instance is as configured if its record says that. Others: unknown, or still on the way.
CERTAIN = ("ready", "saturated", "draining", "stopped")
BLANK_TILE = {"id": "", "status": "unseen", "tick": round(KV_SATURATED * 100)}


def context(frame: Frame | None, pool: str, slos: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """An empty `pool` means all pools. `slos`: by class and metric."""
    if frame is None:
        return {
            "frame": None,
            "tiles": [],
            "blank": BLANK_TILE,
            "classes": [_class(name, None, "", {}) for name in CLASSES],
        }
    shown = tiles(frame, pool)
    return {
        "frame": frame,
        "attention": [item for item in frame["attention"] if concerns(item, pool)],
        "events": [event for event in frame["events"] if concerns(event, pool)],
        "tiles": shown[:TILES_SHOWN],
        "hidden_tiles": max(0, len(shown) - TILES_SHOWN),
        "tile_total": len(shown),
        "counts": frame["counts"] if not pool else dict(Counter(tile["status"] for tile in shown)),
        "matching": sum(tile["matches"] and tile["status"] in CERTAIN for tile in shown),
        "blank": BLANK_TILE,
        "classes": classes(frame, pool, slos),
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
        "kvThreshold": KV_SATURATED,
        "tilesShown": TILES_SHOWN,
        "certain": CERTAIN,
        "verdicts": VERDICTS,
        "sampleStaleS": staleness.SAMPLE_STALE_S,
        "sampleOfflineS": staleness.SAMPLE_OFFLINE_S,
        "workerDownS": staleness.WORKER_DOWN_S,
        "frameOldS": staleness.FRAME_OLD_S,
    }


def concerns(item: AttentionItem | ShownEvent, pool: str) -> bool:
    """Whether an event or an entry of attention is shown for this pool."""
    return not pool or not item["pools"] or pool in item["pools"]


def policies(frame: Frame, pool: str) -> list[dict[str, Any]]:
    """Of each shown pool, with the deliveries in it."""
    return [
        {
            "pool": name,
            "simulated": frame["pools"][name]["simulated"],
            "saving": frame["savings"].get(name),
            "tiers": frame["tiers"].get(name),
            "deliveries": [line for line in frame["deliveries"] if name in line["pools"]],
            **policy,
        }
        for name, policy in frame["policies"].items()
        if pool in ("", name)
    ]


def tiles(frame: Frame, pool: str) -> list[dict[str, Any]]:
    columns = frame["instances"]
    rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    return [
        {**row, "tick": BLANK_TILE["tick"], "fill": round((row["kv"] or 0) * 100, 1), "href": instance_link(row["id"])}
        for row in rows
        if pool in ("", row["pool"])
    ]


def classes(frame: Frame, pool: str, slos: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    chosen = shown_pool(frame, pool)
    windows = frame["classes"].get(chosen, {})
    means = frame["policies"][chosen]["means"] if chosen in frame["policies"] else {}
    return [_class(name, windows.get(name), means.get(name, ""), slos.get(name, {})) for name in CLASSES]


def shown_pool(frame: Frame, pool: str) -> str:
    """Class metrics of the page: of the chosen pool, of the only pool, or summed over all pools."""
    if pool:
        return pool
    return next(iter(frame["pools"])) if len(frame["pools"]) == 1 else ALL_POOLS


def slo(frame: Frame | None, pool: str, asked: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """By class and metric, in ms. Of all pools: what those with an SLO agree on."""
    shown = [known for name, known in (frame["pools"] if frame else {}).items() if pool in ("", name)]
    declared = {name: {known["slo"][name] for known in shown if name in known["slo"]} for name in CLASSES}
    return {
        name: {**({"ttft": next(iter(limits))} if len(limits) == 1 else {}), **asked}
        for name, limits in declared.items()
    }


def _class(name: str, window: ClassWindow | None, means: str, slos: Mapping[str, float]) -> dict[str, Any]:
    lines = [_line(metric, window) for metric in LATENCIES]
    limit = slos.get("ttft")
    return {
        "name": name, "means": means, "window": window, "latencies": lines, "slo": limit,
        "verdict": verdict(window, limit), "verdict_status": VERDICTS[verdict(window, limit)],
    }  # fmt: skip


def _line(metric: LatencyMetric, window: ClassWindow | None) -> dict[str, Any]:
    n = window[metric.count] if window else None
    values = window[metric.key] if window else (None,) * len(PERCENTILES)
    return {"key": metric.key, "label": metric.label, "values": values, "n": n, "few": n is not None and n < LOW_N}


def totals(frame: Frame, pool: str) -> dict[str, Any]:
    """Sums over the shown instances; None where no instance reported a value."""
    columns = frame["instances"]
    shown = [i for i, name in enumerate(columns["pool"]) if pool in ("", name)]
    sums = {key: _sum([columns[key][i] for i in shown]) for key in ("running", "waiting", "tokens_s")}
    windows = frame["classes"].get(shown_pool(frame, pool), {}).values()
    cost = economics([[columns[key][i] for i in shown] for key in ("tokens_s", "gpus", "dollars_h")])
    return {**sums, **cost, "rate": _sum([window["rate"] for window in windows if window is not None])}


def economics(columns: list[list[float | None]]) -> dict[str, float | None]:
    """Of the shown instances' output tokens; `columns`: tokens/s, GPUs, dollars an hour. None where one is unknown.

    static/js/live_panels.js computes the same.
    """
    tokens_s, gpus, dollars_h = (sum(value or 0 for value in column) for column in columns)
    per_gpu = tokens_s / gpus if gpus and tokens_s else None
    return {"tokens_gpu_s": per_gpu, "per_million": per_million(dollars_h, tokens_s) if per_gpu else None}


def _sum(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return round(sum(known), 1) if known else None
