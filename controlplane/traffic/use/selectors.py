"""Sums use over a period by key, pool or model, with the idle part."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, Max, QuerySet, Sum, Value
from django.db.models.functions import TruncDay, TruncHour, TruncMonth

from controlplane.traffic.use.ledger import HOURS_KEPT
from controlplane.traffic.use.models import COUNTS, HELD, Use
from router.contract.values.problem import invalid

IDLE = "(idle)"
BY = ("key", "pool", "model")
LONGEST = {"": timedelta(days=3660), "month": timedelta(days=3660), "day": timedelta(days=400), "hour": HOURS_KEPT}
_TRUNC: Mapping[str, Any] = {"hour": TruncHour, "day": TruncDay, "month": TruncMonth}
_SHOWN_AS = {"gpu_us": "gpu_seconds", "micro_dollars": "dollars", "audio_ms": "audio_seconds"}
COLUMNS = ("start", *BY, "name", *(_SHOWN_AS.get(name, name) for name in COUNTS))
_SUMMED = tuple(name for name in COUNTS if name not in ("gpu_us", "micro_dollars"))  # counts summed without scaling


@dataclass(slots=True, kw_only=True)
class UseLine:
    """A sum of use. Key, pool and model are None if lines are summed over them; idle lines have only GPU-seconds and
    dollars."""

    start: datetime | None  # start of the period; None for the whole time
    key: str | None = None  # id; empty without a key
    name: str | None = None
    pool: str | None = None
    model: str | None = None
    idle: bool = False
    requests: int = 0
    refused: int = 0
    failed: int = 0
    cancelled: int = 0
    input_tokens: int = 0  # including cached tokens
    cached_tokens: int = 0
    output_tokens: int = 0
    estimated: int = 0  # requests whose engine reported no usage
    gpu_seconds: float = 0.0
    dollars: float = 0.0
    audio_ms: int = 0  # length of transcribed audio
    images: int = 0
    client_errors: int = 0

    @property
    def label(self) -> str:
        if self.idle:
            return IDLE
        if self.name is not None:
            return self.name or "no key"
        return self.pool or self.model or "no pool" if self.pool is not None or self.model is not None else "all"

    @property
    def audio_seconds(self) -> float:
        return self.audio_ms / 1000

    @property
    def gpu_hours(self) -> float:
        return self.gpu_seconds / 3600

    def add(self, counts: Mapping[str, Any], gpu: float, money: float) -> None:
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + counts[name])
        self.gpu_seconds += gpu
        self.dollars += money


@dataclass(frozen=True, slots=True)
class UseQuery:
    """A query; `per` is hour, day, month, or empty for one line over the whole time. Raise InvalidInput."""

    begin: datetime
    end: datetime
    by: tuple[str, ...] = BY
    per: str = ""

    def __post_init__(self) -> None:
        longest = LONGEST[self.per]
        if self.begin >= self.end:
            raise invalid("from", self.begin.isoformat(), "not before the end", f"before {self.end.isoformat()}")
        if self.end - self.begin > longest:
            allowed = f"{longest.days} days before the end at most" + (f" with per={self.per}" if self.per else "")
            raise invalid("from", self.begin.isoformat(), "too long ago", allowed)


def lines(query: UseQuery) -> list[UseLine]:
    """Return the lines by time, and at equal times the most expensive first."""
    held: dict[tuple[Any, str], tuple[int, int]] = {}
    rows = []
    for row in _rows(query):
        if row["key"] == HELD:
            held[row["period"], row["pool"]] = (row["gpu_us"], row["micro_dollars"])
        else:
            rows.append(row)
    charged: defaultdict[tuple[Any, str], list[int]] = defaultdict(lambda: [0, 0])
    for row in rows:
        charged[row["period"], row["pool"]][0] += row["gpu_us"]
        charged[row["period"], row["pool"]][1] += row["micro_dollars"]
    found: dict[tuple[Any, ...], UseLine] = {}
    for row in rows:
        gpu, money = _scaled(row, held, charged)
        place = (row["period"], *(row[name] for name in query.by))
        line = found.get(place)
        if line is None:
            line = found[place] = UseLine(start=row["period"], **{name: row[name] for name in query.by})
        if "key" in query.by:
            line.name = row["last"]
        line.add(row, gpu, money)
    _add_idle(found, query, held, charged)
    return sorted(found.values(), key=_order)


def _order(line: UseLine) -> tuple[Any, ...]:
    dear = (-line.dollars, -line.input_tokens - line.output_tokens, line.label)
    return line.start or datetime.min.replace(tzinfo=UTC), line.idle, *dear


def _rows(query: UseQuery) -> Iterator[dict[str, Any]]:
    trunc = _TRUNC.get(query.per)
    period = trunc("start", tzinfo=UTC) if trunc is not None else Value(None, output_field=DateTimeField())
    rows: QuerySet[Use] = Use.objects.filter(start__gte=_floor(query.begin), start__lt=query.end)
    fields = {"period", "key", "pool", *query.by}
    sums = {name: Sum(name) for name in COUNTS}
    yield from rows.annotate(period=period).values(*sorted(fields)).annotate(last=Max("name"), **sums).order_by()


def _floor(at: datetime) -> datetime:
    """Return the start of the hour, or of the day for times whose hours were merged into days."""
    at = at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    return at.replace(hour=0) if at < datetime.now(UTC) - HOURS_KEPT - timedelta(days=1) else at


def _scaled(
    row: Mapping[str, Any], held: Mapping[Any, tuple[int, int]], charged: Mapping[Any, Sequence[int]]
) -> tuple[float, float]:
    """Return (GPU-seconds, dollars), scaled down to the bill: routers learn of each other's load late and may
    overcharge."""
    place = row["period"], row["pool"]
    gpu, money = row["gpu_us"] / 1e6, row["micro_dollars"] / 1e6
    if place not in held:
        return gpu, money
    limits = [min(1.0, most / sum_) if sum_ else 1.0 for most, sum_ in zip(held[place], charged[place], strict=True)]
    return gpu * limits[0], money * limits[1]


def _add_idle(
    found: dict[tuple[Any, ...], UseLine],
    query: UseQuery,
    held: Mapping[tuple[Any, str], tuple[int, int]],
    charged: Mapping[tuple[Any, str], Sequence[int]],
) -> None:
    for (period, pool), most in held.items():
        used = charged.get((period, pool), (0, 0))
        named = pool if "pool" in query.by else None
        line = found.setdefault((IDLE, period, named), UseLine(start=period, pool=named, idle=True))
        line.gpu_seconds += max(0, most[0] - used[0]) / 1e6
        line.dollars += max(0, most[1] - used[1]) / 1e6


def used_by(key: str, begin: datetime, end: datetime) -> UseLine:
    """Return the use of one key."""
    return total(line for line in lines(UseQuery(begin, end, ("key",))) if line.key == key)


def total(found: Iterable[UseLine]) -> UseLine:
    whole = UseLine(start=None)
    for line in found:
        whole.add({name: getattr(line, name) for name in _SUMMED}, line.gpu_seconds, line.dollars)
    return whole


def between(name: str, now: datetime) -> tuple[datetime, datetime]:
    """Return (begin, end) of a range, in UTC."""
    now = now.astimezone(UTC)
    month = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    begins = {
        "day": now - timedelta(days=1),
        "week": now - timedelta(days=7),
        "month": month,
        "last_month": (month - timedelta(days=1)).replace(day=1),
        "year": now - timedelta(days=365),
    }
    return begins[name], month if name == "last_month" else now
