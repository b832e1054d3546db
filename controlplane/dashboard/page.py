"""Rows of a frame for the templates. Pure; static/js updates the same page from the next frame on."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from controlplane.dashboard import history
from controlplane.dashboard.frame.attention import instance_link
from controlplane.dashboard.frame.latency import ALL_POOLS, LATENCIES, PERCENTILES, LatencyMetric
from controlplane.dashboard.frame.slo import LOW_N, VERDICTS, verdict
from controlplane.dashboard.frame.status import BROKEN
from controlplane.dashboard.frame.types import AttentionItem, ClassWindow, Frame, LivePolicy, ShownDelivery, ShownEvent
from fleet.systems.prices import per_million
from router.contract.redis import staleness
from router.policy.types import CLASSES

TILES_SHOWN = 128
# Statuses in which an instance is as configured if its record says that. Others: unknown, or still on the way.
CERTAIN = ("ready", "saturated", "draining", "drained", "stopped")


@dataclass(frozen=True, slots=True)
class Tile:
    id: str = ""
    status: str = "unseen"
    reason: str = ""
    kv: float | None = None  # 0–1
    hit_rate: float | None = None
    running: float | None = None
    waiting: float | None = None
    age_s: float | None = None
    matches: bool = False
    href: str = ""
    fill: float | None = None  # % of the bar
    tick: int = 100  # % of the bar: the limit of the pool's policy


@dataclass(frozen=True, slots=True)
class LatencyLine:
    key: str
    label: str
    values: Sequence[float | None]  # by PERCENTILES
    n: int | None
    few: bool


@dataclass(frozen=True, slots=True)
class ClassPanel:
    name: str
    means: str
    window: ClassWindow | None
    latencies: list[LatencyLine]
    slo: float | None
    verdict: str
    verdict_status: str


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """The policy of a shown pool, with its deliveries."""

    pool: str
    live: LivePolicy
    simulated: bool
    saving: dict[str, str] | None
    tiers: str | None
    deliveries: list[ShownDelivery]


class LivePanels(NamedTuple):
    """What the pages show besides the charts."""

    frame: Frame | None
    classes: list[ClassPanel]
    attention: list[AttentionItem] = []
    events: list[ShownEvent] = []
    tiles: list[Tile] = []
    hidden_tiles: int = 0
    tile_total: int = 0
    counts: Mapping[str, int] = {}
    matching: int = 0
    policies: list[PoolPolicy] = []
    totals: Mapping[str, float | None] = {}
    blank: Tile = Tile()


def panels(frame: Frame | None, pool: str, slos: Mapping[str, Mapping[str, float]]) -> LivePanels:
    """An empty `pool` means all pools. `slos`: by class and metric."""
    if frame is None:
        return LivePanels(None, [_class(name, None, "", {}) for name in CLASSES])
    shown = tiles(frame, pool)
    return LivePanels(
        frame,
        classes(frame, pool, slos),
        attention=[item for item in frame["attention"] if concerns(item, pool)],
        events=[event for event in frame["events"] if concerns(event, pool)],
        tiles=shown[:TILES_SHOWN],
        hidden_tiles=max(0, len(shown) - TILES_SHOWN),
        tile_total=len(shown),
        counts=frame["counts"] if not pool else dict(Counter(tile.status for tile in shown)),
        matching=sum(tile.matches and tile.status in CERTAIN for tile in shown),
        policies=policies(frame, pool),
        totals=totals(frame, pool),
    )


# Constants that static/js shares with these pages.
CONSTANTS = {
    "latencies": [metric.key for metric in LATENCIES],
    "percentiles": list(PERCENTILES),
    "counts": history.COUNTS,
    "lowN": LOW_N,
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


def policies(frame: Frame, pool: str) -> list[PoolPolicy]:
    return [
        PoolPolicy(
            pool=name,
            live=live,
            simulated=frame["pools"][name]["simulated"],
            saving=frame["savings"].get(name),
            tiers=frame["tiers"].get(name),
            deliveries=[line for line in frame["deliveries"] if name in line["pools"]],
        )
        for name, live in frame["policies"].items()
        if pool in ("", name)
    ]


TILE_COLUMNS = ("id", "status", "reason", "kv", "hit_rate", "running", "waiting", "age_s", "matches")


def tiles(frame: Frame, pool: str) -> list[Tile]:
    columns = frame["instances"]
    rows = zip(*(columns[name] for name in TILE_COLUMNS), strict=True)
    limits = {name: round(known["kv_limit"] * 100) for name, known in frame["pools"].items()}
    shown = [
        replace(tile, href=instance_link(tile.id), fill=round((tile.kv or 0) * 100, 1), tick=limits[of_pool])
        for of_pool, tile in zip(columns["pool"], (Tile(*row) for row in rows), strict=True)
        if pool in ("", of_pool)
    ]
    return sorted(shown, key=lambda tile: tile.status not in BROKEN)


def classes(frame: Frame, pool: str, slos: Mapping[str, Mapping[str, float]]) -> list[ClassPanel]:
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
    """SLOs by class and metric, in ms. Over all pools: the limits on which every pool with an SLO agrees."""
    shown = [known for name, known in (frame["pools"] if frame else {}).items() if pool in ("", name)]
    declared = {name: {known["slo"][name] for known in shown if name in known["slo"]} for name in CLASSES}
    return {
        name: {**({"ttft": next(iter(limits))} if len(limits) == 1 else {}), **asked}
        for name, limits in declared.items()
    }


def _class(name: str, window: ClassWindow | None, means: str, slos: Mapping[str, float]) -> ClassPanel:
    limit = slos.get("ttft")
    lines, word = [_line(metric, window) for metric in LATENCIES], verdict(window, limit)
    return ClassPanel(name, means, window, lines, limit, word, VERDICTS[word])


def _line(metric: LatencyMetric, window: ClassWindow | None) -> LatencyLine:
    if window is None:
        return LatencyLine(metric.key, metric.label, (None,) * len(PERCENTILES), None, few=False)
    n = window[metric.count]
    return LatencyLine(metric.key, metric.label, window[metric.key], n, n < LOW_N)


def totals(frame: Frame, pool: str) -> dict[str, float | None]:
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
