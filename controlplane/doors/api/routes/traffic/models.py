"""The document Models over REST, through the same services as the pages."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import check_emergency, needs
from controlplane.doors.api.etags import found, page
from controlplane.doors.api.openapi import IF_MATCH, ROW_MAX, YAML, Before, Number, answers
from controlplane.doors.api.problems import errors
from controlplane.doors.api.routes.fleet.fleet import TEXT, read_document, wants_yaml
from controlplane.doors.api.routes.traffic.policy_schemas import (
    AcknowledgedOut,
    Emergency,
    OpenDraftOut,
    PublishedOut,
    Reason,
    Rebase,
    RollbackIn,
)
from controlplane.doors.api.unread import Body
from controlplane.people.audit.services import actor_of
from controlplane.traffic.aliases import homes, publication, selectors, services
from controlplane.traffic.policies.drafts.services import REASON_MAX
from fleet.spec import document as documents

router = Router(tags=["models"])

_EXAMPLE = {
    "schema": 1,
    "models": {"chat-large": {"split": [{"pool": "h200", "weight": 90}, {"pool": "h100", "weight": 10}]}},
}
BODY = {
    "required": True,
    "content": {kind: {"schema": {"type": "object"}, "example": _EXAMPLE} for kind in ("application/json", YAML)},
}


class ModelsOut(Schema):
    version: int = Field(description="0: none has been published")
    document: dict[str, Any]
    live: PublishedOut | None
    draft: OpenDraftOut | None
    routers: int = Field(description="Live routers")
    routers_current: int = Field(description="Routers of these that run the live version")


class HomeOut(Schema):
    instance: str
    state: str = Field(description="loading, loaded, failed or leaving")
    text: str = Field(description="Reason, as given by the engine")


class AdapterOut(Schema):
    pool: str
    name: str
    source: str = Field(description="Empty: another system loads it")
    replicas: int | None = Field(description="null: no name of the document uses it")
    extra: int = Field(description="Homes beyond the replicas, since all of them were full")
    state: str
    homes: list[HomeOut]


class ModelsPublicationOut(AcknowledgedOut):
    version: PublishedOut


class ModelsDraftIn(Body):
    document: dict[str, Any]
    based_on: Rebase = None


class PublishModelsIn(Body):
    reason: Reason
    emergency: Emergency = ""


@router.get("", response=ModelsOut, openapi_extra=answers(YAML), auth=needs("policy:read"))
def get_models(request: HttpRequest, response: HttpResponse) -> Any:
    """The live document Models, its open draft, and the pools that serve it; the document alone with Accept:
    application/yaml
    """
    live, ack = selectors.live(), publication.acknowledgement()
    etags.put(response, live.etag)
    if wants_yaml(request):
        answer = HttpResponse(documents.dump(live.document), content_type=f"{YAML}; charset=utf-8")
        answer.headers["ETag"] = response.headers["ETag"]
        return answer
    return {
        "version": live.number,
        "document": live.document,
        "live": live if live.number else None,
        "draft": selectors.open_draft(),
        "routers": ack.routers,
        "routers_current": ack.current,
    }


@router.put(
    "",
    response={200: ModelsPublicationOut, 201: ModelsPublicationOut, **errors(409, 415)},
    openapi_extra={"requestBody": BODY, **IF_MATCH},
    auth=needs("policy:write", "policy:publish"),
)
def put_models(
    request: HttpRequest,
    response: HttpResponse,
    reason: str = Query(..., max_length=REASON_MAX, pattern=TEXT, description="Kept with the version"),
    based_on: int | None = Query(
        None, ge=0, le=ROW_MAX, description="The version that the document was made from: a conflict if another is live"
    ),
    emergency: str = Query(
        "", max_length=REASON_MAX, pattern=TEXT, description="Why the rules are bypassed; requires the scope admin"
    ),
    dry_run: bool = Query(False, description="Only check it, by every rule, and change nothing"),
) -> Any:
    """Publish a document (YAML or JSON) without a draft; with dry_run (200) only check it"""
    check_emergency(request, emergency)
    document, actor = read_document(request), actor_of(request)
    more: dict[str, Any] = {"if_match": etags.if_match(request), "based_on": based_on, "emergency": emergency}
    made = services.publish_document(document, actor, reason, dry_run=dry_run, **more)
    etags.put(response, made.version.etag)
    return Status(200 if made.dry_run else 201, made)


@router.get("/versions", response=list[PublishedOut], auth=needs("policy:read"))
def list_models_versions(request: HttpRequest, limit: int = Query(50, ge=1, le=200), before: Before = None) -> Any:
    """Published versions, newest first"""
    return page(selectors.history(), before, limit, by="number")


@router.get("/versions/{number}", response=PublishedOut, auth=needs("policy:read"))
def get_models_version(request: HttpRequest, response: HttpResponse, number: Number) -> Any:
    """One published version"""
    return etags.of(response, selectors.version(number))


@router.get("/adapters", response=list[AdapterOut], auth=needs("policy:read"))
def list_adapters(request: HttpRequest) -> Any:
    """LoRA adapters with the instances that hold them"""
    return homes.adapters()


@router.post("/draft", response={200: OpenDraftOut, 201: OpenDraftOut}, auth=needs("policy:write"))
def open_models_draft(request: HttpRequest, response: HttpResponse) -> Any:
    """Open a draft of the live version, or return the open draft"""
    existed = selectors.open_draft() is not None
    draft = services.open_draft(actor_of(request))
    return Status(200 if existed else 201, etags.of(response, draft))


@router.get("/draft", response={200: OpenDraftOut, **errors(404)}, auth=needs("policy:read"))
def get_models_draft(request: HttpRequest, response: HttpResponse) -> Any:
    """The open draft"""
    draft = found(selectors.open_draft(), "Models has no open draft; POST to this address opens one")
    return etags.of(response, draft)


@router.put("/draft", response={200: OpenDraftOut, **errors(409)}, openapi_extra=IF_MATCH, auth=needs("policy:write"))
def put_models_draft(request: HttpRequest, response: HttpResponse, payload: ModelsDraftIn) -> Any:
    """Replace the document of the draft"""
    seen = etags.if_match(request)
    draft = services.save_draft(payload.document, actor_of(request), if_match=seen, based_on=payload.based_on)
    return etags.of(response, draft)


@router.delete("/draft", response={204: None, **errors(409)}, openapi_extra=IF_MATCH, auth=needs("policy:write"))
def discard_models_draft(request: HttpRequest) -> Any:
    """Discard the open draft"""
    services.discard_draft(actor_of(request), if_match=etags.if_match(request))
    return Status(204, None)


@router.post("/draft/publish", response=ModelsPublicationOut, openapi_extra=IF_MATCH, auth=needs("policy:publish"))
def publish_models_draft(request: HttpRequest, response: HttpResponse, payload: PublishModelsIn) -> Any:
    """Publish the draft to every router; answers once all have acknowledged it, or after a second"""
    check_emergency(request, payload.emergency)
    seen = etags.if_match(request)
    made = services.publish(actor_of(request), payload.reason, if_match=seen, emergency=payload.emergency)
    etags.put(response, made.version.etag)
    return made


@router.post(
    "/rollback",
    response={200: ModelsPublicationOut, **errors(404)},
    openapi_extra=IF_MATCH,
    auth=needs("policy:publish"),
)
def roll_back_models(request: HttpRequest, response: HttpResponse, payload: RollbackIn) -> Any:
    """Publish the document of an earlier version as a new one"""
    made = services.rollback(payload.to, actor_of(request), payload.reason, if_match=etags.if_match(request))
    etags.put(response, made.version.etag)
    return made
