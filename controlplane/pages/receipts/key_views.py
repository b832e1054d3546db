"""The page of one API key: its load, its refusals and its requests."""

import time

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
from controlplane.pages.receipts.key_series import series
from controlplane.pages.receipts.reader import newest_receipts
from controlplane.people.accounts.decorators import operator_required
from controlplane.people.permissions import can_administer
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.use.selectors import between, used_by
from controlplane.traffic.use.spending import budgets_now
from fleet.redis import connect
from router.contract.redis.redis_keys import RECEIPT_TTL_S, RECEIPTS_KEPT

log = structlog.get_logger(__name__)
CHARTS = {"requests": "Requests a minute", "tokens": "Tokens a minute"}


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
