"""Data that the server provides for Live and the wall. static/js draws both pages, at first from the frame in the page;
without scripts, Live is a table of that frame."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from controlplane.live.dashboard import history
from controlplane.live.dashboard.frame.slo import LOW_N
from controlplane.live.dashboard.frame.types import ALL_POOLS, LATENCIES, PERCENTILES, Frame
from router.contract.redis import staleness
from router.policy.types import CLASSES

CONSTANTS = {
    "classes": CLASSES,
    "latencies": [metric.key for metric in LATENCIES],
    "percentiles": list(PERCENTILES),
    "counts": history.COUNTS,
    "lowN": LOW_N,
    "sampleStaleS": staleness.SAMPLE_STALE_S,
    "sampleOfflineS": staleness.SAMPLE_OFFLINE_S,
    "workerDownS": staleness.WORKER_DOWN_S,
    "frameOldS": staleness.FRAME_OLD_S,
}

EVENTS_UNSCRIPTED = 10
NO_TTFT = (None,) * len(PERCENTILES)


def unscripted(frame: Frame, pool: str) -> dict[str, object]:
    """Return a pool's part of the frame, or the whole frame, for templates/live/unscripted.html."""
    columns = (frame["instances"][key] for key in ("pool", "status", "last_known"))
    statuses = [(status, known) for of, status, known in zip(*columns, strict=True) if pool in ("", of)]
    # Sums add nothing if there is only one pool
    only = next(iter(frame["pools"]), "") if len(frame["pools"]) == 1 else ALL_POOLS
    classes = frame["classes"].get(pool or only, {})
    windows = [(name, classes.get(name)) for name in CLASSES]
    return {
        "at": frame["at"],
        "banners": frame["banners"],
        "counts": [(*each, number) for each, number in Counter(statuses).items()],
        "totals": frame["totals"].get(pool or ALL_POOLS),
        "classes": [(name, window, (window and window["ttft"]) or NO_TTFT) for name, window in windows],
        "percentiles": list(PERCENTILES),
        "attention": _concerning(frame["attention"], pool),
        "events": _concerning(frame["events"], pool)[:EVENTS_UNSCRIPTED],
    }


def _concerning(items: Sequence[Any], pool: str) -> list[Any]:
    return [item for item in items if not pool or not item["pools"] or pool in item["pools"]]
