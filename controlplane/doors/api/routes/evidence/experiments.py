"""Experiments over REST: start, follow, read, cancel."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from msgspec import to_builtins
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.common.attachment import attachment
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import page
from controlplane.doors.api.openapi import CSV, IF_MATCH, ROW_MAX, Before, Number, answers
from controlplane.doors.api.problems import ApiProblem, errors
from controlplane.doors.api.tables import FORMATS
from controlplane.evidence.experiments import provenance, selectors, services
from controlplane.evidence.experiments.models import Arm, Experiment
from controlplane.evidence.experiments.results import across
from controlplane.evidence.experiments.results.assemble import results_of
from controlplane.evidence.experiments.results.kv import RunGpus, RunUse, gpu_use_of, kv_of
from controlplane.evidence.experiments.results.output import exports
from controlplane.evidence.experiments.results.types import ExperimentResults, JobStatus, Overall
from controlplane.evidence.experiments.start.body import SEED_MAX, ExperimentIn
from controlplane.people.audit.services import actor_of
from fleet.jobs import ENDED
from router.contract.values.problem import Problem

router = Router(tags=["experiments"])


class ArmOut(Schema):
    name: str
    policy: str = Field(description="Empty for a strategy's default document")
    version: int = Field(description="Policy version; 0 without one")
    strategy: str
    overrides: dict[str, Any]
    document: dict[str, Any]
    sha256: str
    fleet: dict[str, Any] = Field(description="The arm's changes to the pool: replicas, engine")

    @staticmethod
    def resolve_fleet(arm: Arm) -> object:
        return to_builtins(arm.fleet)


class RunOut(Schema):
    id: int
    arm: str
    seed: int
    status: str
    step: str = Field(description="Current step, or the last one")
    cause: str
    done: int
    total: int = Field(description="Requests to send; 0 until the trace has been read")
    heartbeat_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    warnings: list[str]


class ExperimentOut(Schema):
    id: int
    matrix_id: int | None = Field(description="Matrix of which the experiment is a cell; null: of none")
    name: str
    question: str
    trace: str
    pool: str
    mode: str = Field(description="replay, or twin: simulated")
    pacing: str
    duration_s: float
    time_scale: float
    load_factor: float
    seeds: list[int]
    arms: list[ArmOut] = Field(validation_alias="settled_arms")
    expect: list[dict[str, Any]]
    slo: dict[str, dict[str, float]]
    status: JobStatus
    verdict: Overall = Field(description="Verdict over its expectations; none if it has none, or did not end well")
    cause: str
    actor: str
    created_at: datetime
    started_at: datetime | None
    ended_at: datetime | None
    progress: selectors.ExperimentProgress
    runs: list[RunOut]

    @staticmethod
    def resolve_progress(row: Experiment) -> object:
        return selectors.progress_of(row)


@router.get("", response=list[ExperimentOut], auth=needs("experiments:read"))
def list_experiments(
    request: HttpRequest,
    limit: int = Query(20, ge=1, le=100),
    matrix: int | None = Query(None, ge=1, le=ROW_MAX, description="Only cells of this matrix; default: of no matrix"),
    before: Before = None,
) -> Any:
    """Experiments, newest first"""
    rows = selectors.experiments().filter(matrix=matrix)
    return page(rows, before, limit)


@router.get("/compare", response=dict[str, Any], auth=needs("experiments:read"))
def compare_arms(request: HttpRequest, arm: Annotated[list[str], Query(max_length=across.MOST)]) -> Any:
    """Results of arms of different experiments that played the same requests: ?arm=12:lpwl&arm=13:lpwl"""
    return across.compared(across.chosen(arm))[1]


@router.post("", response={201: ExperimentOut}, auth=needs("experiments:write"))
def start_experiment(request: HttpRequest, response: HttpResponse, payload: ExperimentIn) -> Any:
    """Start an experiment: the same load for each arm, one run per arm and seed"""
    return _started(response, services.start_experiment(payload, actor_of(request)))


def _started(response: HttpResponse, made: Experiment) -> Any:
    response.headers["Location"] = f"/api/v1/experiments/{made.pk}"
    return Status(201, selectors.experiment(made.pk))


@router.get("/{number}", response=ExperimentOut, auth=needs("experiments:read"))
def get_experiment(request: HttpRequest, response: HttpResponse, number: Number) -> Any:
    """One experiment with the progress of its runs"""
    return etags.of(response, selectors.experiment(number))


@router.get("/{number}/results", response=ExperimentResults, auth=needs("experiments:read"))
def get_results(request: HttpRequest, number: Number, format: Literal["json", "csv", "parquet"] = "json") -> Any:
    """Results per arm and class, differences, ECDFs; ?format=csv or parquet for a row per request"""
    experiment = selectors.experiment(number)
    if format == "json":
        return results_of(experiment)
    return attachment(exports.requests_of(experiment, format), f"experiment-{number}.{format}", FORMATS[format])


@router.get("/{number}/comparison.csv", response=None, openapi_extra=answers(CSV), auth=needs("experiments:read"))
def get_comparison(
    request: HttpRequest,
    number: Number,
    baseline: str = Query("", max_length=60),
    request_class: Literal["all", "warm", "medium", "heavy"] = Query("all", alias="class"),
) -> Any:
    """The comparison of the page: a row for each metric and arm of one class, with differences from a baseline"""
    experiment = selectors.experiment(number)
    text = exports.comparison_csv_of(experiment, request_class, _baseline(experiment, baseline))
    return attachment(text, f"experiment-{number}-{request_class}.csv")


@router.get(
    "/{number}/report.md", response=None, openapi_extra=answers("text/markdown"), auth=needs("experiments:read")
)
def get_report(request: HttpRequest, number: Number, baseline: str = Query("", max_length=60)) -> Any:
    """The comparison as Markdown, with its pictures in it"""
    experiment = selectors.experiment(number)
    text = exports.report_of(experiment, _baseline(experiment, baseline))
    return HttpResponse(text, content_type="text/markdown; charset=utf-8")


@router.get(
    "/{number}/report.zip", response=None, openapi_extra=answers("application/zip"), auth=needs("experiments:read")
)
def get_report_files(request: HttpRequest, number: Number, baseline: str = Query("", max_length=60)) -> Any:
    """The comparison as report.md with its pictures as SVG files beside it"""
    experiment = selectors.experiment(number)
    packed = exports.report_files_of(experiment, _baseline(experiment, baseline))
    return attachment(packed, f"experiment-{number}.zip", "application/zip")


def _baseline(experiment: Experiment, baseline: str) -> str:
    names = [arm.name for arm in experiment.settled_arms]
    if baseline and baseline not in names:
        fault = Problem("baseline", baseline, "no arm has this name", ", ".join(names))
        raise ApiProblem(422, errors=[fault])
    return baseline or names[0]


@router.get(
    "/{number}/junit.xml",
    response={200: None, **errors(409)},
    openapi_extra=answers("application/xml"),
    auth=needs("experiments:read"),
)
def get_junit(request: HttpRequest, number: Number) -> Any:
    """JUnit XML: a test case for each run and each expectation, skipped when inconclusive; once it has ended"""
    experiment = selectors.experiment(number)
    if experiment.status not in ENDED:
        detail = f"experiment {number} is {experiment.status}; ask again when it has ended"
        raise ApiProblem(409, detail=detail, headers={"Retry-After": "5"})
    return HttpResponse(exports.junit_of(experiment), content_type="application/xml; charset=utf-8")


@router.get("/{number}/kv", response=list[RunUse], auth=needs("experiments:read"))
def get_kv_usage(
    request: HttpRequest,
    number: Number,
    arm: str = Query("", max_length=60, description="Default: every arm"),
    seed: int | None = Query(None, ge=0, le=SEED_MAX, description="Default: every seed"),
    limit: int = Query(512, ge=1, le=512, description="Number of instances per run: the fullest ones"),
) -> Any:
    """KV usage of each instance over time, of each run in the twin that has ended"""
    return kv_of(selectors.experiment(number), arm, seed, limit)


@router.get("/{number}/gpu", response=list[RunGpus], auth=needs("experiments:read"))
def get_gpu_use(
    request: HttpRequest,
    number: Number,
    arm: str = Query("", max_length=60, description="Default: every arm"),
    seed: int | None = Query(None, ge=0, le=SEED_MAX, description="Default: every seed"),
) -> Any:
    """GPU use of the nodes of each replay every 5 s, while it runs and after it"""
    return gpu_use_of(selectors.experiment(number), arm, seed)


@router.get("/{number}/record", response=dict[str, Any], auth=needs("experiments:read"))
def get_record(request: HttpRequest, number: Number) -> Any:
    """Everything the runs depend on: product, trace, policy documents, fleets with their constants, hosts"""
    return provenance.whole(selectors.experiment(number))


@router.post("/{number}/repeat", response={201: ExperimentOut}, auth=needs("experiments:write"))
def repeat_experiment(request: HttpRequest, response: HttpResponse, number: Number) -> Any:
    """Start the experiment again from its record; in the twin the same product gives byte-identical requests"""
    return _started(response, services.repeat_experiment(selectors.experiment(number), actor_of(request)))


@router.post("/{number}/cancel", response=ExperimentOut, openapi_extra=IF_MATCH, auth=needs("experiments:write"))
def cancel_experiment(request: HttpRequest, number: Number) -> Any:
    """Cancel: queued runs end at once, the running one within seconds; finished results are kept"""
    experiment = selectors.experiment(number)
    if not services.cancel_experiment(experiment, actor_of(request), if_match=etags.if_match(request)):
        raise ApiProblem(409, detail=f"experiment {number} has ended already: {selectors.experiment(number).status}")
    return selectors.experiment(number)
