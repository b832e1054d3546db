"""What an API key or a pool may spend in a period of the calendar, as the control plane publishes it and routers count
it. Pure.

Spending is a counter that only grows, one for each life of a router: in Redis (weir:budget:<id>:<period>, router/sync/
budget_store.py) and in the database, which are merged by taking the greater of each.
"""

from datetime import UTC, datetime
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

Unit = Literal["tokens", "dollars", "requests"]
Per = Literal["hour", "day", "week", "month"]
OLDEST: tuple[tuple[str, ...], tuple[str, ...]] = (("tokens", "dollars"), ("day", "month"))  # routers of 0.2 read these
MICRO = 1_000_000  # parts of a dollar in which budgets and their spending are counted
LARGEST = 2**52  # so that sums are exact in Redis' scripts

Amount = Annotated[int, Meta(gt=0, le=LARGEST)]


class PublishedBudget(Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    unit: Unit
    per: Per
    limit: Amount  # tokens, micro-dollars or requests
    refuse: bool = True  # what goes beyond; False: it is only counted

    @property
    def each(self) -> str:
        return f"{'an' if self.per == 'hour' else 'a'} {self.per}"

    def text(self, amount: int) -> str:
        return f"${amount / MICRO:,.2f}" if self.unit == "dollars" else f"{amount:,} {self.unit}"


class Period(NamedTuple):
    """An hour, a day, a week (from Monday) or a month of the calendar, in UTC."""

    name: str  # 2026-11-26T09, 2026-11-26, 2026-W48 or 2026-11
    begins: float  # Unix s
    ends: float


def period_of(per: Per, at: float) -> Period:
    hour = datetime.fromtimestamp(at, UTC).replace(minute=0, second=0, microsecond=0)
    if per == "hour":
        return Period(f"{hour:%Y-%m-%dT%H}", hour.timestamp(), hour.timestamp() + 3600)
    day = hour.replace(hour=0)
    if per == "week":
        monday = day.timestamp() - day.weekday() * 86_400
        return Period(f"{day:%G-W%V}", monday, monday + 7 * 86_400)
    if per == "day":
        return Period(f"{day:%Y-%m-%d}", day.timestamp(), day.timestamp() + 86_400)
    first = day.replace(day=1)
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return Period(f"{first:%Y-%m}", first.timestamp(), following.timestamp())
