"""Live and the wall: first paint from the newest frame; the socket delivers the following ones."""

import time
from typing import Any

import redis
import structlog
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.dashboard import history, page
from controlplane.dashboard.latency import LATENCIES
from controlplane.dashboard.step import current, rows
from controlplane.permissions import can_operate
from fleet import selectors
from fleet.redis import connect

log = structlog.get_logger(__name__)
RANGES = ((300, "5 min"), (900, "15 min"), (3600, "1 h"))
WALL_S = 300


@require_GET
@never_cache
def live(request: HttpRequest) -> HttpResponse:
    seconds = asked_range(request)
    snapshot = read_snapshot(seconds)
    frame = snapshot["frame"]
    pool = asked_pool(request, frame)
    context = {
        "snapshot": snapshot,
        "may_note": can_operate(request.user),
        "settings": {
            "seconds": seconds,
            "pool": pool,
            "slo": slo(request),
            "mayRollBack": can_operate(request.user),
            **page.constants(),
        },
        "ranges": [{"seconds": value, "label": label, "query": query(request, range=value)} for value, label in RANGES],
        "pools": [
            {"name": name, "label": name or "All pools", "query": query(request, pool=name or None)}
            for name in ("", *(frame or {"pools": ()})["pools"])
        ],
        **page.context(frame, pool),
    }
    return render(request, "live/live.html", context)


@require_GET
@never_cache
def wall(request: HttpRequest) -> HttpResponse:
    snapshot = read_snapshot(WALL_S)
    pool = asked_pool(request, snapshot["frame"])
    context = {
        "snapshot": snapshot,
        "fleet_name": selectors.fleet_name(),
        "settings": {
            "seconds": WALL_S,
            "pool": pool,
            "kiosk": request.GET.get("kiosk") == "1",
            "slo": slo(request),
            **page.constants(),
        },
        **page.context(snapshot["frame"], pool),
    }
    return render(request, "live/wall.html", context)


def read_snapshot(seconds: int) -> dict[str, Any]:
    """Like the socket's snapshot; `trouble` names the cause when it cannot be read."""
    now = time.time()
    try:
        client = connect()
        return {
            "sent_at": now,
            "frame": current(client, now),
            "history": history.columns(rows(client, now, seconds), now, seconds),
            "trouble": "",
        }
    except redis.RedisError as error:
        log.warning("live.redis_down", error=str(error))
        return {"sent_at": now, "frame": None, "history": history.columns((), now, seconds), "trouble": "redis"}


def asked_range(request: HttpRequest) -> int:
    asked = request.GET.get("range", "")
    return int(asked) if asked in {str(value) for value, _ in RANGES} else RANGES[0][0]


def asked_pool(request: HttpRequest, frame: dict[str, Any] | None) -> str:
    """The selected pool; empty for all pools and for an unknown name."""
    asked = request.GET.get("pool", "")
    return asked if frame and asked in frame["pools"] else ""


def slo(request: HttpRequest) -> dict[str, float]:
    """SLO lines of the charts, in ms: ?slo_ttft_ms=1000&slo_tpot_ms=50."""
    asked = {key: request.GET.get(f"slo_{key}_ms", "") for key in (metric.key for metric in LATENCIES)}
    return {key: float(text) for key, text in asked.items() if text.isascii() and text.isdigit()}


def query(request: HttpRequest, **changes: Any) -> str:
    """The page's query string with changes; None removes a key."""
    parameters = request.GET.copy()
    for key, value in changes.items():
        parameters.pop(key, None)
        if value is not None:
            parameters[key] = str(value)
    return "?" + parameters.urlencode()
