"""The cost over time as stacked bars, one for each hour, day or month: each key, pool or model, and the idle part on
top."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.traffic.use.selectors import IDLE, UseLine

PER = {"day": "hour", "week": "day", "month": "day", "last_month": "day", "year": "month"}  # by range of the page
HEIGHT = 100.0  # height of the highest bar, and the width of each
NAMED = 5  # most expensive keys, pools or models, each with its own part; all others share one
OTHERS = "others"


@dataclass(frozen=True, slots=True)
class UsePart:
    name: str
    shade: str  # 1 to 6, or idle
    dollars: float
    y: float  # upper edge
    height: float


@dataclass(frozen=True, slots=True)
class Bar:
    start: datetime
    x: float
    parts: tuple[UsePart, ...]  # parts from the bottom, in the order of the chart's names

    @property
    def dollars(self) -> float:
        return sum(part.dollars for part in self.parts)


@dataclass(frozen=True, slots=True)
class UseChart:
    per: str
    names: tuple[tuple[str, str], ...]  # (name, shade), from the bottom
    bars: tuple[Bar, ...]

    @property
    def highest(self) -> Bar:
        return max(self.bars, key=lambda bar: bar.dollars)

    @property
    def width(self) -> float:
        return HEIGHT * len(self.bars)


def chart_of(lines: Sequence[UseLine], by: str, begin: datetime, end: datetime, per: str) -> UseChart | None:
    """Draw `lines`, summed by `by` (key, pool, model) and `per`. Return None if nothing had a cost."""
    sums: dict[datetime, defaultdict[str, float]] = {each: defaultdict(float) for each in _starts(begin, end, per)}
    in_time = [line for line in lines if line.start in sums and line.dollars]
    names = _names(in_time, by)
    shades = tuple((name, "idle" if key == IDLE else str(i + 1)) for i, (key, name) in enumerate(names.items()))
    for line in in_time:
        key = IDLE if line.idle else getattr(line, by)
        sums[line.start][key if key in names else OTHERS] += line.dollars  # type: ignore[index]
    most = max((sum(parts.values()) for parts in sums.values()), default=0.0)
    if not most:
        return None
    stacks = ([parts[key] for key in names] for parts in sums.values())
    bars = (
        Bar(start, i * HEIGHT, tuple(_parts(shades, stack, HEIGHT / most)))
        for i, (start, stack) in enumerate(zip(sums, stacks, strict=True))
    )
    return UseChart(per, shades, tuple(bars))


def _names(lines: Iterable[UseLine], by: str) -> dict[str, str]:
    """Return the parts of the chart with their names: the most expensive first, then all others, then idle."""
    labels: dict[str, str] = {}
    cost: Counter[str] = Counter()
    idle = False
    for line in lines:
        idle |= line.idle
        if not line.idle:
            key = getattr(line, by)
            labels[key] = line.label
            cost[key] += line.dollars  # type: ignore[assignment]
    named = [key for key, _ in cost.most_common(NAMED)]
    found = {key: labels[key] for key in named}
    if len(cost) > NAMED:
        found[OTHERS] = f"{len(cost) - NAMED} {OTHERS}"
    return found | ({IDLE: "idle"} if idle else {})


def _parts(shades: Sequence[tuple[str, str]], stack: Sequence[float], scale: float) -> Iterator[UsePart]:
    top = HEIGHT
    for (name, shade), dollars in zip(shades, stack, strict=True):
        top -= dollars * scale
        yield UsePart(name, shade, dollars, top, dollars * scale)


def _starts(begin: datetime, end: datetime, per: str) -> Iterator[datetime]:
    start = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    start = start if per == "hour" else start.replace(hour=0)
    start = start.replace(day=1) if per == "month" else start
    while start < end:
        yield start
        following = start + {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=31)}[per]
        start = following.replace(day=1) if per == "month" else following
