"""Reads the audit log, newest first."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from operator import or_

from django.db.models import Q, QuerySet

from controlplane.people.audit.models import AuditEntry
from fleet.spec import masking

PAGE = 50
FIRST_DAY, LAST_DAY = date(2000, 1, 1), date(2999, 12, 31)
EXPORTED = 5_000  # entries of a download, newest first


@dataclass(frozen=True, slots=True)
class AuditFilters:
    actor: str = ""
    action: str = ""
    subject: str = ""
    before: int | None = None  # return only entries with a smaller id
    since: date | None = None  # first day, from its beginning in UTC
    until: date | None = None  # last day


def entries(filters: AuditFilters) -> QuerySet[AuditEntry]:
    rows = AuditEntry.objects.order_by("-pk")
    if filters.actor:
        rows = rows.filter(actor_name=filters.actor)
    if filters.action:
        rows = rows.filter(action=filters.action)
    if filters.subject:
        rows = rows.filter(subject__contains=filters.subject)
    if filters.before is not None:
        rows = rows.filter(pk__lt=filters.before)
    if filters.since is not None:
        rows = rows.filter(at__gte=_begin(filters.since))
    if filters.until is not None:
        rows = rows.filter(at__lt=_begin(filters.until) + timedelta(days=1))
    return rows


def _begin(day: date) -> datetime:
    day = min(max(day, FIRST_DAY), LAST_DAY)  # a day after the last day is not a date
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def day_of(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def page(filters: AuditFilters, size: int = PAGE) -> tuple[list[AuditEntry], int | None]:
    """Return up to `size` entries, and the id to pass as `before` for the next page; None on the last page."""
    rows = [_shown(row) for row in entries(filters)[: size + 1]]
    return rows[:size], rows[size - 1].pk if len(rows) > size else None


def newest_id() -> int:
    return AuditEntry.objects.order_by("-pk").values_list("pk", flat=True).first() or 0


def after(newest: int, kinds: Iterable[str], most: int) -> list[AuditEntry]:
    """Return the newest entries about these kinds of objects whose id is above this one."""
    of_kinds = reduce(or_, (Q(action__startswith=f"{kind}.") for kind in kinds))
    return [_shown(row) for row in AuditEntry.objects.filter(of_kinds, pk__gt=newest).order_by("-pk")[:most]]


def exported(filters: AuditFilters) -> Iterator[AuditEntry]:
    return (_shown(row) for row in entries(filters)[:EXPORTED].iterator(chunk_size=500))


def _shown(row: AuditEntry) -> AuditEntry:
    """Return the row without secrets, because rows of earlier versions contain the environment of engines in clear
    text."""
    row.before, row.after = masking.shown(row.before), masking.shown(row.after)
    return row


def known(field: str) -> list[str]:
    """Return the first 200 distinct values by name, as choices for a filter."""
    return list(AuditEntry.objects.order_by(field).values_list(field, flat=True).distinct()[:200])
