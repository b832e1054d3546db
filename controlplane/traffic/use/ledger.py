"""Adds use to the ledger: hours as reported, days once the hours are old."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db import transaction
from django.db.models import F, Max, Sum
from msgspec import to_builtins

from controlplane.traffic.use.models import COUNTS, Use, UseReport
from router.contract.redis.use import HOUR_S, UseHour, UseRow
from router.contract.values.reading import read_value

DAY_S = 86_400
HOURS_KEPT = timedelta(days=35)  # age at which hours become days
NONE = -1  # number of a report if nothing of the hour has been taken yet
REPORTS_KEPT = timedelta(days=9)  # longer than the time for which a router may send an hour again


@dataclass(frozen=True, slots=True)
class Entry:
    """The key of a row of the ledger, apart from its time."""

    key: str
    pool: str
    model: str = ""


def start_of(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * HOUR_S, UTC)


@transaction.atomic
def take(life: str, value: UseHour) -> None:
    """Add the difference between this report and the previous one for the same hour. Of two concurrent callers, only
    the one that writes the report's row adds the difference.
    """
    before, _ = UseReport.objects.get_or_create(life=life, hour=value.hour, defaults={"written": NONE, "rows": []})
    report = {"written": value.written, "rows": to_builtins(value.rows)}
    same = UseReport.objects.filter(pk=before.pk, written=before.written)
    if before.written >= value.written or not same.update(**report):
        return
    known = _counted(read_value(before.rows, list[UseRow]))
    names = {_entry(row): row.name[:100] for row in value.rows}
    for entry, counts in _counted(value.rows).items():
        more = [now - then for now, then in zip(counts, known.get(entry, [0] * len(COUNTS)), strict=True)]
        if any(more):
            add(start_of(value.hour), HOUR_S, entry, names[entry], dict(zip(COUNTS, more, strict=True)))


def _entry(row: UseRow) -> Entry:
    return Entry(row.key[:100], row.pool[:100], row.model[:200])


def _counted(rows: Iterable[UseRow]) -> dict[Entry, Sequence[int]]:
    found: defaultdict[Entry, list[int]] = defaultdict(lambda: [0] * len(COUNTS))
    for row in rows:
        entry = _entry(row)
        found[entry] = [had + getattr(row.counts, name) for had, name in zip(found[entry], COUNTS, strict=True)]
    return dict(found)


def add(start: datetime, seconds: int, entry: Entry, name: str, counts: Mapping[str, int]) -> None:
    """Add counts to a row. Call this inside a transaction."""
    place = {"start": start, "seconds": seconds, "key": entry.key, "pool": entry.pool, "model": entry.model}
    more = {field: F(field) + count for field, count in counts.items() if count}
    if not Use.objects.filter(**place).update(name=name, **more):
        Use.objects.create(**place, name=name, **counts)


def clean_up(now: datetime) -> None:
    """Sum old hours into days, and delete reports that routers will not send again."""
    UseReport.objects.filter(at__lt=now - REPORTS_KEPT).delete()
    until = (now - HOURS_KEPT).replace(hour=0, minute=0, second=0, microsecond=0)
    old = Use.objects.filter(seconds=HOUR_S, start__lt=until)
    while (oldest := old.order_by("start").values_list("start", flat=True).first()) is not None:
        _make_day(oldest.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0))


@transaction.atomic
def _make_day(day: datetime) -> None:
    hours = Use.objects.filter(seconds=HOUR_S, start__gte=day, start__lt=day + timedelta(seconds=DAY_S))
    sums = {f"sum_{name}": Sum(name) for name in COUNTS}
    for row in hours.values("key", "pool", "model").annotate(last=Max("name"), **sums).order_by():
        counts = {name: row[f"sum_{name}"] for name in COUNTS}
        add(day, DAY_S, Entry(row["key"], row["pool"], row["model"]), row["last"], counts)
    hours.delete()
