"""Budgets of API keys and pools, for a calendar period or without end: published by the control plane, counted by
routers. Pure. Each start of a router has its own counter of spending, which only grows, in Redis
(weir:budget:<id>:<period>, router/sync/token_bucket_store.py) and in the database; the greater of two readings counts.
"""

from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from typing import Annotated, Literal, NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from msgspec import Meta, Struct

Unit = Literal["tokens", "dollars", "requests"]
Per = Literal["hour", "day", "week", "month", "ever"]
MICRO = 1_000_000  # budgets and spending are counted in millionths of a dollar
KEPT_S = 2 * 86_400  # time that Redis keeps a period's counters after its end
LARGEST = 2**52  # keeps sums exact in Redis scripts

Amount = Annotated[int, Meta(gt=0, le=LARGEST)]


class PublishedBudget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    unit: Unit
    per: Per
    limit: Amount  # tokens, micro-dollars or requests
    refuse: bool = True  # True: refuse requests beyond the limit; False: only count them
    zone: str = "UTC"  # time zone of the calendar's days, weeks and months

    @property
    def each(self) -> str:
        return "in all" if self.per == "ever" else f"{'an' if self.per == 'hour' else 'a'} {self.per}"

    def period(self, at: float) -> "Period":
        return period_of(self.per, at, self.zone)

    def text(self, amount: int) -> str:
        return f"${amount / MICRO:,.2f}" if self.unit == "dollars" else f"{amount:,} {self.unit}"


class Period(NamedTuple):
    """A calendar hour (UTC), day, week (from Monday) or month, or all of time."""

    name: str  # 2026-11-26T09, 2026-11-26, 2026-W48, 2026-11 or ever
    begins: float  # Unix s
    ends: float

    def kept_until(self, at: float) -> int:
        """Return the Unix time after which Redis may forget the period, as far as it is known now."""
        return int(min(self.ends, at + 31 * 86_400) + KEPT_S)


EVER = Period("ever", 0.0, datetime(9999, 1, 1, tzinfo=UTC).timestamp())


def period_of(per: Per, at: float, zone: str = "UTC") -> Period:
    if per == "ever":
        return EVER
    if per == "hour":
        hour = datetime.fromtimestamp(at, UTC).replace(minute=0, second=0, microsecond=0)
        return Period(f"{hour:%Y-%m-%dT%H}", hour.timestamp(), hour.timestamp() + 3600)
    day = datetime.fromtimestamp(at, zone_of(zone)).replace(hour=0, minute=0, second=0, microsecond=0)
    if per == "week":
        monday = day - timedelta(days=day.weekday())
        return Period(f"{day:%G-W%V}", monday.timestamp(), (monday + timedelta(days=7)).timestamp())
    if per == "day":
        return Period(f"{day:%Y-%m-%d}", day.timestamp(), (day + timedelta(days=1)).timestamp())
    first = day.replace(day=1)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return Period(f"{first:%Y-%m}", first.timestamp(), following.timestamp())


@cache
def zone_of(name: str) -> tzinfo:
    """Return the time zone, or UTC if this host does not know it: a budget with shifted day boundaries is better than
    none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return UTC
