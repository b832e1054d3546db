"""The fields read from objects of the API server. Pure. Other fields are ignored, because a newer server may send
more."""

import datetime as dt
from typing import Generic, TypeVar

from msgspec import Raw, Struct, field

ENGINE = "engine"  # name of the container


class Object(Struct, frozen=True, rename="camel"):
    pass


Item = TypeVar("Item")


class Metadata(Object, frozen=True):
    name: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: dt.datetime | None = None  # deadline of its deletion; None: it is not being deleted


class ContainerReason(Object, frozen=True):
    """Why a container does not run yet, or has ended."""

    reason: str = ""
    message: str = ""
    exit_code: int | str = "?"


class ContainerState(Object, frozen=True):
    waiting: ContainerReason | None = None
    terminated: ContainerReason | None = None


class ContainerStatus(Object, frozen=True):
    name: str = ""
    restart_count: int = 0
    state: ContainerState = ContainerState()


class Condition(Object, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str = ""


class Spec(Object, frozen=True):
    """Spec of a Pod (its machine), of a machine (whether it takes no Pods) or of a quota (its limits)."""

    node_name: str = ""
    unschedulable: bool = False
    hard: dict[str, str] = {}


class ObjectStatus(Object, frozen=True):
    """Status of a Pod, of a machine (its resources) or of a review (whether the server allows it)."""

    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    container_statuses: list[ContainerStatus] | None = None
    conditions: list[Condition] | None = None
    allocatable: dict[str, str] = {}
    allowed: bool = False


class Resource(Object, frozen=True):
    metadata: Metadata = Metadata()
    spec: Spec = Spec()
    status: ObjectStatus = ObjectStatus()


class Pod(Resource, frozen=True):
    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def instance(self) -> str:
        return self.annotation("weir/instance")

    @property
    def born(self) -> str:
        return self.annotation("weir/born")

    @property
    def epoch(self) -> int:
        """Return the epoch; 0 for a foreign Pod."""
        text = self.annotation("weir/epoch")
        return int(text) if text.isdecimal() else 0

    @property
    def engine(self) -> ContainerStatus | None:
        return next((one for one in self.status.container_statuses or () if one.name == ENGINE), None)

    @property
    def terminated(self) -> ContainerReason | None:
        return self.engine.state.terminated if self.engine is not None else None

    @property
    def waiting(self) -> ContainerReason:
        return (self.engine.state.waiting if self.engine is not None else None) or ContainerReason()

    def annotation(self, name: str) -> str:
        return (self.metadata.annotations or {}).get(name, "")

    def condition(self, name: str) -> Condition:
        return next((one for one in self.status.conditions or () if one.type == name), Condition())


class Event(Object, frozen=True):
    """An event of a watch."""

    type: str  # ADDED, MODIFIED, DELETED; BOOKMARK: its object has only a version; ERROR: its object is an ApiRefusal
    object: Raw


class ApiRefusal(Object, frozen=True):
    message: str = ""
    code: int = 500


class Version(Object, frozen=True):
    git_version: str = "?"


class ObjectList(Object, Generic[Item], frozen=True):
    items: list[Item]
    metadata: Metadata = Metadata()
