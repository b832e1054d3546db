"""What is read of objects of the API server. Pure. Other fields are ignored, as a newer server may send more."""

import datetime as dt
from typing import Generic, TypeVar

from msgspec import Raw, Struct, field

ENGINE = "engine"  # the container's name


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


class Waiting(Object, frozen=True):
    """A container that does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(Object, frozen=True):
    reason: str = ""
    message: str = ""
    exit_code: int | str = "?"


class ContainerState(Object, frozen=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Object, frozen=True):
    name: str = ""
    state: ContainerState = ContainerState()


class Condition(Object, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str = ""


class PodSpec(Object, frozen=True):
    node_name: str = ""


class PodStatus(Object, frozen=True):
    phase: str = "Pending"
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    container_statuses: list[ContainerStatus] | None = None
    conditions: list[Condition] | None = None


class Pod(Object, frozen=True):
    metadata: Metadata
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

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
        """0 for a foreign Pod."""
        text = self.annotation("weir/epoch")
        return int(text) if text.isdecimal() else 0

    @property
    def engine(self) -> ContainerStatus | None:
        return next((one for one in self.status.container_statuses or () if one.name == ENGINE), None)

    @property
    def terminated(self) -> Terminated | None:
        return self.engine.state.terminated if self.engine is not None else None

    @property
    def waiting(self) -> Waiting:
        return (self.engine.state.waiting if self.engine is not None else None) or Waiting()

    def annotation(self, name: str) -> str:
        return (self.metadata.annotations or {}).get(name, "")

    def condition(self, name: str) -> Condition:
        return next((one for one in self.status.conditions or () if one.type == name), Condition())


class Event(Object, frozen=True):
    """Of a watch."""

    type: str  # ADDED, MODIFIED, DELETED; BOOKMARK: its object has only a version; ERROR: its object is a Refusal
    object: Raw


class Refusal(Object, frozen=True):
    message: str = ""
    code: int = 500


class MachineSpec(Object, frozen=True):
    unschedulable: bool = False


class MachineStatus(Object, frozen=True):
    allocatable: dict[str, str] = {}


class Machine(Object, frozen=True):
    metadata: Metadata
    status: MachineStatus
    spec: MachineSpec = MachineSpec()


class QuotaSpec(Object, frozen=True):
    hard: dict[str, str] = {}


class Quota(Object, frozen=True):
    spec: QuotaSpec


class Version(Object, frozen=True):
    git_version: str = "?"


class AccessStatus(Object, frozen=True):
    allowed: bool


class AccessReview(Object, frozen=True):
    status: AccessStatus


class Listed(Object, Generic[Item], frozen=True):
    items: list[Item]
    metadata: Metadata = Metadata()
