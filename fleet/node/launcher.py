"""What a node starts its instances as: processes of its host (fleet/node/host_launcher.py), or Pods (fleet/kubernetes).

The plan, the states, the events and the pages are the same for both; only this differs.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from fleet.models import Instance
from fleet.node.prepare import PreparedStart


class LaunchError(OSError):
    """It could not be started; the message says why, and the start is tried again after a back-off."""


class StartDeferred(Exception):
    """It cannot be started yet, and that is nobody's failure: the same order comes again (fleet/plan/reconcile.py)."""


@dataclass(frozen=True, slots=True)
class StartedInstance:
    made: PreparedStart
    words: str  # "launched as process 12"
    fields: dict[str, Any] = field(default_factory=dict)  # of the record: by what it is known again


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """What is seen of an instance without asking its endpoints."""

    alive: bool
    away: str = ""  # why it gets no requests although it is alive: suspended, being evicted
    waits: str = ""  # for what, before it runs at all: an image, room
    ended: str = "the process ended"  # how its end is told


@dataclass(frozen=True, slots=True)
class ShutdownReport:
    """What became of a node's instances when all of them were to end."""

    names: tuple[str, ...]  # of those that ran and are gone
    left: Mapping[str, str] = field(default_factory=dict)  # of those that may still run, and why


class Launcher(Hashable, Protocol):
    def refresh(self, node: str) -> None:
        """Before the node looks at its instances."""

    def fence(self, node: str) -> list[str]:
        """End what runs on the node and is not what the database says should be there; names of instances."""

    def claim(self, instance: Instance) -> int | None:
        """None: nothing of it runs, and this epoch may be started. Else the epoch that was started already. Unready."""

    def start(self, instance: Instance) -> StartedInstance:
        """OSError, NoPort, NotReady or LookupError when it cannot be."""

    def revoke(self, started: StartedInstance) -> None:
        """End what was just started: its record had moved on."""

    def signal(self, instance: Instance, kill: bool) -> bool:
        """Tell it to end, or end it; False when it is not there any more."""

    def end_all(self, node: str, grace_s: float) -> ShutdownReport:
        """Tell everything on the node to end, kill what is left after the grace, and wait until it is gone."""

    def status(self, instance: Instance) -> ProcessStatus: ...

    def failure_cause(self, instance: Instance) -> str:
        """Why it ended, in words an operator can act on."""

    def inventory(self) -> dict[str, Any]:
        """What the node has; asked once a minute."""

    def close(self) -> None:
        """Let go of connections and threads; what runs runs on."""

    def live_inventory(self) -> dict[str, Any]:
        """What of the inventory changes with each heartbeat."""
