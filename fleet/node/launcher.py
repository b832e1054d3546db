"""The interface for running instances, as processes (fleet/node/host_launcher.py) or as Pods (fleet/kubernetes).

Plan, states, events and pages are the same for both forms.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from fleet.kinds.resources import Inventory
from fleet.models import Instance
from fleet.node.prepare import PreparedStart


class LaunchFailed(OSError):
    """The start failed; it is tried again after a back-off."""


class StartDeferred(Exception):
    """The instance cannot start yet. This is not a failure: the order is sent again (fleet/plan/reconcile.py)."""


@dataclass(frozen=True, slots=True)
class StartedInstance:
    prepared: PreparedStart
    text: str  # description of the action, such as "launched as process 12"
    pid: int | None = None  # process id on this host
    pid_started: float | None = None
    pod: str = ""  # name of the Pod in a cluster


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The process or Pod of an instance, without its endpoints."""

    alive: bool
    suspended_why: str = ""  # why it must get no requests although it is running
    waits_for: str = ""  # what it waits for before it can run: an image, capacity
    end_text: str = "the process ended"  # beginning of the failure reason


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """The result of ending all instances of a node."""

    names: tuple[str, ...]  # instances that were running and have ended
    left: Mapping[str, str] = field(default_factory=dict)  # instances that may still be running → the reason


class Launcher(Hashable, Protocol):
    def refresh(self, node: str) -> None:
        """Update the node's Pods or processes before each step."""

    def fence(self, node: str) -> list[str]:
        """End processes or Pods on the node that the database does not expect; return the names of their instances."""

    def claim(self, instance: Instance) -> int | None:
        """Return None if nothing runs and this epoch may start, otherwise the epoch that has already started. Raise
        StartDeferred.
        """

    def start(self, instance: Instance) -> StartedInstance:
        """Start the instance. Raise OSError, NoPort, DependencyNotReady or LookupError."""

    def revoke(self, started: StartedInstance) -> None:
        """End a start that could not be recorded."""

    def signal(self, instance: Instance, kill: bool) -> bool:
        """Ask the instance to end, or kill it. Return False if it has already ended."""

    def end_all(self, node: str, grace_s: float) -> ShutdownReport:
        """End everything on the node: ask, kill after the grace period, and wait."""

    def status(self, instance: Instance) -> ProcessStatus: ...

    def failure_cause(self, instance: Instance) -> str:
        """Return why the instance ended, with advice for the operator."""

    def inventory(self) -> Inventory:
        """Return the node's resources; they are read once a minute."""

    def close(self) -> None:
        """Close connections and threads; instances keep running."""

    def live_inventory(self, known: Inventory) -> Inventory:
        """Return the inventory with the values that change between heartbeats."""
