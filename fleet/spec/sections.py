"""The parts of a pool that say how it lives: how it changes, where it runs, how many there are. Pure.

Each section is a mapping of the document (checked by fleet/spec/section_checks.py), read here as a frozen dataclass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.kinds.option import build, option

MAX_REPLICAS = 512  # replicas of one pool
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
CLASSES = ("warm", "medium", "heavy")


@dataclass(frozen=True)
class Update:
    """How a changed configuration goes through the pool."""

    strategy: str = option(
        "in_place",
        title="Strategy",
        kind="text",
        choices=("in_place", "surge"),
        help="in_place: drain, stop, start one after the other. surge: start the new ones first, then drain old ones.",
    )
    max_surge: int | None = option(
        None,
        title="Most in addition",
        unit="instances",
        minimum=1,
        maximum=MAX_REPLICAS,
        help="With surge; left out: a quarter of the pool.",
    )
    max_unavailable: int | None = option(
        None,
        title="Most out of routing",
        unit="instances",
        minimum=0,
        maximum=MAX_REPLICAS,
        help="Left out: a quarter of the pool in place, none with surge.",
    )
    on_failure: str = option(
        "halt",
        title="When the new one fails",
        kind="text",
        choices=("halt", "rollback"),
        help="halt: the rest stays as it was until somebody decides. rollback: the last configuration that worked.",
    )

    def surge(self, replicas: int) -> int:
        """Instances that may run in addition during a change."""
        if self.strategy != "surge":
            return 0
        return self.max_surge if self.max_surge is not None else max(1, replicas // 4)

    def unavailable(self, replicas: int) -> int:
        """Instances that may be out of routing for a change."""
        if self.max_unavailable is not None:
            return self.max_unavailable
        return 0 if self.strategy == "surge" else max(1, replicas // 4)


@dataclass(frozen=True)
class Placement:
    """On which nodes instances may run, and what each takes there."""

    nodes: tuple[str, ...] = ()  # empty: any
    labels: Mapping[str, str] = field(default_factory=dict)  # that the node must have
    spread: bool = True  # over the nodes; else as few as possible
    cpus: float = 0.0
    memory_gib: float = 0.0
    gpus: int = 0


@dataclass(frozen=True)
class PlacementOptions:
    spread: bool = option(True, title="Spread", kind="bool", help="Over the nodes; else as few nodes as possible.")
    cpus: float = option(0.0, title="CPUs", kind="float", minimum=0, maximum=4096, help="That one instance takes.")
    memory_gib: float = option(
        0.0, title="Memory", kind="float", unit="GiB", minimum=0, maximum=65_536, help="That one instance takes."
    )
    gpus: int = option(0, title="GPUs", minimum=0, maximum=64, help="That one instance has for itself.")


@dataclass(frozen=True)
class ScheduleWindow:
    days: tuple[str, ...]  # on which it begins
    begins: int  # minutes after midnight
    ends: int  # minutes after midnight, up to 1440; not after `begins`: on the next day
    replicas: int


@dataclass(frozen=True)
class Schedule:
    timezone: str = "UTC"
    windows: tuple[ScheduleWindow, ...] = ()


@dataclass(frozen=True)
class Autoscale:
    """How many instances the load asks for."""

    mode: str = option(
        "advisory",
        title="Mode",
        kind="text",
        choices=("advisory", "automatic"),
        help="advisory only says what it would do.",
    )
    min: int = option(1, title="Fewest", unit="instances", minimum=1, maximum=MAX_REPLICAS, help="Never fewer.")
    max: int = option(8, title="Most", unit="instances", minimum=1, maximum=MAX_REPLICAS, help="Never more.")
    target_queue: float | None = option(
        None, title="Queue", kind="float", unit="requests", minimum=0.1, maximum=10_000, help="Waiting per instance."
    )
    target_kv: float | None = option(
        None, title="KV use", kind="float", minimum=0.05, maximum=1, help="Mean share of the KV blocks in use."
    )
    up_after_s: float = option(
        15.0, title="Up after", kind="float", unit="s", minimum=1, maximum=3600, help="Of too much load."
    )
    down_after_s: float = option(
        300.0, title="Down after", kind="float", unit="s", minimum=1, maximum=3600, help="Of too little load."
    )
    cooldown_s: float = option(
        60.0, title="Pause", kind="float", unit="s", minimum=0, maximum=3600, help="Between two steps."
    )
    slo_ttft_p90_ms: Mapping[str, float] = field(
        default_factory=dict,
        metadata={
            "title": "TTFT p90",
            "kind": "text",
            "unit": "ms",
            "minimum": None,
            "maximum": None,
            "choices": (),
            "help": "Per class, for example {warm: 300}.",
        },
    )


def update_of(given: Mapping[str, Any]) -> Update:
    read: Update = build(Update, given)
    return read


def autoscale_of(given: Mapping[str, Any]) -> Autoscale:
    read: Autoscale = build(Autoscale, {name: value for name, value in given.items() if value is not None})
    return read


def placement_of(given: Mapping[str, Any], node: str = "") -> Placement:
    """`node`: the one node that the pool names instead of a placement."""
    if node:
        return Placement(nodes=(node,))
    options = {name: value for name, value in given.items() if name not in ("nodes", "labels")}
    plain = build(PlacementOptions, options)
    return Placement(tuple(given.get("nodes", ())), dict(given.get("labels", {})), **vars(plain))


def schedule_of(given: Mapping[str, Any]) -> Schedule:
    windows = tuple(
        ScheduleWindow(tuple(one.get("days", DAYS)), _minutes(one["from"]), _minutes(one["to"]), one["replicas"])
        for one in given.get("windows", ())
    )
    return Schedule(given.get("timezone", "UTC"), windows)


def _minutes(text: str) -> int:
    hours, minutes = text.split(":")
    return int(hours) * 60 + int(minutes)
