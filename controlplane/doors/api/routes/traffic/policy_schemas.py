"""Schemas of the policy operations."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Field, Schema

from controlplane.doors.api.openapi import ROW_MAX
from controlplane.doors.api.unread import Body
from controlplane.traffic.policies import services
from controlplane.traffic.policies.versioned import PublishedVersion
from router.policy.schema.parameter import Parameter
from router.policy.schema.parameters import STRATEGY_NAME
from router.policy.strategies import STRATEGIES

Reason = Annotated[str, Field(max_length=services.REASON_MAX)]
Emergency = Annotated[
    str, Field(max_length=services.REASON_MAX, description="Why the rules are bypassed; requires the scope admin")
]
Rebase = Annotated[int | None, Field(ge=1, le=ROW_MAX, description="Rebase the draft onto this live version")]
MadeFrom = Annotated[
    int | None,
    Field(ge=1, le=ROW_MAX, description="The version that the document was made from: a conflict if another is live"),
]
DryRun = Annotated[bool, Field(description="Only check it, by every rule, and change nothing")]


class ActorOut(Schema):
    kind: str = Field(validation_alias="actor_kind")
    name: str = Field(validation_alias="actor_name")


class PublishedOut(Schema):
    """A published version of a policy or of the document Models."""

    number: int
    sha256: str
    document: dict[str, Any] = Field(description="As published; older versions may be of an older schema")
    reason: str
    actor: ActorOut
    published_at: datetime = Field(description="For a candidate: when it was proposed")
    based_on: int | None
    rollback_of: int | None

    @staticmethod
    def resolve_actor(version: PublishedVersion) -> PublishedVersion:
        return version


class VersionOut(PublishedOut):
    policy: str = Field(validation_alias="policy.name")
    live_since: datetime | None = Field(description="When it went live; null for a candidate that has not")


class OpenDraftOut(Schema):
    etag: str = Field(description="Send as If-Match to change, discard or publish it")
    revision: int
    based_on: int = Field(description="0: there was no version")
    document: dict[str, Any] = Field(validation_alias="upgraded")
    opened_by: str
    updated_by: str
    updated_at: datetime


class DraftOut(OpenDraftOut):
    policy: str = Field(validation_alias="policy.name")
    note: str = Field(description="Source of its values: the evidence of a tuning; else empty")


class PolicyOut(Schema):
    name: str = Field(validation_alias="policy.name")
    created_at: datetime = Field(validation_alias="policy.created_at")
    live: VersionOut
    draft: DraftOut | None
    pools: list[str] = Field(validation_alias="scope.pools")
    routers: int = Field(
        validation_alias="ack.routers", description="Live routers that serve one of the policy's pools"
    )
    routers_current: int = Field(
        validation_alias="ack.current", description="Routers of these that run the live version"
    )


class AckOut(Schema):
    router: str
    ms: float


class AcknowledgedOut(Schema):
    summary: str = Field(description="As text: 3/3 routers, 6 ms")
    acks: list[AckOut]
    missing: list[str] = Field(description="Live routers that had not acknowledged within a second")
    stored_only: bool = Field(description="Redis was unreachable; routers load the version when it is back")
    dry_run: bool = Field(description="Every check has passed, and nothing was changed")


class PublicationOut(AcknowledgedOut):
    version: VersionOut
    pools: list[str]


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

    @staticmethod
    def resolve_raises(parameter: Parameter) -> str:
        return parameter.help

    @staticmethod
    def resolve_strategies(parameter: Parameter) -> Sequence[str]:
        return parameter.strategies or [name for name, each in STRATEGIES.items() if parameter in each.parameters]


class PolicySchemaOut(Schema):
    document_schema: dict[str, Any]
    parameters: list[ParameterOut]


class PolicyIn(Body):
    name: str = Field(max_length=50, examples=["night"])
    reason: Reason
    document: dict[str, Any] | None = Field(None, description="Left out: the defaults of `strategy`")
    strategy: str = Field(STRATEGY_NAME.default, max_length=60)


class DraftPatch(Body):
    overrides: dict[str, Any] | None = Field(None, examples=[{"classes.heavy_new_tokens": 10000}])
    document: dict[str, Any] | None = Field(None, description="The whole document, instead of overrides")
    based_on: Rebase = None


class PublishIn(Body):
    reason: Reason
    abort_open: bool = Field(False, description="End the open delivery, which is a conflict otherwise")
    emergency: Emergency = ""


class PublishDocumentIn(PublishIn):
    document: dict[str, Any]
    based_on: MadeFrom = None
    dry_run: DryRun = False


class RollbackIn(Body):
    to: int = Field(ge=1, le=ROW_MAX)
    reason: Reason
