"""The document Models over REST, through the same services as the pages."""

from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status
from ninja.params.functions import Query

from controlplane.doors.api import etags
from controlplane.doors.api.auth import check_emergency, needs
from controlplane.doors.api.etags import found, page
from controlplane.doors.api.openapi import IF_MATCH, ROW_MAX, YAML, Number, answers
from controlplane.doors.api.problems import errors
from controlplane.doors.api.routes.fleet.fleet import TEXT, read_document, wants_yaml
from controlplane.doors.api.routes.traffic.policy_schemas import AckOut, ActorOut
from controlplane.doors.api.unread import Body
from controlplane.people.audit.services import actor_of
from controlplane.traffic.aliases import homes, publication, selectors, services
from controlplane.traffic.aliases.models import ModelsVersion
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


class ModelsVersionOut(Schema):
    number: int
    sha256: str
    document: dict[str, Any]
    reason: str
    actor: ActorOut
    published_at: datetime
    based_on: int | None
    rollback_of: int | None

    @staticmethod
    def resolve_actor(version: ModelsVersion) -> ModelsVersion:
        return version


class ModelsDraftOut(Schema):
    etag: str = Field(description="Send as If-Match with PUT, DELETE and publish")
    revision: int
    based_on: int = Field(description="0: there was no version")
    document: dict[str, Any]
    opened_by: str
    updated_by: str
    updated_at: datetime


class ModelsOut(Schema):
    version: int = Field(description="0: none has been published")
    document: dict[str, Any]
    live: ModelsVersionOut | None
    draft: ModelsDraftOut | None
    routers: int = Field(description="Live routers")
    routers_current: int = Field(description="Routers of these that run the live version")


class HomeOut(Schema):
    instance: str
    state: str = Field(description="loading, loaded, failed or leaving")
    text: str = Field(description="Why, as the engine says")


class AdapterOut(Schema):
    pool: str
    name: str
    source: str = Field(description="Empty: somebody else loads it")
    replicas: int | None = Field(description="null: no name of the document uses it")
    extra: int = Field(description="Homes beyond the replicas, since all of them were full")
    state: str
    homes: list[HomeOut]


class ModelsPublicationOut(Schema):
    version: ModelsVersionOut
    summary: str = Field(description="As text: 3/3 routers, 6 ms")
    acks: list[AckOut]
    missing: list[str] = Field(description="Live routers that had not acknowledged within a second")
    stored_only: bool = Field(description="Redis was unreachable; routers load the version when it is back")
    dry_run: bool = Field(description="Every check has passed, and nothing was changed")


class ModelsDraftIn(Body):
    document: dict[str, Any]
    based_on: int | None = Field(None, ge=1, le=ROW_MAX, description="Rebase the draft onto this live version")


class PublishModelsIn(Body):
    reason: str = Field(max_length=REASON_MAX)
    emergency: str = Field("", max_length=REASON_MAX, description="Why to go past the rules; requires the scope admin")


class RollbackModelsIn(Body):
    to: int = Field(ge=1, le=ROW_MAX)
    reason: str = Field(max_length=REASON_MAX)


@router.get("", response=ModelsOut, openapi_extra=answers(YAML), auth=needs("policy:read"))
def get_models(request: HttpRequest, response: HttpResponse) -> Any:
    """What is live of the document Models, its open draft, and who serves it; the document alone with Accept:
    application/yaml"""
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
        "", max_length=REASON_MAX, pattern=TEXT, description="Why to go past the rules; requires the scope admin"
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


@router.get("/versions", response=list[ModelsVersionOut], auth=needs("policy:read"))
def list_models_versions(
    request: HttpRequest,
    limit: int = Query(50, ge=1, le=200),
    before: int | None = Query(None, ge=1, le=ROW_MAX, description="Only versions with a smaller number"),
) -> Any:
    """Published versions, newest first"""
    return page(selectors.history(), before, limit, by="number")


@router.get("/versions/{number}", response=ModelsVersionOut, auth=needs("policy:read"))
def get_models_version(request: HttpRequest, response: HttpResponse, number: Number) -> Any:
    """One published version"""
    version = selectors.version(number)
    etags.put(response, version.etag)
    return version


@router.get("/adapters", response=list[AdapterOut], auth=needs("policy:read"))
def list_adapters(request: HttpRequest) -> Any:
    """LoRA adapters with the instances that hold them"""
    return homes.adapters()


@router.post("/draft", response={200: ModelsDraftOut, 201: ModelsDraftOut}, auth=needs("policy:write"))
def open_models_draft(request: HttpRequest, response: HttpResponse) -> Any:
    """Open a draft of the live version, or return the open draft"""
    existed = selectors.open_draft() is not None
    draft = services.open_draft(actor_of(request))
    etags.put(response, draft.etag)
    return Status(200 if existed else 201, draft)


@router.get("/draft", response={200: ModelsDraftOut, **errors(404)}, auth=needs("policy:read"))
def get_models_draft(request: HttpRequest, response: HttpResponse) -> Any:
    """The open draft"""
    draft = found(selectors.open_draft(), "Models has no open draft; POST to this address opens one")
    etags.put(response, draft.etag)
    return draft


@router.put("/draft", response={200: ModelsDraftOut, **errors(409)}, openapi_extra=IF_MATCH, auth=needs("policy:write"))
def put_models_draft(request: HttpRequest, response: HttpResponse, payload: ModelsDraftIn) -> Any:
    """Replace the document of the draft"""
    seen = etags.if_match(request)
    draft = services.save_draft(payload.document, actor_of(request), if_match=seen, based_on=payload.based_on)
    etags.put(response, draft.etag)
    return draft


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
def roll_back_models(request: HttpRequest, response: HttpResponse, payload: RollbackModelsIn) -> Any:
    """Publish the document of an earlier version as a new one"""
    made = services.rollback(payload.to, actor_of(request), payload.reason, if_match=etags.if_match(request))
    etags.put(response, made.version.etag)
    return made
