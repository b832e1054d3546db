"""What the fleet's operations take and answer."""

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema


class FieldChangeOut(Schema):
    path: str
    old: Any = None
    new: Any = None


class FleetChangeOut(Schema):
    kind: Literal["create", "update", "remove", "unlisted"]
    pool: str
    effect: str = Field(description="In words")
    fields: list[FieldChangeOut]


class AppliedOut(Schema):
    dry_run: bool
    drift: bool = Field(description="Whether the fleet was otherwise than the document says")
    changes: list[FleetChangeOut]


class FleetOut(Schema):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: dict[str, Any]


class PoolOut(Schema):
    name: str
    model: str
    policy: str
    kind: str
    replicas: int
    node: str
    engine: dict[str, Any]
    ephemeral_owner: str = Field(description="Of an experiment's pool; empty for the fleet's own")
    ready: int
    wanted: int = Field(description="Replicas that are not drained or stopped on request")
    counts: dict[str, int] = Field(description="Instances by the status that is shown")
    matches_desired: bool
    differences: list[str]


class InstanceOut(Schema):
    id: str
    pool: str
    ordinal: int
    desired: Literal["running", "drained", "asleep", "stopped"]
    state: str
    status: str = Field(description="The state, corrected by the age and the load of the latest sample")
    reason: str
    since: datetime
    routable: bool
    epoch: int
    node: str
    pid: int | None
    url: str
    ports: dict[str, int]
    command: list[str]
    restarts: int
    failures: int
    next_start_at: datetime | None
    started_at: datetime | None
    sample: dict[str, Any] | None = Field(description="The latest figures, with their own time in `at`")


class EventOut(Schema):
    at: datetime
    instance: str
    pool: str
    epoch: int
    kind: str
    text: str
    actor: str
    reason: str
    seconds: float | None = Field(description="How long what ended with it had lasted")


class LogOut(Schema):
    instance: str
    lines: list[str]


class ReasonIn(Schema):
    reason: str = Field("", max_length=300, description="Kept in the audit log", examples=["new cable"])
