"""The cost of a time as bars, one for each hour, day or month: requests, and on top of them what was idle."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.use.selectors import UseLine

PER = {"day": "hour", "week": "day", "month": "day", "last_month": "day", "year": "month"}  # by range of the page
HEIGHT = 100.0  # of the highest bar, and the width of each


@dataclass(frozen=True, slots=True)
class Bar:
    start: datetime
    requests: float  # dollars
    idle: float  # dollars
    x: float
    requests_height: float
    idle_height: float

    @property
    def dollars(self) -> float:
        return self.requests + self.idle

    @property
    def requests_y(self) -> float:
        return HEIGHT - self.requests_height

    @property
    def idle_y(self) -> float:
        return self.requests_y - self.idle_height


@dataclass(frozen=True, slots=True)
class Chart:
    per: str
    bars: tuple[Bar, ...]

    @property
    def highest(self) -> Bar:
        return max(self.bars, key=lambda bar: bar.dollars)

    @property
    def width(self) -> float:
        return HEIGHT * len(self.bars)


def chart_of(lines: Iterable[UseLine], begin: datetime, end: datetime, per: str) -> Chart | None:
    """`lines`: summed by `per`. None where nothing cost anything."""
    sums = {start: [0.0, 0.0] for start in _starts(begin, end, per)}
    for line in lines:
        if line.start in sums:
            sums[line.start][line.idle] += line.dollars
    most = max(map(sum, sums.values()), default=0.0)
    if not most:
        return None
    scale = HEIGHT / most
    return Chart(
        per,
        tuple(
            Bar(start, used, idle, i * HEIGHT, used * scale, idle * scale)
            for i, (start, (used, idle)) in enumerate(sums.items())
        ),
    )


def _starts(begin: datetime, end: datetime, per: str) -> Iterator[datetime]:
    start = begin.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    start = start if per == "hour" else start.replace(hour=0)
    start = start.replace(day=1) if per == "month" else start
    while start < end:
        yield start
        following = start + {"hour": timedelta(hours=1), "day": timedelta(days=1), "month": timedelta(days=31)}[per]
        start = following.replace(day=1) if per == "month" else following
