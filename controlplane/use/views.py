"""The page Use: what each key, pool or model consumed and cost in a time."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.accounts.decorators import operator_required
from controlplane.use.selectors import BY, UseQuery, lines, total

RANGES = {"day": "24 hours", "week": "7 days", "month": "this month", "last_month": "last month", "year": "12 months"}
PERS = {"": "in all", "hour": "by hour", "day": "by day", "month": "by month"}


@operator_required
@require_GET
@never_cache
def use(request: HttpRequest) -> HttpResponse:
    asked = {
        "range": _one_of(request, "range", RANGES, "week"),
        "by": _one_of(request, "by", BY, "key"),
        "per": _one_of(request, "per", PERS, ""),
    }
    if asked["per"] == "hour" and asked["range"] == "year":
        asked["per"] = "day"
    begin, end = span(asked["range"], timezone.now())
    found = lines(UseQuery(begin, end, (asked["by"],), asked["per"]))
    called = {"from": begin.isoformat(), "to": end.isoformat(), "by": asked["by"], "format": "csv"}
    context = {
        "asked": asked,
        "ranges": RANGES,
        "bys": BY,
        "pers": PERS,
        "lines": found,
        "total": total(found),
        "begin": begin,
        "end": end,
        "csv": urlencode(called | ({"per": asked["per"]} if asked["per"] else {})),
    }
    return render(request, "use/use.html", context)


def _one_of(request: HttpRequest, name: str, allowed: object, default: str) -> str:
    given = request.GET.get(name, default)
    return given if given in allowed else default  # type: ignore[operator]


def span(name: str, now: datetime) -> tuple[datetime, datetime]:
    """(begin, end) of a range, in UTC."""
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
