"""Previews over REST: a draft against the live version, in the twin."""

from datetime import datetime
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.api import etags
from controlplane.api.auth import needs
from controlplane.api.openapi import IF_MATCH, ROW_MAX, Number
from controlplane.api.problems import ApiProblem
from controlplane.api.routes.twin_schemas import ExpectedErrorOut
from controlplane.api.rows import page
from controlplane.api.unread import Body
from controlplane.audit.services import actor_of
from controlplane.experiments.start.body import Seeds
from controlplane.policies import selectors as policies
from controlplane.previews import selectors, services
from controlplane.previews.models import Preview
from controlplane.previews.services import MAX_REQUESTS, MOST_REQUESTS, AskedPreview

router = Router(tags=["policies"])


class PreviewIn(Body):
    """Pool and traffic of the preview; every field is optional."""

    pool: str = Field(
        "",
        max_length=63,
        examples=["demo"],
        description="A pool that uses the policy; default: the one with most recorded requests",
    )
    trace: str = Field(
        "",
        max_length=100,
        examples=["recorded:demo"],
        description="Default: the pool's recorded traffic, or agentic-demo if there is little",
    )
    seeds: Seeds = Field(
        [1], min_length=1, max_length=5, description="Live version and draft are simulated once per seed"
    )
    max_requests: int = Field(
        MAX_REQUESTS,
        ge=1,
        le=MOST_REQUESTS,
        description="At most this many requests: the newest of a recording, the first of another trace",
    )


AS_USUAL = PreviewIn.model_validate({})


class PreviewTraceOut(Schema):
    name: str
    source: str = Field(description="recorded, built-in, upload or folder")
    requests: int = Field(description="Available requests")
    played: int
    first_at: float | None = Field(
        description="Time of the first recorded request, Unix seconds; null for other traces"
    )
    last_at: float | None
    age_s: float | None = Field(description="Seconds since the last recorded request")


class DeviationOut(Schema):
    metric: str
    measured: float = Field(description="Median measured by routers, ms")
    twin: float = Field(description="Median of the same requests in the twin with the live version, ms")
    relative: float = Field(description="Median ratio of twin to measurement, minus one: 0.1 means 10 % too slow")
    n: int
    since: float = Field(description="Unix")
    until: float


class PreviewTwinOut(Schema):
    basis: str = Field(description="profile, transferred, calibrated, or empty before the computation")
    about: str = Field(description="Source of the engines' constants")
    expected: ExpectedErrorOut | None = Field(description="null before the computation")
    deviation: DeviationOut | None = Field(description="null when too few of the requests were measured")


class CautionOut(Schema):
    code: str = Field(description="For example trace_old, few_requests, not_recorded, twin_off")
    text: str


class DecisionsOut(Schema):
    decisions: int = Field(description="Decisions that the draft would change")
    of: int


class ChangedOut(DecisionsOut):
    share: float
    low: float = Field(description="Of the 95 % interval (Wilson)")
    high: float
    classes: dict[str, DecisionsOut]


class InstanceRequestsOut(Schema):
    id: str
    live: int
    draft: int


class PreviewMetricOut(Schema):
    metric: str = Field(examples=["ttft_p90_ms"])
    live: float | None
    draft: float | None
    difference: float | None = Field(description="draft − live over the requests that both answer")
    relative: float | None
    low: float | None = Field(description="Of the 95 % interval (paired bootstrap)")
    high: float | None
    n: int
    verdict: Literal["better", "worse", "not distinguishable", "too few requests"]


class PreviewClassOut(Schema):
    n: int
    metrics: list[PreviewMetricOut]


class CountsOut(Schema):
    live: int
    draft: int


class SharesOut(Schema):
    live: float | None
    draft: float | None


class SavingOut(Schema):
    """A day at the load of the preview; negative: the draft computes more."""

    new_tokens: int = Field(description="Prompt tokens that the draft finds in caches and the live version computes")
    gpu_hours: float = Field(description="Of their arithmetic")
    dollars: float | None = Field(description="By the price of a GPU-hour; null for instances without GPUs")


class CanaryOut(Schema):
    share: float = Field(description="0–1 of the sessions, decided by the draft")
    requests: int
    duration_s: float
    guards: list[dict[str, Any]] = Field(
        description="What the default guards of a delivery find, as in its looks; `truth` is what the whole pool sees"
    )


class EffectOut(Schema):
    changed: ChangedOut
    instances: list[InstanceRequestsOut]
    classes: dict[str, PreviewClassOut] = Field(description="all, and each class by the live version")
    refused: CountsOut
    hit_share: SharesOut = Field(description="Cached share of the prompt tokens, 0–1")
    new_tokens_per_s: SharesOut | None = Field(
        None, description="Prompt tokens to compute; null in previews of earlier versions"
    )
    requests_per_s: float | None = Field(None, description="Sent; null in previews of earlier versions")
    saving: SavingOut | None = Field(None, description="null where it is unknown, as in previews of earlier versions")
    kv_usage: SharesOut = Field(description="Mean over instances and time, 0–1")
    canary: CanaryOut | None = Field(None, description="Of the first seed; null in previews of earlier versions")


class PreviewOut(Schema):
    id: int
    policy: str
    live_version: int
    draft_revision: int
    draft_sha256: str
    pool: str
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    done: int
    total: int = Field(
        description="Requests to simulate: live and draft, every seed, a canary, and those of the first answer"
    )
    left_s: float | None = Field(description="Seconds until it is done, by the pace so far; null unless it runs")
    cause: str
    actor: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    cached: bool = Field(description="The last request found it already computed")
    trace: PreviewTraceOut
    seeds: list[int]
    twin: PreviewTwinOut
    trust: list[CautionOut] = Field(description="Cautions; empty: none")
    first_result: EffectOut | None = Field(
        description="Of 500 of the requests, while the whole is computed and after it was cancelled or failed"
    )
    result: EffectOut | None = Field(description="null until it is done")


@router.post(
    "/{name}/draft/preview",
    response={200: PreviewOut, 202: PreviewOut},
    openapi_extra=IF_MATCH,
    auth=needs("policy:write"),
)
def start_preview(request: HttpRequest, response: HttpResponse, name: str, payload: PreviewIn = AS_USUAL) -> Any:
    """Start a preview: simulate the draft and the live version on the same requests; 200 if already computed"""
    asked = AskedPreview(**payload.model_dump())
    made = services.start(policies.policy(name), actor_of(request), asked, if_match=etags.if_match(request))
    response.headers["Location"] = f"/api/v1/policies/{name}/previews/{made.pk}"
    return Status(200 if made.was_cached else 202, selectors.as_dict(made))


@router.get("/{name}/previews", response=list[PreviewOut], auth=needs("policy:read"))
def list_previews(
    request: HttpRequest,
    name: str,
    limit: int = Query(20, ge=1, le=100),
    before: int | None = Query(None, ge=1, le=ROW_MAX, description="Only previews with a smaller id"),
) -> Any:
    """Previews of a policy's drafts, newest first"""
    rows = selectors.previews(policies.policy(name))
    return [selectors.as_dict(row) for row in page(rows, before, limit)]


@router.get("/{name}/previews/{number}", response=PreviewOut, auth=needs("policy:read"))
def get_preview(request: HttpRequest, name: str, number: Number) -> Any:
    """One preview with its progress, result and cautions"""
    return selectors.as_dict(_preview(name, number))


@router.post("/{name}/previews/{number}/cancel", response=PreviewOut, auth=needs("policy:write"))
def cancel_preview(request: HttpRequest, name: str, number: Number) -> Any:
    """Cancel the preview; it stops within seconds"""
    preview = _preview(name, number)
    if not services.cancel(preview, actor_of(request)):
        raise ApiProblem(409, detail=f"preview {number} has ended already: {_preview(name, number).status}")
    return selectors.as_dict(preview)


def _preview(name: str, number: int) -> Preview:
    return selectors.preview(policies.policy(name), number)
