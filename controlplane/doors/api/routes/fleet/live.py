"""The newest dashboard frame and the last hour over REST."""

import time
from typing import Any

from django.http import HttpRequest
from ninja import Field, Router, Schema
from ninja.params.functions import Query

from controlplane.doors.api.auth import needs
from controlplane.doors.api.problems import ApiProblem, errors
from controlplane.live.dashboard import history
from controlplane.live.dashboard.step import current, rows
from fleet.redis import connect

router = Router(tags=["live"])


class FrameOut(Schema):
    """One second of the fleet. Columns of `instances` and `routers` have one entry per row; null means unknown."""

    at: float = Field(description="When it was built, Unix seconds")
    built_by: str = Field(description="The builder: worker, or web while no control worker runs")
    pools: dict[str, Any]
    ephemeral_pools: int = Field(description="Pools of running experiments, left out of this frame")
    counts: dict[str, int] = Field(description="Number of instances by status")
    kv_threshold: float = Field(
        description="The lowest `kv_limit` of the pools: KV usage (0–1) above which an instance is overloaded"
    )
    instances: dict[str, list[Any]]
    classes: dict[str, dict[str, Any]] = Field(
        description="pool -> class -> figures over 60 s; ttft and tpot are [p50, p90, p99] in ms"
    )
    totals: dict[str, dict[str, float | None]] = Field(
        description="By pool, and of all pools under *: requests/s, running, waiting, output tokens/s, per GPU, "
        "dollars per million of them, mean use and memory of GPUs 0–1, their power in W, and which share is simulated"
    )
    flow: dict[str, Any] = Field(
        description="pool -> links [class, rule, instance, requests/s] and arcs [prefill, decode, offloads/s, bytes/s]"
    )
    routers: dict[str, list[Any]]
    nodes: dict[str, list[Any]] = Field(description="silent_s is null for a node that reports")
    policies: dict[str, Any]
    events: list[dict[str, Any]] = Field(description="Newest first")
    health: dict[str, Any]
    attention: list[dict[str, Any]] = Field(description="Worst first")


class HistoryOut(Schema):
    """Columns over time; a null between two points is a gap without data."""

    seconds: int
    bin_s: int = Field(description="Seconds per point")
    gap_s: float = Field(description="A longer pause is a gap")
    at: list[float]
    classes: dict[str, dict[str, dict[str, list[Any]]]]
    kv: dict[str, list[float | None]] = Field(
        description="KV usage of each instance over the last 60 s, one value per second"
    )


@router.get("", response={200: FrameOut, **errors(503)}, auth=needs("live:read"))
def get_live(request: HttpRequest) -> Any:
    """The newest frame: instances, classes, routers, policies, alerts"""
    frame = current(connect(), time.time())
    if frame is None:
        raise ApiProblem(503, detail="no frame has been built yet: the control worker has not run")
    return frame


@router.get("/history", response={200: HistoryOut, **errors(503)}, auth=needs("live:read"))
def get_live_history(
    request: HttpRequest,
    seconds: int = Query(300, ge=60, le=history.RANGES_S[-1], description="How far back"),
) -> Any:
    """History for the charts of the Live page"""
    now = time.time()
    return history.columns(rows(connect(), now, seconds), now, seconds)
