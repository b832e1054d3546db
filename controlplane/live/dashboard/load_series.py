"""The load of some instances over time, one line per figure: for the pages of an instance, a pool and a node. Pure."""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple, TypedDict

from controlplane.live.dashboard import history
from controlplane.live.dashboard.frame.slo import LOW_N
from controlplane.live.dashboard.frame.types import Frame, HistoryRow, ShownEvent
from controlplane.live.dashboard.kept_row import kv_usage
from controlplane.live.dashboard.kept_row import names as names_of

COLUMN = {"instance": "id", "pool": "pool", "node": "node"}  # column of a frame by the subject of a page


class MomentLoad(NamedTuple):
    """The load of all selected instances together; None if none of them reported it."""

    kv: float | None = None  # mean
    kv_highest: float | None = None
    running: float | None = None
    waiting: float | None = None
    hits: float | None = None  # mean


class LoadSeries(TypedDict):
    until: float
    bin_s: int
    at: list[float]
    load: dict[str, list[float | None]]  # by fields of MomentLoad
    ttft: dict[str, list[float | None]]  # p90 in ms by class of the pool
    kv_limit: float | None  # limit in the pool's policy
    events: list[ShownEvent]


class ChosenInstances(NamedTuple):
    names: frozenset[str]  # names of instances
    pool: str  # pool of the instances; empty if they have none, or several


def chosen(frame: Frame, of: str, name: str) -> ChosenInstances:
    columns = frame["instances"]
    places = [i for i, value in enumerate(columns[COLUMN[of]]) if value == name]
    pools = {columns["pool"][i] for i in places}
    return ChosenInstances(frozenset(columns["id"][i] for i in places), pools.pop() if len(pools) == 1 else "")


def series(frame: Frame, shown: ChosenInstances, rows: Sequence[HistoryRow], now: float, seconds: int) -> LoadSeries:
    points = history.points(rows, now, seconds)
    kept = [row for _, row in points]
    loads = [_load(row, shown.names) for row in kept]
    pool = frame["pools"].get(shown.pool)
    return {
        "until": now,
        "bin_s": history.bin_seconds(seconds),
        "at": [at for at, _ in points],
        "load": {key: [point[i] for point in loads] for i, key in enumerate(MomentLoad._fields)},
        "ttft": _ttft(kept, shown.pool),
        "kv_limit": pool["kv_limit"] if pool else None,
        "events": [
            event for event in frame["events"] if not event["pools"] or not shown.pool or shown.pool in event["pools"]
        ],
    }


def _load(row: HistoryRow | None, names: Collection[str]) -> MomentLoad:
    if row is None:
        return MomentLoad()
    places = [i for i, name in enumerate(names_of(row["ids"])) if name in names]
    kv = _known([kv_usage(row["kv"][i]) for i in places])
    moment = MomentLoad(_mean(kv), max(kv, default=None))
    loads = row.get("loads")
    if loads is None:
        return moment
    running, waiting, hits = (
        _known([column[i] for i in places]) for column in (loads["running"], loads["waiting"], loads["hits"])
    )
    return moment._replace(running=_sum(running), waiting=_sum(waiting), hits=_mean(hits))


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _sum(known: Sequence[float]) -> float | None:
    return sum(known) if known else None


def _mean(known: Sequence[float]) -> float | None:
    return round(sum(known) / len(known), 4) if known else None


def _ttft(rows: Sequence[HistoryRow | None], pool: str) -> dict[str, list[float | None]]:
    """Return TTFT p90 by class; classes with few requests have none."""
    return {
        name: [
            value if n is not None and n >= LOW_N else None
            for value, n in zip(columns["ttft_p90"], columns["n"], strict=True)
        ]
        for name, columns in history.pool_columns(rows, pool).items()
    }
