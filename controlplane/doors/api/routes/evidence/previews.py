"""Previews over REST: a draft against the live version, in the twin."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import needs
from controlplane.doors.api.etags import page
from controlplane.doors.api.openapi import IF_MATCH, Before, Number
from controlplane.doors.api.problems import ApiProblem
from controlplane.evidence.previews import policy_job, selectors, services
from controlplane.evidence.previews.analysis.types import PreviewView
from controlplane.evidence.previews.body import AS_USUAL, PreviewIn
from controlplane.evidence.previews.models import Preview
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies import selectors as policies

router = Router(tags=["policies"])


@router.post(
    "/{name}/draft/preview",
    response={200: PreviewView, 202: PreviewView},
    openapi_extra=IF_MATCH,
    auth=needs("policy:write"),
)
def start_preview(request: HttpRequest, response: HttpResponse, name: str, payload: PreviewIn = AS_USUAL) -> Any:
    """Start a preview: simulate the draft and the live version on the same requests; 200 if already computed"""
    made = services.start(policies.policy(name), actor_of(request), payload, if_match=etags.if_match(request))
    response.headers["Location"] = f"/api/v1/policies/{name}/previews/{made.pk}"
    return Status(200 if made.was_cached else 202, selectors.as_dict(made))


@router.get("/{name}/previews", response=list[PreviewView], auth=needs("policy:read"))
def list_previews(request: HttpRequest, name: str, limit: int = Query(20, ge=1, le=100), before: Before = None) -> Any:
    """Previews of a policy's drafts, newest first"""
    rows = policy_job.of_policy(Preview, policies.policy(name))
    return [selectors.as_dict(row) for row in page(rows, before, limit)]


@router.get("/{name}/previews/{number}", response=PreviewView, auth=needs("policy:read"))
def get_preview(request: HttpRequest, response: HttpResponse, name: str, number: Number) -> Any:
    """One preview with its progress, result and cautions"""
    return selectors.as_dict(etags.of(response, policy_job.numbered(Preview, name, number)))


@router.post(
    "/{name}/previews/{number}/cancel", response=PreviewView, openapi_extra=IF_MATCH, auth=needs("policy:write")
)
def cancel_preview(request: HttpRequest, name: str, number: Number) -> Any:
    """Cancel the preview; it stops within seconds"""
    preview = policy_job.numbered(Preview, name, number)
    if not policy_job.cancel(preview, actor_of(request), if_match=etags.if_match(request)):
        preview.refresh_from_db()
        raise ApiProblem(409, detail=f"preview {number} has ended already: {preview.status}")
    return selectors.as_dict(preview)
