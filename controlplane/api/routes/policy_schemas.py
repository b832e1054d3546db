"""Schemas of the policy operations."""

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema
from pydantic import AliasChoices

from controlplane.api.body import Body
from controlplane.api.openapi import ROW_MAX
from controlplane.policies import selectors, services
from controlplane.policies.models import Draft, Policy, PolicyVersion
from controlplane.policies.publication import acknowledgement


class ActorOut(Schema):
    kind: str
    name: str


class VersionOut(Schema):
    policy: str
    number: int
    sha256: str
    document: dict[str, Any] = Field(description="As published; older versions may be of an older schema")
    reason: str
    actor: ActorOut
    published_at: datetime = Field(description="Of a candidate: when it was proposed")
    live_since: datetime | None = Field(description="When it went live; null for a candidate that has not")
    based_on: int | None
    rollback_of: int | None


class DraftOut(Schema):
    policy: str
    note: str = Field(description="Where its values come from: the evidence of a tuning; else empty")
    etag: str = Field(description="Send as If-Match with PATCH, DELETE and publish")
    revision: int
    based_on: int
    document: dict[str, Any]
    opened_by: str
    updated_by: str
    updated_at: datetime


class PolicyOut(Schema):
    name: str
    created_at: datetime
    live: VersionOut
    draft: DraftOut | None
    pools: list[str]
    routers: int = Field(description="Live routers that serve one of the policy's pools")
    routers_current: int = Field(description="Routers of these that run the live version")


class AckOut(Schema):
    router: str
    ms: float


class PublicationOut(Schema):
    version: VersionOut
    summary: str = Field(description="As text: 3/3 routers, 6 ms")
    pools: list[str]
    acks: list[AckOut]
    missing: list[str] = Field(description="Live routers that had not acknowledged within a second")
    stored_only: bool = Field(description="Redis was unreachable; routers load the version when it is back")


class ChangeOut(Schema):
    path: str
    title: str
    unit: str
    old: Any
    new: Any
    direction: str


class DiffOut(Schema):
    policy: str
    old: int = Field(alias="from")
    new: int = Field(alias="to")
    changes: list[ChangeOut]


class ParameterOut(Schema):
    path: str
    title: str
    unit: str
    kind: Literal["int", "float", "bool", "choice"]
    default: Any
    minimum: float | None
    maximum: float | None
    step: float | None
    choices: list[Any]
    raises: str
    metric: str
    strategies: list[str]


class PolicySchemaOut(Schema):
    document_schema: dict[str, Any]
    parameters: list[ParameterOut]


class PolicyIn(Body):
    name: str = Field(max_length=50, examples=["night"])
    reason: str = Field(max_length=services.REASON_MAX)
    document: dict[str, Any] | None = Field(None, description="Left out: the defaults of `strategy`")
    strategy: str = Field(
        "adaptive_v1",
        max_length=60,
        validation_alias=AliasChoices("strategy", "route"),
        description="Its older name `route` is accepted too",
    )


class DraftPatch(Body):
    overrides: dict[str, Any] | None = Field(None, examples=[{"classes.heavy_new_tokens": 10000}])
    document: dict[str, Any] | None = Field(None, description="The whole document, instead of overrides")
    based_on: int | None = Field(None, ge=1, le=ROW_MAX, description="Rebase the draft onto this live version")


class PublishIn(Body):
    reason: str = Field(max_length=services.REASON_MAX)
    abort_open: bool = Field(False, description="End the open delivery, which is a conflict otherwise")


class RollbackIn(Body):
    to: int = Field(ge=1, le=ROW_MAX)
    reason: str = Field(max_length=services.REASON_MAX)


def version_out(version: PolicyVersion) -> dict[str, Any]:
    fields = ("number", "sha256", "document", "reason", "published_at", "live_since", "based_on", "rollback_of")
    actor = {"kind": version.actor_kind, "name": version.actor_name}
    return {"policy": version.policy.name, "actor": actor, **{name: getattr(version, name) for name in fields}}


def draft_out(draft: Draft) -> dict[str, Any]:
    fields = ("note", "etag", "revision", "based_on", "opened_by", "updated_by", "updated_at")
    return {"policy": draft.policy.name, "document": draft.upgraded, **{name: getattr(draft, name) for name in fields}}


def policy_out(policy: Policy) -> dict[str, Any]:
    live, draft = selectors.live_version(policy), selectors.open_draft(policy)
    pools = [pool.name for pool in selectors.pools_of(policy)]
    ack = acknowledgement(policy.name, live.number, pools)
    return {
        "name": policy.name,
        "created_at": policy.created_at,
        "live": version_out(live),
        "draft": draft_out(draft) if draft else None,
        "pools": pools,
        "routers": ack.routers,
        "routers_current": ack.current,
    }


def publication_out(publication: services.Publication) -> dict[str, Any]:
    return {
        "version": version_out(publication.version),
        "summary": publication.summary,
        "pools": publication.pools,
        "acks": [{"router": ack.router, "ms": ack.ms} for ack in publication.acks],
        "missing": publication.missing,
        "stored_only": publication.stored_only,
    }
