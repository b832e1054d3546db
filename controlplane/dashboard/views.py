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
from controlplane.dashboard.frame.latency import LATENCIES
from controlplane.dashboard.step import current, rows
from controlplane.permissions import can_operate
from fleet import selectors
from fleet.redis import connect

log = structlog.get_logger(__name__)
RANGES = ((300, "5 min"), (900, "15 min"), (3600, "1 h"), (21_600, "6 h"))
WALL_S = 300
SHORTEST_S = 60


@require_GET
@never_cache
def live(request: HttpRequest) -> HttpResponse:
    window = asked_window(request, time.time())
    seconds = window[1] - window[0] if window else asked_range(request)
    snapshot = read_snapshot(seconds, window[1] if window else None)
    frame = snapshot["frame"]
    pool = asked_pool(request, frame)
    slo = page.slo(frame, pool, asked_slo(request))
    context = {
        "snapshot": snapshot,
        "may_note": can_operate(request.user),
        "settings": {
            "seconds": seconds,
            "window": window,
            "pool": pool,
            "asked": asked_slo(request),
            "mayRollBack": can_operate(request.user),
            **page.constants(),
        },
        "ranges": [
            {"seconds": value, "label": label, "query": query(request, **{"range": value, "from": None, "to": None})}
            for value, label in RANGES
        ],
        "pools": [
            {"name": name, "label": name or "All pools", "query": query(request, pool=name or None)}
            for name in ("", *(frame or {"pools": ()})["pools"])
        ],
        **page.context(frame, pool, slo),
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
        "may_operate": can_operate(request.user),
        "settings": {
            "seconds": WALL_S,
            "window": None,
            "pool": pool,
            "kiosk": request.GET.get("kiosk") == "1",
            "asked": asked_slo(request),
            "mayRollBack": can_operate(request.user),
            **page.constants(),
        },
        **page.context(snapshot["frame"], pool, page.slo(snapshot["frame"], pool, asked_slo(request))),
    }
    return render(request, "live/wall.html", context)


def read_snapshot(seconds: int, end: float | None = None) -> dict[str, Any]:
    """Like the socket's snapshot, with the history up to `end`; `trouble` names the cause when it cannot be read."""
    now = time.time()
    until = now if end is None else end
    try:
        client = connect()
        return {
            "sent_at": now,
            "frame": current(client, now),
            "history": history.charted(rows(client, now, seconds, end), until, seconds),
            "trouble": "",
        }
    except redis.RedisError as error:
        log.warning("live.redis_down", error=str(error))
        return {"sent_at": now, "frame": None, "history": history.charted((), until, seconds), "trouble": "redis"}


def asked_window(request: HttpRequest, now: float) -> tuple[int, int] | None:
    """?from=…&to=… in Unix seconds, inside what is kept; None for anything else."""
    texts = [request.GET.get(name, "") for name in ("from", "to")]
    if not all(text.isascii() and text.isdigit() and len(text) < 12 for text in texts):
        return None
    begin, end = max(int(texts[0]), int(now) - history.RANGES_S[-1]), min(int(texts[1]), int(now))
    return (begin, end) if end - begin >= SHORTEST_S else None


def asked_range(request: HttpRequest) -> int:
    asked = request.GET.get("range", "")
    return int(asked) if asked in {str(value) for value, _ in RANGES} else RANGES[0][0]


def asked_pool(request: HttpRequest, frame: dict[str, Any] | None) -> str:
    """The selected pool; empty for all pools and for an unknown name."""
    asked = request.GET.get("pool", "")
    return asked if frame and asked in frame["pools"] else ""


def asked_slo(request: HttpRequest) -> dict[str, float]:
    """SLO lines of all classes' charts in ms, instead of those of the pool: ?slo_ttft_ms=1000&slo_tpot_ms=50."""
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
