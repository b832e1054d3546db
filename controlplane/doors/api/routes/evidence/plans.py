"""Plans over REST: the cheapest fleets that hold an SLO for a trace, in the twin."""

from dataclasses import asdict
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.common.description import ALWAYS_SENT
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import page
from controlplane.doors.api.openapi import IF_MATCH, Before, Number
from controlplane.doors.api.problems import ApiProblem
from controlplane.evidence.experiments.results.types import JobStatus
from controlplane.evidence.plan.actual import NOTHING, Verdict
from controlplane.evidence.planning import applied, services
from controlplane.evidence.planning.body import PlanIn
from controlplane.evidence.planning.models import FleetPlan
from controlplane.evidence.previews import policy_job
from controlplane.evidence.previews.analysis.types import PlayedTrace
from controlplane.evidence.twin.expected_error import ExpectedError
from controlplane.people.audit.services import actor_of
from fleet.jobs import ENDED

router = Router(tags=["experiments"])


class WithinOut(Schema):
    low: float = Field(description="Lowest share over seeds, 0–1")
    high: float


class PlanRowOut(Schema):
    model_config = ALWAYS_SENT

    dollars_per_hour: float
    gpus: int
    replicas: int
    engine: dict[str, Any] = Field(description="Options of a pool of the kind sim; empty: those of the measured pool")
    policy: str
    within: WithinOut = Field(description="Lowest share, over classes, of requests within their limits")
    if_slower: float = Field(description="The same if the engines are slower by the expected error")
    at_load: dict[str, float] = Field(
        description="Share within the limits, by load factor, up to the first that breaks the SLO"
    )
    breaks_first: str
    predicted: dict[str, Any] = Field({}, description="The load, and per class the figures that `/actual` compares")
    expected_error: ExpectedError
    cautions: list[str]


class PlanResultOut(Schema):
    """The result, as `weir plan --json` writes it."""

    model_config = ALWAYS_SENT

    simulated: bool
    fingerprint: str = Field(description="Hash of the inputs; equal inputs give equal answers")
    requests: int
    fleets: int = Field(description="Compared")
    too_small: int = Field(description="Fleets left out because arithmetic shows that they are too small")
    left_out: list[str] = Field(description="Layouts that are unknown or do not fit")
    slo: dict[str, dict[str, float]]
    share: float
    most_gpus: int
    measured: dict[str, str] | None = Field(None, description="Calibrated pool whose engines were played")
    holds: PlanRowOut | None = Field(description="The cheapest fleet that holds the SLO even if engines are slower")
    undecided: PlanRowOut | None = Field(None, description="Cheaper fleet that holds the SLO unless engines are slower")
    rows: list[PlanRowOut] = Field(description="The frontier, cheapest first")


class PlanOut(Schema):
    id: int = Field(validation_alias="pk")
    asked: dict[str, Any]
    status: JobStatus
    done: int = Field(description="Plays")
    total: int = Field(description="Upper limit of simulations; 0 before the plan runs")
    cause: str
    actor: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    trace: PlayedTrace
    result: PlanResultOut | None = Field(description="null until it is done")

    @staticmethod
    def resolve_trace(row: FleetPlan) -> object:
        return policy_job.trace_of(row, timezone.now())


class FleetDraftOut(Schema):
    document: str = Field(description="YAML, as PUT /fleet takes it")
    difference: str = Field(description="From the current fleet, as a unified diff without secrets")


class PredictedRangeOut(Schema):
    low: float = Field(description="Lowest over seeds")
    high: float
    least: float = Field(description="Lowest with the expected error")
    most: float


class PlanLoadOut(Schema):
    name: str = Field(description="requests_per_s; means: prompt_tokens, new_tokens after the cache, output_tokens")
    predicted: float
    actual: float
    alike: bool = Field(description="Actual ÷ predicted is 0.8 to 1.25")


class PlanFigureOut(Schema):
    request_class: str = Field(alias="class", description="Class by the router; none if refused before it had one")
    metric: str = Field(description="within_slo (0–1), or a quantile in ms")
    predicted: PredictedRangeOut
    actual: float
    low: float = Field(description="Lower end of the 95 % interval, over sessions")
    high: float
    n: int
    sessions: int
    verdict: Verdict


class PlanActualOut(Schema):
    """The predictions of a row, and the measurements since a pool was changed to match it."""

    row: int = Field(description="Row number from 1; 0 if no pool matches a row")
    pool: str
    reason: str = Field(description="Why there is no judgement; empty if there is one")
    caution: str
    since: datetime | None
    requests: int = Field(description="Compared requests: the busiest in a row, as many as in the plan")
    load: list[PlanLoadOut]
    figures: list[PlanFigureOut]
    unplanned: dict[str, int] = Field(description="Requests of classes that the plan had none of, by class")


@router.post("", response={200: PlanOut, 202: PlanOut}, auth=needs("experiments:write"))
def start_plan(request: HttpRequest, response: HttpResponse, payload: PlanIn) -> Any:
    """Start a plan: search the cheapest fleets that hold an SLO; 200 if already computed"""
    made = services.start(payload, actor_of(request))
    response.headers["Location"] = f"/api/v1/plans/{made.pk}"
    return Status(200 if made.status in ENDED else 202, made)


@router.get("", response=list[PlanOut], auth=needs("experiments:read"))
def list_plans(request: HttpRequest, limit: int = Query(20, ge=1, le=100), before: Before = None) -> Any:
    """Plans, newest first"""
    return page(FleetPlan.objects.all(), before, limit)


@router.get("/{number}", response=PlanOut, auth=needs("experiments:read"))
def get_plan(request: HttpRequest, response: HttpResponse, number: Number) -> Any:
    """One plan with its progress and result"""
    return etags.of(response, services.numbered(number))


@router.post("/{number}/cancel", response=PlanOut, openapi_extra=IF_MATCH, auth=needs("experiments:write"))
def cancel_plan(request: HttpRequest, number: Number) -> Any:
    """Cancel the plan; it stops within seconds"""
    plan = services.numbered(number)
    if not policy_job.cancel(plan, actor_of(request), if_match=etags.if_match(request)):
        raise ApiProblem(409, detail=f"plan {number} has ended already: {services.numbered(number).status}")
    return services.numbered(number)


@router.get("/{number}/draft", response=FleetDraftOut, auth=needs("fleet:write"))
def draft_of_plan(
    request: HttpRequest,
    number: Number,
    pool: str = Query(max_length=63, description="The measured pool, or any pool of kind sim"),
    row: int = Query(1, ge=1, le=100),
) -> Any:
    """The fleet document with a pool as in a row of the plan; changes nothing"""
    document, difference = services.draft(services.numbered(number), row, pool)
    return {"document": document, "difference": difference}


@router.get("/{number}/actual", response=PlanActualOut, by_alias=True, auth=needs("experiments:read"))
def actual_of_plan(request: HttpRequest, number: Number) -> Any:
    """The predictions of a row beside the measurements, once a pool matches it"""
    found = applied.what_came_of(services.numbered(number))
    came = found.came or NOTHING
    about = {name: getattr(found, name) for name in ("row", "pool", "reason", "caution", "since")}
    shown = {"requests": came.requests, "load": came.load, "unplanned": came.unplanned}
    figures = [asdict(one) | {"class": one.request_class} for one in came.figures]
    return about | shown | {"figures": figures}
