"""Calibrations over REST: start one, read its results, cancel it."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Field, Router, Schema, Status
from pydantic import BeforeValidator

from controlplane.common.description import ALWAYS_SENT
from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import found
from controlplane.doors.api.openapi import IF_MATCH
from controlplane.doors.api.routes.fleet.fleet import InstanceName
from controlplane.doors.api.routes.fleet.fleet_schemas import ReasonIn
from controlplane.pages.fleet_ops import actions
from controlplane.pages.fleet_ops.rows import find_instance
from controlplane.people.audit.services import actor_of
from fleet import jobs
from fleet.calibration import selectors
from fleet.calibration.services import LEAST_S, MOST_S, SECONDS

router = Router(tags=["fleet"])


class CalibrateIn(ReasonIn):
    seconds: float = Field(SECONDS, ge=LEAST_S, le=MOST_S, description="Time limit of the sweep")
    anyway: bool = Field(False, description="Calibrate even while other requests run on the instance")
    source: Literal["sweep", "traffic"] = Field(
        "sweep", description="traffic: fit to requests that routers recorded, without a request to the engine"
    )


AS_USUAL = CalibrateIn.model_validate({})


class PointOut(Schema):
    concurrency: int
    prompt_tokens: int
    output_tokens: int
    context: float = Field(description="Mean context tokens of all requests together")
    ttft_s: float | None = Field(description="Median; for a single request")
    tpot_s: float | None = Field(description="Median while all requests decoded")
    n: int


class HeldOutOut(Schema):
    """Errors on requests that the fit did not see; null if too few were measured."""

    model_config = ALWAYS_SENT

    n: int
    ttft: float | None = Field(description="Mean of |modelled / measured - 1| over the requests")
    tpot: float | None
    ttft_mean: float | None = Field(description="Signed relative error of the mean, like the next fields")
    ttft_p99: float | None = Field(description="From 100 requests on")
    tpot_mean: float | None
    e2e_mean: float | None
    blocks: int = Field(1, description="Blocks of time; the signed errors are those of the worst block")


class LoadRangeOut(Schema):
    """The 5th to 95th percentile of the requests that a fit to traffic used. Beyond it the twin warns."""

    in_flight: tuple[int, int] = Field(description="Requests on the instance when one arrives, that one included")
    new_tokens: tuple[int, int] = Field(description="Prompt tokens that no cache held")


NULL_IF_EMPTY = BeforeValidator(lambda value: value or None)


class CalibrationOut(Schema):
    id: int
    instance: str
    pool: str
    node: str
    kind: str
    model: str
    config_hash: str = Field(description="Hash of the settings that the engine was started with")
    status: Literal["queued", "running", "done", "failed", "cancelled"]
    cause: str = Field(description="Cause of the failure or cancellation")
    actor: str
    seconds: float
    source: Literal["sweep", "traffic"]
    asked_at: datetime
    ended_at: datetime | None
    constants: dict[str, float] = Field(
        description="Constants of the step-time law in seconds, and api_s; empty until done"
    )
    limits: dict[str, int | bool] = Field(description="KV blocks, their size, sequences, batched tokens, window")
    points: list[PointOut]
    ttft_error: float | None = Field(description="Mean of |fitted / measured - 1|")
    tpot_error: float | None
    n: int = Field(description="Measured loads, with their repetitions; of traffic: held-out requests")
    held_out: Annotated[HeldOutOut | None, NULL_IF_EMPTY] = Field(description="Errors of a calibration from traffic")
    load_range: Annotated[LoadRangeOut | None, NULL_IF_EMPTY] = Field(
        description="The load that a calibration from traffic saw"
    )
    notes: list[str] = Field(description="Cautions")


class InstanceCalibrationOut(Schema):
    measured: CalibrationOut | None = Field(description="The newest finished calibration, which the twin uses")
    stale: list[str] = Field(description="Changes since the calibration")
    last: CalibrationOut = Field(description="The newest calibration, whatever its outcome")


@router.post("/instances/{name}/calibrate", response={202: CalibrationOut}, auth=needs("fleet:write"))
def calibrate_instance(request: HttpRequest, name: InstanceName, payload: CalibrateIn = AS_USUAL) -> Any:
    """Calibrate the twin: measure the engine with a short sweep of requests, which loads it, or from traffic"""
    find_instance(name)
    given = payload.reason, payload.seconds
    row = actions.calibrate(name, actor_of(request), *given, anyway=payload.anyway, source=payload.source)
    jobs.send(row)
    return Status(202, row)


@router.get("/instances/{name}/calibration", response=InstanceCalibrationOut, auth=needs("fleet:read"))
def get_instance_calibration(request: HttpRequest, response: HttpResponse, name: InstanceName) -> Any:
    """The calibration of an instance"""
    instance = find_instance(name)
    detail = f"{name} has not been calibrated: POST /api/v1/instances/{name}/calibrate"
    last, measured = found(selectors.last_asked(name), detail), selectors.newest(name)
    etags.of(response, last)
    stale = () if measured is None else selectors.stale(measured, instance.pool, timezone.now())
    return {"measured": measured, "stale": stale, "last": last}


@router.post(
    "/instances/{name}/calibration/cancel", response=CalibrationOut, openapi_extra=IF_MATCH, auth=needs("fleet:write")
)
def cancel_calibration(request: HttpRequest, name: InstanceName) -> Any:
    """Stop the calibration, within a second; the constants measured before stay in force"""
    find_instance(name)
    return actions.cancel_calibration(name, actor_of(request), if_match=etags.if_match(request))
