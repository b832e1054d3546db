"""What the fleet's operations take and answer."""

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from controlplane.api.body import Body


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
    warnings: list[str] = Field(description="What is accepted and will not work as things are")


class FindingOut(Schema):
    subject: str
    good: bool
    text: str = Field(description="What was found")
    advice: str = Field(description="What to do when it is not good")


class PodOut(Schema):
    node: str
    image: str
    resources: dict[str, dict[str, str]] = Field(description="requests and limits, as the Pod has them")
    manifests: str = Field(description="The objects of the start, as YAML, secrets hidden")
    lacks: str = Field(description="Why there are none of these; empty when there are")


class StartOut(Schema):
    pool: str
    command: str = Field(
        description="Environment and command line of its first instance, secrets hidden; of a Pod, its container's"
    )
    files: dict[str, str] = Field(description="Written before the start: path and text")
    findings: list[FindingOut]
    elsewhere: str = Field(description="The node that it runs on, where that is another host; nothing was looked at")
    pod: PodOut | None = Field(description="Where the node is a Kubernetes namespace")


class FleetOut(Schema):
    apiVersion: str
    kind: str
    metadata: dict[str, Any]
    spec: dict[str, Any]


class AdviceOut(Schema):
    at: float
    mode: Literal["advisory", "automatic"]
    replicas: int
    advised: int
    why: str


class PoolOut(Schema):
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
    replicas_now: int = Field(description="That are wanted now: declared, scheduled or set by the autoscaler")
    because: str = Field(description="Why so many, when it is not simply what is declared")
    changing: bool = Field(description="A change of the configuration goes through the pool, or is halted")
    halted: str = Field(description="Why it is halted; empty when it is not")
    waits: str = Field(description="Why its instances cannot be started now; empty when they can")
    advice: AdviceOut | None = Field(description="Of the autoscaler; null without one")
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
    pod: str = Field(description="On a node that is a Kubernetes namespace, instead of a process; else empty")
    url: str
    ports: dict[str, int]
    command: list[str]
    gpus: list[int] = Field(description="Numbers of the GPUs of its node that it has for itself")
    retired: str = Field(description="Why its pool can do without it; empty when it stays")
    asleep: int | None = Field(description="Level of its sleep; null when it is awake")
    restarts: int
    failures: int
    next_start_at: datetime | None
    started_at: datetime | None
    sample: dict[str, Any] | None = Field(description="The latest figures, with their own time in `at`")


class EventOut(Schema):
    at: datetime
    instance: str = Field(description="Empty: of the pool as a whole, or of a node")
    pool: str
    node: str = Field(description="Of the node itself; empty for what runs there")
    epoch: int
    kind: str
    text: str
    actor: str
    reason: str
    seconds: float | None = Field(description="How long what ended with it had lasted")


class LogOut(Schema):
    instance: str
    lines: list[str]


class ReasonIn(Body):
    reason: str = Field("", max_length=300, description="Kept in the audit log", examples=["new cable"])


class ActIn(ReasonIn):
    level: Literal[1, 2] = Field(1, description="Of a sleep: 1 keeps the weights in host memory, 2 drops them")


class ScaleIn(ReasonIn):
    replicas: int = Field(ge=0, le=512)


class PoolRollbackIn(ReasonIn):
    version: int | None = Field(None, ge=1, description="Left out: the latest other one that worked")


class PoolVersionOut(Schema):
    number: int
    present: bool
    config: dict[str, Any]
    at: datetime
    actor: str
    reason: str
    proven_at: datetime | None = Field(description="When every instance was ready with it")
    failed: str = Field(description="Why the change to it was halted or rolled back")
    changes: list[FieldChangeOut] = Field(description="Against the version before")


class NodeOut(Schema):
    name: str
    hostname: str
    address: str
    last_seen: datetime | None
    age_s: float | None = Field(description="Since its last heartbeat, in seconds")
    reports: bool = Field(description="It is given instances to start")
    cordoned: bool
    draining: bool
    because: str
    labels: dict[str, str]
    inventory: dict[str, Any]
    instances: list[str]
