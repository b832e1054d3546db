"""Schemas of the fleet operations."""

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from controlplane.common.description import ALWAYS_SENT
from controlplane.doors.api.etags import Etag
from controlplane.doors.api.unread import Body
from controlplane.pages.fleet_ops.rows import SourceView
from fleet.spec.sections import MAX_REPLICAS


class FieldChangeOut(Schema):
    path: str
    old: Any = None
    new: Any = None


class FleetChangeOut(Schema):
    kind: Literal["create", "update", "remove", "unlisted", "prices"]
    pool: str = Field(description="Empty for the prices")
    effect: str = Field(description="In words")
    fields: list[FieldChangeOut]


class AppliedOut(Schema):
    dry_run: bool
    drift: bool = Field(description="Whether the document changed the fleet")
    changes: list[FleetChangeOut]
    warnings: list[str] = Field(description="Warnings: accepted, but will not work as the fleet is now")


class FindingOut(Schema):
    subject: str
    good: bool
    text: str = Field(description="The result of the check")
    advice: str = Field(description="How to fix it")


class PodOut(Schema):
    node: str
    image: str
    resources: dict[str, dict[str, str]] = Field(description="requests and limits of the Pod")
    manifests: str = Field(description="The objects of the start, as YAML, secrets hidden")
    lacks: str = Field(description="Why there is no Pod; empty when there is one")


class StartOut(Schema):
    pool: str
    command: str = Field(
        description="Environment and command line of the first instance (or of its Pod's container), secrets hidden"
    )
    files: dict[str, str] = Field(description="Files written before the start: path and text")
    findings: list[FindingOut]
    elsewhere: str = Field(description="The node, if it is another host, which was not checked")
    pod: PodOut | None = Field(description="For a node that is a Kubernetes namespace")


class FleetOut(Schema):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: dict[str, Any]


class AdviceOut(Schema):
    model_config = ALWAYS_SENT

    at: float
    mode: Literal["advisory", "automatic"]
    replicas: int
    advised: int
    prefills: int | None = Field(None, description="Of the replicas, how many prefill; null: sides are not scaled")
    advised_prefills: int | None = Field(None, description="Of the advised replicas, how many prefill")
    why: str
    balance: str = Field("", description="Of prefill and decode instances, measured; empty: the pool has no roles")


class PoolOut(Etag):
    name: str
    model: str
    policy: str
    kind: str
    replicas: int
    node: str
    engine: dict[str, Any]
    update: dict[str, Any]
    placement: dict[str, Any]
    schedule: dict[str, Any]
    autoscale: dict[str, Any]
    mode: Literal["serve", "observe"] = Field(description="observe: its engines are shown and get no requests")
    source: SourceView | None = Field(description="Source that lists its instances; null if the document does")
    slo: dict[str, Any] = Field(description="ttft_p90_ms by class; drawn on Live and the wall")
    access: dict[str, Any] = Field(
        description="trusted_keys, salt_by_key, billing_line: how requests reach its engines"
    )
    replicas_now: int = Field(description="Desired number now: as declared, scheduled or set by the autoscaler")
    because: str = Field(description="Reason, when the number is not the declared one")
    changing: bool = Field(description="A rollout is under way or halted")
    halted: str = Field(description="Why the rollout is halted; empty when it is not")
    waits: str = Field(description="Why instances cannot be started now; empty when they can")
    at_zero: bool = Field(description="It has no instance, and the next request wakes it")
    advice: AdviceOut | None = Field(description="Advice of the autoscaler; null without one")
    ephemeral_owner: str = Field(description="The owner of an experiment's pool; empty for other pools")
    ready: int
    wanted: int = Field(description="Replicas that no operator has drained or stopped")
    counts: dict[str, int] = Field(description="Number of instances by status")
    matches_desired: bool
    differences: list[str]


class LookIn(Body):
    engine: dict[str, Any] = Field(
        description="Options of the kind external: urls, kubernetes, dns or file, and the others",
        examples=[{"dns": "engines.llm.svc:8000"}],
    )
    pool: str = Field("", max_length=63, description="Name of the pool, where a label tells it")


class InstanceOut(Etag):
    id: str
    pool: str
    ordinal: int
    desired: Literal["running", "drained", "asleep", "stopped"]
    state: str
    status: str = Field(description="The state, corrected by the age and load of the latest sample")
    reason: str
    since: datetime
    routable: bool
    epoch: int
    node: str
    pid: int | None
    pod: str = Field(description="The Pod, on a node that is a Kubernetes namespace; else empty")
    url: str
    ports: dict[str, int]
    command: list[str]
    gpus: list[int] = Field(description="Indices of the node's GPUs that it has exclusively")
    retired: str = Field(description="Why the pool no longer needs it; empty when it stays")
    asleep: int | None = Field(description="Sleep level; null when awake")
    server: str = Field(description="What answers at the URL of an engine that another system started; else empty")
    version: str = Field(description="Of the server")
    listed: dict[str, Any] = Field(description="What the source of its pool says of it: name, node, labels, …")
    restarts: int
    failures: int
    next_start_at: datetime | None
    started_at: datetime | None
    sample: dict[str, Any] | None = Field(description="The latest sample, with its time in `at`")


class EventOut(Schema):
    at: datetime
    instance: str = Field(description="Empty for events of a pool or a node")
    pool: str
    node: str = Field(description="Set for events of the node itself")
    epoch: int
    kind: str
    text: str
    actor: str
    reason: str
    seconds: float | None = Field(description="Duration of the phase that the event ended")


class LogOut(Schema):
    instance: str
    lines: list[str]


class ReasonIn(Body):
    reason: str = Field("", max_length=300, description="Reason, kept in the audit log", examples=["new cable"])


NO_REASON = ReasonIn.model_validate({})


class ActIn(ReasonIn):
    level: Literal[1, 2] = Field(1, description="Sleep level: 1 keeps the weights in host memory, 2 drops them")
    group: bool = Field(
        False,
        description="All instances of its group (DWDP, or data-parallel ranks): one of them alone cannot be drained, "
        "stopped or restarted",
    )


class ScaleIn(ReasonIn):
    replicas: int = Field(ge=0, le=MAX_REPLICAS)


class PoolRollbackIn(ReasonIn):
    version: int | None = Field(None, ge=1, description="Default: the latest other version that worked")


class PoolVersionOut(Schema):
    number: int
    present: bool
    config: dict[str, Any]
    at: datetime
    actor: str
    reason: str
    proven_at: datetime | None = Field(description="When every instance was ready with this version")
    failed: str = Field(description="Why the rollout was halted or rolled back")
    changes: list[FieldChangeOut] = Field(description="Changes against the previous version")


class NodeOut(Etag):
    name: str
    hostname: str
    address: str
    last_seen: datetime | None
    age_s: float | None = Field(description="Since its last heartbeat, in seconds")
    reports: bool = Field(description="New instances may be placed on it")
    cordoned: bool
    draining: bool
    because: str
    labels: dict[str, str]
    inventory: dict[str, Any]
    instances: list[str]
