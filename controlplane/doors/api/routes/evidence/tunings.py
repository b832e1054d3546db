"""Tunings over REST: searches for better values of a policy's parameters, in the twin."""

from functools import partial
from typing import Any, cast

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Field, Router, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import page
from controlplane.doors.api.openapi import IF_MATCH, Before, Number
from controlplane.doors.api.problems import ApiProblem
from controlplane.doors.api.routes.traffic.policy_schemas import DraftOut
from controlplane.doors.api.unread import Body
from controlplane.evidence.previews import policy_job
from controlplane.evidence.tuning import services
from controlplane.evidence.tuning.models import Tuning
from controlplane.evidence.tuning.services import Trials, TuningIn
from controlplane.evidence.tuning.types import TrialView, TuningView, TuningWithTrials
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies import selectors as policies

router = Router(tags=["policies"])
_OWN = ["seed", "workers", "max_requests", "limits", "result", "drafted", "objectives", "time_limit_s", "held_out"]


def as_dict(tuning: Tuning) -> TuningView:
    """Return the tuning as the API does, without its trials."""
    bounds = ("path", "low", "high", "log", "choices")
    values: dict[str, Any] = {
        **policy_job.shown(tuning, *_OWN),
        "trace": policy_job.trace_of(tuning, timezone.now()),
        "twin": {"basis": "", "about": "", "expected": None, **tuning.twin},
        "parameters": [
            {"step": each.get("step") or None, **{name: each[name] for name in bounds}} for each in tuning.space
        ],
    }
    return cast(TuningView, values)


def with_trials(tuning: Tuning) -> TuningWithTrials:
    trials = tuning.trials.values("number", "values", "goals")
    return {
        **as_dict(tuning),
        "trials": [
            cast(TrialView, {"number": each["number"], "values": each["values"], **each["goals"]}) for each in trials
        ],
    }


AS_USUAL = TuningIn.model_validate({})


class DraftIn(Body):
    trial: Trials = Field(description="Of a winner")


@router.post("/{name}/tunings", response={202: TuningView}, auth=needs("policy:write"))
def start_tuning(request: HttpRequest, response: HttpResponse, name: str, payload: TuningIn = AS_USUAL) -> Any:
    """Search the parameters of the live version in the twin"""
    made = services.start(policies.policy(name), actor_of(request), payload)
    response.headers["Location"] = f"/api/v1/policies/{name}/tunings/{made.pk}"
    return Status(202, as_dict(made))


@router.get("/{name}/tunings", response=list[TuningView], auth=needs("policy:read"))
def list_tunings(request: HttpRequest, name: str, limit: int = Query(20, ge=1, le=100), before: Before = None) -> Any:
    """Tunings of a policy, newest first"""
    rows = policy_job.of_policy(Tuning, policies.policy(name))
    return [as_dict(row) for row in page(rows, before, limit)]


@router.get("/{name}/tunings/{number}", response=TuningWithTrials, auth=needs("policy:read"))
def get_tuning(request: HttpRequest, response: HttpResponse, name: str, number: Number) -> Any:
    """One tuning with its trials, winners and what it did not test"""
    return with_trials(etags.of(response, policy_job.numbered(Tuning, name, number)))


_act = partial(router.post, openapi_extra=IF_MATCH, auth=needs("policy:write"))


@_act("/{name}/tunings/{number}/cancel", response=TuningView)
def cancel_tuning(request: HttpRequest, name: str, number: Number) -> Any:
    """Cancel the tuning; it stops within seconds"""
    tuning = policy_job.numbered(Tuning, name, number)
    if not policy_job.cancel(tuning, actor_of(request), if_match=etags.if_match(request)):
        tuning.refresh_from_db()
        raise ApiProblem(409, detail=f"tuning {number} has ended already: {tuning.status}")
    return as_dict(tuning)


@_act("/{name}/tunings/{number}/resume", response={202: TuningView})
def resume_tuning(request: HttpRequest, name: str, number: Number) -> Any:
    """Continue a tuning that failed or was cancelled; its trials are kept"""
    tuning = policy_job.numbered(Tuning, name, number)
    if not services.resume(tuning, actor_of(request), if_match=etags.if_match(request)):
        raise ApiProblem(
            409, detail=f"tuning {number} is {tuning.status}: only failed and cancelled tunings can continue"
        )
    return Status(202, as_dict(tuning))


@_act("/{name}/tunings/{number}/draft", response={201: DraftOut})
def draft_tuning(request: HttpRequest, response: HttpResponse, name: str, number: Number, payload: DraftIn) -> Any:
    """Open a draft with the values of a winner and its evidence as a note; 409 while another draft is open"""
    tuning, seen = policy_job.numbered(Tuning, name, number), etags.if_match(request)
    draft = services.draft_of(tuning, payload.trial, actor_of(request), if_match=seen)
    return Status(201, etags.of(response, draft))
