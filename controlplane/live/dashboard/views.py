"""Live and the wall: the newest frame is part of the page, later frames arrive through the socket; static/js draws all
of them."""

import time
from typing import TypedDict

import redis
import structlog
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.live.dashboard import charted, history, page
from controlplane.live.dashboard import load_series as series
from controlplane.live.dashboard.frame.types import LATENCIES, Frame, folded
from controlplane.live.dashboard.step import current, rows
from controlplane.people.permissions import can_operate
from fleet import selectors
from fleet.redis import connect
from router.policy.types import CLASSES

log = structlog.get_logger(__name__)
RANGES = ((300, "5 min"), (900, "15 min"), (3600, "1 h"), (21_600, "6 h"))
WALL_S = 300
SHORTEST_S = 60


class Snapshot(TypedDict):
    """The first message of a socket; `trouble` names the cause if the live state cannot be read."""

    sent_at: float
    frame: Frame | None
    history: history.ChartedHistory
    trouble: str


@require_GET
@never_cache
def live(request: HttpRequest) -> HttpResponse:
    window = asked_window(request, time.time())
    seconds = window[1] - window[0] if window else asked_range(request)
    snapshot = read_snapshot(seconds, window[1] if window else None)
    frame = snapshot["frame"]
    context = {
        "ranges": ranges(request),
        "pools": [
            {"name": name, "label": name or "All pools", "query": query(request, pool=name or None)}
            for name in ("", *(frame["pools"] if frame else ()))
        ],
        "unscripted": frame and page.unscripted(frame, asked_pool(request, frame)),
        **_panels(request, snapshot, seconds=seconds, window=window),
    }
    return render(request, "live/live.html", context)


@require_GET
@never_cache
def banners(request: HttpRequest) -> JsonResponse:
    """Report what is missing now to pages without frames; static/js/health_watch.js asks every few seconds."""
    try:
        frame = current(connect(), time.time())
    except redis.RedisError:
        return JsonResponse({"trouble": "redis", "banners": []})
    return JsonResponse({"trouble": "", "banners": frame["banners"] if frame else []})


@require_GET
@never_cache
def load_series(request: HttpRequest) -> HttpResponse:
    """Answer ?of=pool&name=demo&range=900 with the charts for the page of an instance, a pool or a node."""
    of, name = request.GET.get("of", ""), request.GET.get("name", "")
    if of not in series.COLUMN:
        raise Http404(f"of: {of} is none of {', '.join(series.COLUMN)}")
    now, seconds = time.time(), asked_range(request)
    try:
        client = connect()
        frame = current(client, now)
        kept = rows(client, now, seconds, loads=True)
    except redis.RedisError as error:
        log.warning("live.redis_down", error=str(error))
        return JsonResponse({"trouble": "redis"}, status=503)
    if frame is None:
        return JsonResponse({"trouble": "no frame"}, status=503)
    return JsonResponse(series.series(frame, series.chosen(frame, of, name), kept, now, seconds))


@require_GET
@never_cache
def wall(request: HttpRequest) -> HttpResponse:
    context = {
        "fleet_name": selectors.fleet_name(),
        **_panels(request, read_snapshot(WALL_S), seconds=WALL_S, window=None, kiosk=request.GET.get("kiosk") == "1"),
    }
    return render(request, "live/wall.html", context)


def _panels(request: HttpRequest, snapshot: Snapshot, **settings: object) -> dict[str, object]:
    """Return the context of the panels. `settings` are those of the page, for static/js."""
    frame = snapshot["frame"]
    return {
        "snapshot": {**snapshot, "frame": frame and folded(frame)},
        "settings": {
            **settings,
            "pool": asked_pool(request, frame),
            "asked": asked_slo(request),
            "mayRollBack": can_operate(request.user),
            **page.CONSTANTS,
        },
        "frame": frame,
        "classes": CLASSES,
        "latencies": LATENCIES,
    }


def read_snapshot(seconds: int, end: float | None = None) -> Snapshot:
    """Read the snapshot, with the history up to `end`."""
    now = time.time()
    until = now if end is None else end
    try:
        client = connect()
        if end is None:
            kept = charted.ranges.newest(seconds).history
        else:
            kept = history.charted(rows(client, now, seconds, end), until, seconds)
        return {"sent_at": now, "frame": current(client, now), "history": kept, "trouble": ""}
    except redis.RedisError as error:
        log.warning("live.redis_down", error=str(error))
        return {"sent_at": now, "frame": None, "history": history.charted((), until, seconds), "trouble": "redis"}


def asked_window(request: HttpRequest, now: float) -> tuple[int, int] | None:
    """Return ?from=…&to=… in Unix seconds, within the stored range; None for anything else."""
    texts = [request.GET.get(name, "") for name in ("from", "to")]
    if not all(text.isascii() and text.isdigit() and len(text) < 12 for text in texts):
        return None
    begin, end = max(int(texts[0]), int(now) - history.RANGES_S[-1]), min(int(texts[1]), int(now))
    return (begin, end) if end - begin >= SHORTEST_S else None


def ranges(request: HttpRequest) -> list[dict[str, object]]:
    """Return the offered ranges as links."""
    return [
        {"seconds": value, "label": label, "query": query(request, **{"range": value, "from": None, "to": None})}
        for value, label in RANGES
    ]


def asked_range(request: HttpRequest) -> int:
    asked = request.GET.get("range", "")
    return int(asked) if asked in {str(value) for value, _ in RANGES} else RANGES[0][0]


def asked_pool(request: HttpRequest, frame: Frame | None) -> str:
    """Return the selected pool; empty for all pools and for an unknown name."""
    asked = request.GET.get("pool", "")
    return asked if frame and asked in frame["pools"] else ""


def asked_slo(request: HttpRequest) -> dict[str, float]:
    """Return SLO lines in ms for the charts of all classes, replacing the pool's: ?slo_ttft_ms=1000&slo_tpot_ms=50."""
    asked = {key: request.GET.get(f"slo_{key}_ms", "") for key in (metric.key for metric in LATENCIES)}
    return {key: float(text) for key, text in asked.items() if text.isascii() and text.isdigit() and len(text) < 12}


def query(request: HttpRequest, **changes: object) -> str:
    """Return the page's query string with changes; None removes a key."""
    parameters = request.GET.copy()
    for key, value in changes.items():
        parameters.pop(key, None)
        if value is not None:
            parameters[key] = str(value)
    return "?" + parameters.urlencode()
