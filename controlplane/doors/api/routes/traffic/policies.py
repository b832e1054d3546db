"""Policies over REST, through the same services as the pages."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import check_emergency, needs
from controlplane.doors.api.etags import found, page
from controlplane.doors.api.openapi import IF_MATCH, ROW_MAX, Before, Number
from controlplane.doors.api.problems import ApiProblem, errors
from controlplane.doors.api.routes.traffic.policy_schemas import (
    DiffOut,
    DraftOut,
    DraftPatch,
    PolicyIn,
    PolicyOut,
    PolicySchemaOut,
    PublicationOut,
    PublishDocumentIn,
    PublishIn,
    RollbackIn,
    VersionOut,
)
from controlplane.people.audit.services import actor_of
from controlplane.traffic.policies import publication, selectors, services
from router.contract.values.problem import Problem
from router.policy.schema import diff as diffs
from router.policy.schema.json_schema import json_schema
from router.policy.schema.parameters import PARAMETERS

router = Router(tags=["policies"])


@router.get("", response=list[PolicyOut], auth=needs("policy:read"))
def list_policies(request: HttpRequest) -> Any:
    """Every policy"""
    return [publication.state_of(policy) for policy in selectors.policies()]


@router.get("/schema", response=PolicySchemaOut, auth=needs("policy:read"))
def get_policy_schema(request: HttpRequest) -> Any:
    """JSON Schema of a policy document and every parameter with its limits"""
    return {"document_schema": json_schema(), "parameters": PARAMETERS.values()}


@router.post("", response={201: PublicationOut}, auth=needs("policy:write", "policy:publish"))
def create_policy(request: HttpRequest, payload: PolicyIn) -> Any:
    """Create a policy with its first version"""
    document = payload.document if payload.document is not None else services.default_document(payload.strategy)
    made = services.create_policy(payload.name, document, actor_of(request), payload.reason)
    return Status(201, made)


@router.get("/{name}", response=PolicyOut, auth=needs("policy:read"))
def get_policy(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """One policy"""
    state = publication.state_of(selectors.policy(name))
    etags.put(response, state.live.etag)
    return state


@router.get("/{name}/versions", response=list[VersionOut], auth=needs("policy:read"))
def list_versions(request: HttpRequest, name: str, limit: int = Query(50, ge=1, le=200), before: Before = None) -> Any:
    """Published versions, newest first"""
    rows = selectors.history(selectors.policy(name)).select_related("policy")
    return page(rows, before, limit, by="number")


@router.post(
    "/{name}/versions",
    response={200: PublicationOut, 201: PublicationOut, **errors(409)},
    openapi_extra=IF_MATCH,
    auth=needs("policy:write", "policy:publish"),
)
def publish_document(request: HttpRequest, response: HttpResponse, name: str, payload: PublishDocumentIn) -> Any:
    """Publish a document without a draft; with dry_run (200) only check it"""
    check_emergency(request, payload.emergency)
    given = payload.dict() | {"if_match": etags.if_match(request)}
    made = services.publish_document(selectors.policy(name), actor=actor_of(request), **given)
    etags.put(response, made.version.etag)
    return Status(200 if made.dry_run else 201, made)


@router.get("/{name}/versions/{number}", response=VersionOut, auth=needs("policy:read"))
def get_version(request: HttpRequest, response: HttpResponse, name: str, number: Number) -> Any:
    """One published version"""
    return etags.of(response, selectors.version(selectors.policy(name), number))


@router.get("/{name}/diff", response=DiffOut, by_alias=True, auth=needs("policy:read"))
def diff_versions(
    request: HttpRequest,
    name: str,
    from_: int = Query(..., alias="from", ge=1, le=ROW_MAX),
    to: int = Query(..., ge=1, le=ROW_MAX),
) -> Any:
    """Differences between two versions"""
    policy = selectors.policy(name)
    old, new = selectors.version(policy, from_), selectors.version(policy, to)
    return {"policy": name, "from": from_, "to": to, "changes": diffs.diff(old.document, new.document)}


@router.post("/{name}/draft", response={200: DraftOut, 201: DraftOut}, auth=needs("policy:write"))
def open_draft(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """Open a draft of the live version, or return the open draft"""
    policy = selectors.policy(name)
    existed = selectors.open_draft(policy) is not None
    draft = services.open_draft(policy, actor_of(request))
    return Status(200 if existed else 201, etags.of(response, draft))


@router.get("/{name}/draft", response=DraftOut, auth=needs("policy:read"))
def get_draft(request: HttpRequest, response: HttpResponse, name: str) -> Any:
    """The open draft"""
    draft = selectors.open_draft(selectors.policy(name))
    draft = found(draft, f"policy {name} has no open draft; POST to this address opens one")
    return etags.of(response, draft)


@router.patch(
    "/{name}/draft", response={200: DraftOut, **errors(409)}, openapi_extra=IF_MATCH, auth=needs("policy:write")
)
def edit_draft(request: HttpRequest, response: HttpResponse, name: str, payload: DraftPatch) -> Any:
    """Change fields of the draft, or replace its document"""
    policy = selectors.policy(name)
    if (payload.overrides is None) == (payload.document is None):
        error = Problem("overrides", None, "send either overrides or document")
        raise ApiProblem(422, errors=[error])
    seen, actor = etags.if_match(request), actor_of(request)
    if payload.document is not None:
        draft = services.save_draft(policy, payload.document, actor, if_match=seen, based_on=payload.based_on)
    else:
        overrides = payload.overrides or {}
        draft = services.patch_draft(policy, overrides, actor, if_match=seen, based_on=payload.based_on)
    return etags.of(response, draft)


@router.delete("/{name}/draft", response={204: None, **errors(409)}, openapi_extra=IF_MATCH, auth=needs("policy:write"))
def discard_draft(request: HttpRequest, name: str) -> Any:
    """Discard the open draft"""
    services.discard_draft(selectors.policy(name), actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)


@router.post("/{name}/draft/publish", response=PublicationOut, openapi_extra=IF_MATCH, auth=needs("policy:publish"))
def publish_draft(request: HttpRequest, response: HttpResponse, name: str, payload: PublishIn) -> Any:
    """Publish the draft to every router; answers once all have acknowledged it, or after a second"""
    check_emergency(request, payload.emergency)
    made = services.publish(
        selectors.policy(name),
        actor_of(request),
        payload.reason,
        if_match=etags.if_match(request),
        abort_open=payload.abort_open,
        emergency=payload.emergency,
    )
    etags.put(response, made.version.etag)
    return made


@router.post("/{name}/rollback", response=PublicationOut, openapi_extra=IF_MATCH, auth=needs("policy:publish"))
def roll_back(request: HttpRequest, response: HttpResponse, name: str, payload: RollbackIn) -> Any:
    """Publish the document of an earlier version as a new one"""
    policy = selectors.policy(name)
    made = services.rollback(policy, payload.to, actor_of(request), payload.reason, if_match=etags.if_match(request))
    etags.put(response, made.version.etag)
    return made
