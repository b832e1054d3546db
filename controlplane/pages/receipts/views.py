"""The Requests pages: recent receipts, and the explanation of one decision."""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from urllib.parse import urlencode

import redis
import structlog
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET
from pydantic import ValidationError

from controlplane.common.input_errors import problems_of
from controlplane.live.dashboard.step import latest
from controlplane.pages.receipts import explain
from controlplane.pages.receipts.query import OUTCOMES, ReceiptQuery, declared_slos, end_of, missed_slo
from controlplane.pages.receipts.reader import alike, find, meanwhile, newer_than, search, written_at
from controlplane.pages.receipts.replay import ReplayComparison, compare, own_rules, published, versions
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.policies.errors import NoSuchPolicy
from fleet.redis import connect
from router.contract.redis.receipt import Receipt
from router.contract.redis.redis_keys import RECEIPT_TTL_S, RECEIPTS
from router.contract.values.problem import by_path
from router.policy.replay import NotReplayable, reasons
from router.policy.types import CLASSES

log = structlog.get_logger(__name__)
SHOWN = 100
LABELS = {
    "ttft_over_ms": "TTFT over", "e2e_over_ms": "E2E over", "since": "Received since", "until": "Received until",
    "ended_since": "Ended since", "ended_until": "Ended until",
}  # fmt: skip
TIMES = ("since", "until", "ended_since", "ended_until")
BESIDE = "requests/beside.html"
PARTS = {"replay": "requests/replay.html", "receipt-beside": BESIDE}  # template by id of the requesting element
LATEST = 1e12  # Unix s, within the range of Redis' ids
AWAITED_TRIES = 20  # attempts, half a second apart
LAST = ((60, "last minute"), (300, "last 5 min"), (900, "last 15 min"), (3600, "last hour"))


@dataclass(frozen=True, slots=True)
class RecentReceipts:
    after: float  # time when the newest one was written
    kept: int  # receipts in Redis that were searched
    # Receipts with the missed SLO, the phases, and the end in Unix seconds
    rows: list[tuple[Receipt, float | None, list[explain.TimelinePhase], float]]

    @property
    def legend(self) -> dict[str, str]:
        """Return the labels of the phases that occur, by name."""
        return {phase.name: phase.label for _, _, phases, _ in self.rows for phase in phases}


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of the filters."""

    pools: Sequence[str] = ()
    instances: Sequence[str] = ()  # instances of the chosen pool
    keys: Sequence[str] = ()
    classes: Sequence[str] = CLASSES
    outcomes: Sequence[str] = OUTCOMES
    arms: Sequence[str] = ("candidate", "control")
    sorts: Sequence[tuple[str, str]] = (
        ("newest", "last ended first"), ("ttft", "slowest TTFT"), ("e2e", "slowest E2E"), ("tpot", "slowest TPOT"),
        ("queue", "longest queued"),
    )  # fmt: skip
    last: Sequence[tuple[int, str]] = LAST
    latencies: Sequence[tuple[str, str, str]] = (
        ("queue", "Queued", "Time in the router's queue"), ("ttft", "TTFT", "Time to first token"),
        ("tpot", "TPOT", "Time per output token after the first"), ("e2e", "E2E", "The whole request, end to end"),
    )  # fmt: skip


@require_GET
@never_cache
def receipts(request: HttpRequest) -> HttpResponse:
    query, problems = asked(request.GET, time.time())
    shown, choices = None, Choices()
    try:
        if request.htmx and "after" in request.GET:  # type: ignore[attr-defined]
            return _new_count(request, query)
        shown, choices = _recent(query), _choices(query)
    except redis.RedisError as error:
        log.warning("requests.redis_down", error=str(error))
    context = {
        "query": query,
        "typed": request.GET,
        "more": bool(problems) or any(request.GET.get(name) for name in ("last", *LABELS)),
        "problems": {LABELS.get(name, name): text for name, text in problems.items()},
        "choices": choices,
        "over": _typed(request.GET, [name for name in LABELS if name not in TIMES]),
        "between": [(name, label, text[:19]) for name, label, text in _typed(request.GET, TIMES)],
        "limit": SHOWN,
        "recent": shown,
        "after": shown.after if shown else 0.0,
        "address": address(request),
        "filtered": query != ReceiptQuery(sort=query.sort),
    }
    part = request.htmx and request.htmx.target == "receipts"  # type: ignore[attr-defined]
    return render(request, "requests/table.html" if part else "requests/list.html", context)


def _typed(given: QueryDict, names: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return fields with the entered text: (name, label, text)."""
    return [(name, LABELS[name], given.get(name, "")) for name in names]


def _recent(query: ReceiptQuery) -> RecentReceipts:
    client = connect()
    after = written_at(client)  # read before the rows, so that a receipt written in the meantime is announced
    slos = declared_slos()
    found = search(client, query, SHOWN)
    rows = [(one, missed_slo(one, slos), explain.phases(one), end_of(one)) for one in found]
    return RecentReceipts(after, client.xlen(RECEIPTS), rows)


def _choices(query: ReceiptQuery) -> Choices:
    frame = latest(connect())
    if frame is None:
        return Choices(keys=key_names())
    columns = zip(frame["instances"]["id"], frame["instances"]["pool"], strict=True)
    return Choices(sorted(frame["pools"]), [name for name, pool in columns if query.pool in ("", pool)], key_names())


def key_names() -> list[str]:
    return list(ApiKey.objects.order_by("name").values_list("name", flat=True))


def _new_count(request: HttpRequest, query: ReceiptQuery) -> HttpResponse:
    try:
        after = min(max(0.0, float(request.GET["after"])), LATEST)  # NaN is 0
    except ValueError:
        after = 0.0
    count = newer_than(connect(), query, after)
    return render(request, "requests/new.html", {"count": count, "after": after, "address": address(request)})


def address(request: HttpRequest) -> str:
    """Return the address of the page with the filters that are set."""
    kept = {name: value for name, value in request.GET.items() if value and name != "after"}
    return f"/requests/?{urlencode(kept)}"


def asked(given: QueryDict, now: float) -> tuple[ReceiptQuery, dict[str, str]]:
    """Return the query, without invalid fields; `last=300` is short for `since` with a time."""
    raw: dict[str, object] = {name: text for name in FIELDS if (text := given.get(name, "").strip())}
    last = next((seconds for seconds, _ in LAST if str(seconds) == given.get("last")), None)
    if last is not None:
        raw.setdefault("since", datetime.fromtimestamp(now - last, UTC))
    for name in TIMES:
        if isinstance(raw.get(name), str):
            raw[name] = in_utc(str(raw[name]))
    try:
        return ReceiptQuery.model_validate(raw), {}
    except ValidationError as error:
        problems = by_path(problems_of(error))
        return ReceiptQuery.model_validate({name: raw[name] for name in raw.keys() - problems}), problems


FIELDS = tuple(field.alias or name for name, field in ReceiptQuery.model_fields.items())


def in_utc(text: str) -> str:
    """Return a date and time in UTC; without scripts, the field has no time zone."""
    return text if ZONE.search(text) else f"{text}Z"


ZONE = re.compile(r"(Z|[+-]\d\d:?\d\d)$", re.ASCII)


@require_GET
@never_cache
def receipt(request: HttpRequest, request_id: str) -> HttpResponse:
    try:
        found = find(connect(), request_id)
    except redis.RedisError as error:
        log.warning("requests.redis_down", error=str(error))
        return render(request, "requests/away.html", {"id": request_id}, status=503)
    part = PARTS.get(request.htmx.target or "")  # type: ignore[attr-defined]
    if found is None and part == BESIDE:
        return _awaited(request, request_id)
    if found is None:
        context = {"id": request_id, "kept_minutes": RECEIPT_TTL_S // 60}
        return render(request, "requests/missing.html", context, status=404)
    context = {
        "id": request_id,
        "replay": _replayed(request, found),
        "receipt": found,
        "request_class": found.request_class,
        "reasons": reasons(found),
        "sentences": explain.sentences(found),
        "waterfall": explain.waterfall(found, alike(connect(), found)),
        "meanwhile": meanwhile(connect(), found),
        "candidates": explain.candidates(found),
        "left_out": explain.left_out(found),
        "slo": missed_slo(found, declared_slos()),
    }
    return render(request, part or "requests/receipt.html", context)


def _awaited(request: HttpRequest, request_id: str) -> HttpResponse:
    """Show a page that waits for the receipt, which is written shortly after the end of its answer."""
    tries = int(request.GET.get("tries", "0")[:2] or 0) if request.GET.get("tries", "0").isdecimal() else 0
    context = {"id": request_id, "tries": tries + 1, "again": tries < AWAITED_TRIES}
    return render(request, "requests/awaited.html", context)


@dataclass(frozen=True, slots=True)
class ReplayPanel:
    by: str  # POLICY:N
    comparison: ReplayComparison | None
    trouble: str = ""  # why there is none
    versions: list[tuple[str, list[tuple[str, str]]]] = field(default_factory=versions)


def _replayed(request: HttpRequest, found: Receipt) -> ReplayPanel:
    """Repeat the decision, by the version that made it or by the version in `by=POLICY:N`."""
    by = request.GET.get("by", "")[:200]
    name, _, number = by.rpartition(":")
    try:
        rules = published(name, int(number)) if by else own_rules(found)
        return ReplayPanel(f"{rules.policy}:{rules.version}", compare(found, rules))
    except (NoSuchPolicy, NotReplayable, ValueError) as error:
        return ReplayPanel(by, None, str(error))


@require_GET
def find_by_id(request: HttpRequest) -> HttpResponse:
    """Find the request entered in the search field, a plain form that works without scripts."""
    asked = request.GET.get("id", "").strip()
    return redirect("receipt", request_id=asked) if asked and "/" not in asked else redirect("requests")
