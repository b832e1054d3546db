"""The Requests pages: recent receipts, and one decision explained."""

from dataclasses import dataclass, field
from itertools import islice

import redis
import structlog
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.dashboard.step import latest
from controlplane.policies.errors import NoSuchPolicy
from controlplane.receipts import explain
from controlplane.receipts.reader import OUTCOMES, ReceiptFilters, find, newer_than, newest_receipts, recent, written_at
from controlplane.receipts.replay import ReplayComparison, compare, own_rules, published, versions
from fleet.redis import connect
from router.contract.redis.receipt import Receipt
from router.contract.redis.redis_keys import RECEIPT_TTL_S, RECEIPTS_KEPT
from router.policy.replay import NotReplayable
from router.policy.types import CLASSES

log = structlog.get_logger(__name__)
SHOWN = 100
SEARCHED = 1_000  # newest receipts, for those like one


@dataclass(frozen=True, slots=True)
class RecentReceipts:
    since: float  # when the newest was written
    receipts: list[Receipt]
    pools: list[str]
    instances: list[str]  # of the asked pool


@require_GET
@never_cache
def receipts(request: HttpRequest) -> HttpResponse:
    filters = asked_filters(request)
    shown = None
    try:
        if request.htmx and "since" in request.GET:  # type: ignore[attr-defined]
            return _new_count(request, filters)
        shown = _recent(filters)
    except redis.RedisError as error:
        log.warning("requests.redis_down", error=str(error))
    context = {
        "filters": filters,
        "classes": CLASSES,
        "outcomes": OUTCOMES,
        "arms": ("candidate", "control"),
        "limit": SHOWN,
        "kept": RECEIPTS_KEPT,
        "recent": shown,
    }
    part = request.htmx and request.htmx.target == "receipts"  # type: ignore[attr-defined]
    return render(request, "requests/table.html" if part else "requests/list.html", context)


def _recent(filters: ReceiptFilters) -> RecentReceipts:
    client = connect()
    frame = latest(client)
    columns = frame["instances"] if frame else {"id": [], "pool": []}
    since = written_at(client)  # before the rows, so that a receipt written in between is announced
    instances = [name for name, pool in zip(columns["id"], columns["pool"], strict=True) if filters.pool in ("", pool)]
    return RecentReceipts(since, recent(client, filters, SHOWN), sorted(frame["pools"]) if frame else [], instances)


def _new_count(request: HttpRequest, filters: ReceiptFilters) -> HttpResponse:
    try:
        since = float(request.GET["since"])
    except ValueError:
        since = 0.0
    count = newer_than(connect(), filters, since)
    return render(request, "requests/new.html", {"count": count, "since": since, "filters": filters})


def asked_filters(request: HttpRequest) -> ReceiptFilters:
    keys = {"class": "request_class", **{key: key for key in ("pool", "instance", "outcome", "delivery", "arm")}}
    return ReceiptFilters(**{name: request.GET.get(key, "")[:200] for key, name in keys.items()})


@require_GET
@never_cache
def receipt(request: HttpRequest, request_id: str) -> HttpResponse:
    try:
        found = find(connect(), request_id)
    except redis.RedisError as error:
        log.warning("requests.redis_down", error=str(error))
        return render(request, "requests/away.html", {"id": request_id}, status=503)
    if found is None:
        context = {"id": request_id, "kept_minutes": RECEIPT_TTL_S // 60}
        return render(request, "requests/missing.html", context, status=404)
    context = {
        "replay": _replayed(request, found),
        "receipt": found,
        "request_class": found.request_class,
        "sentences": explain.sentences(found),
        "waterfall": explain.waterfall(found, _alike(found)),
        "candidates": explain.candidates(found),
    }
    part = request.htmx and request.htmx.target == "replay"  # type: ignore[attr-defined]
    return render(request, "requests/replay.html" if part else "requests/receipt.html", context)


def _alike(found: Receipt) -> list[Receipt]:
    """Recent answers of the same pool and class."""
    same = (found.pool, found.request_class, "ok")
    newest = islice(newest_receipts(connect()), SEARCHED)
    return [one for one in newest if (one.pool, one.request_class, one.outcome) == same]


@dataclass(frozen=True, slots=True)
class ReplayPanel:
    by: str  # POLICY:N
    comparison: ReplayComparison | None
    trouble: str = ""  # why there is none
    versions: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=versions)


def _replayed(request: HttpRequest, found: Receipt) -> ReplayPanel:
    """The decision again: by the version that made it, or by the one asked for as `by=POLICY:N`."""
    by = request.GET.get("by", "")[:200]
    name, _, number = by.rpartition(":")
    try:
        rules = published(name, int(number)) if by else own_rules(found)
        return ReplayPanel(f"{rules.policy}:{rules.version}", compare(found, rules))
    except (NoSuchPolicy, NotReplayable, ValueError) as error:
        return ReplayPanel(by, None, str(error))


@require_GET
def find_by_id(request: HttpRequest) -> HttpResponse:
    """The search field: a plain form, so that it works without scripts."""
    asked = request.GET.get("id", "").strip()
    return redirect("receipt", request_id=asked) if asked and "/" not in asked else redirect("requests")
