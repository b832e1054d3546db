"""The page of one API key: its load, its refusals and its requests."""

import time
from collections.abc import Iterable
from typing import TypedDict

import redis
import structlog
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.live.dashboard.page import CONSTANTS
from controlplane.live.dashboard.views import RANGES, asked_range, query
from controlplane.pages.receipts.query import end_of
from controlplane.pages.receipts.reader import newest_receipts
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.permissions import can_administer
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.use.selectors import between, used_by
from controlplane.traffic.use.spending import budgets_now
from fleet.redis import connect
from router.contract.redis.receipt import Receipt
from router.contract.redis.redis_keys import RECEIPT_TTL_S, RECEIPTS_KEPT

log = structlog.get_logger(__name__)
CHARTS = {"requests": "Requests a minute", "tokens": "Tokens a minute"}
BINS = 60
LINES = ("served", "refused", "client_errors", "failed", "prompt", "output")
_CALLED = {"client_error": "client_errors", "error": "failed"}  # all other requests were served, in whole or in part


class KeySeries(TypedDict):
    until: float
    bin_s: float
    at: list[float]  # end of each bin
    load: dict[str, list[float | None]]  # by LINES: requests and tokens per minute; None before the oldest receipt
    limits: dict[str, float | None]  # limit per minute, by chart


def series(
    receipts: Iterable[Receipt], key: str, until: float, seconds: int, limits: dict[str, float | None]
) -> KeySeries:
    """Return the series. `receipts` are those of all keys, latest end first, so that a time without requests can be
    told from a time no longer stored.
    """
    bin_s = seconds / BINS
    begin = until - seconds
    sums = {line: [0.0] * BINS for line in LINES}
    oldest = until
    for receipt in receipts:
        oldest = min(oldest, receipt.at)
        if end_of(receipt) < begin:
            break  # the remaining ones ended even earlier
        if receipt.key == key and begin <= receipt.at < until:
            place = min(BINS - 1, int((receipt.at - begin) / bin_s))
            for line, amount in _amounts(receipt):
                sums[line][place] += amount
    kept = [begin + (i + 1) * bin_s > oldest for i in range(BINS)]
    return {
        "until": until,
        "bin_s": bin_s,
        "at": [begin + (i + 1) * bin_s for i in range(BINS)],
        "load": {
            line: [amount * 60 / bin_s if is_kept else None for amount, is_kept in zip(amounts, kept, strict=True)]
            for line, amounts in sums.items()
        },
        "limits": limits,
    }


def _amounts(receipt: Receipt) -> list[tuple[str, float]]:
    if receipt.outcome == "refused":
        return [("refused", 1)]
    prompt = receipt.actual_prompt_tokens or receipt.prompt_tokens or 0
    return [
        (_CALLED.get(receipt.outcome or "", "served"), 1),
        ("prompt", prompt),
        ("output", receipt.output_tokens or 0),
    ]


@operator_required
@require_GET
@never_cache
def key(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(ApiKey, pk=pk)
    offered = [
        {"seconds": seconds, "label": label, "query": query(request, range=seconds)}
        for seconds, label in RANGES
        if seconds <= RECEIPT_TTL_S
    ]
    charts = {
        "of": "key",
        "name": row.name,
        "href": reverse("key-series", args=[pk]),
        "seconds": min(asked_range(request), RECEIPT_TTL_S),
        "ranges": offered,
        "titles": CHARTS,
    }
    now = timezone.now()
    context = {
        "key": row,
        "charts": charts,
        "kept": RECEIPTS_KEPT,
        "settings": CONSTANTS,
        "used": used_by(str(pk), *between("month", now)),
        "may_set_budgets": can_administer(request.user),
        "budgets": budgets_now(now.timestamp(), row.budgets.select_related("key")),
    }
    return render(request, "keys/key.html", context)


@operator_required
@require_GET
@never_cache
def key_series(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(ApiKey, pk=pk)
    limits: dict[str, float | None] = {"requests": row.requests_per_min, "tokens": row.tokens_per_min}
    try:
        return JsonResponse(series(newest_receipts(connect()), row.name, time.time(), asked_range(request), limits))
    except redis.RedisError as error:
        log.warning("requests.redis_down", error=str(error))
        return JsonResponse({"trouble": "redis"}, status=503)
