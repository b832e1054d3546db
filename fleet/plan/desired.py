"""Desired and observed state as plain values, and their comparison for one instance. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fleet.spec.sections import Placement, Update

ActionKind = Literal[
    "create", "start", "drain", "undrain", "stop", "kill", "rest", "delete", "delete_pool",
    "retire", "keep", "complete", "halt", "rollback", "sleep", "wake",
]  # fmt: skip
Goal = Literal["run", "drained", "asleep", "stopped", "gone"]
GOALS: Mapping[str, Goal] = {"running": "run", "drained": "drained", "stopped": "stopped", "asleep": "asleep"}
AT_REST = ("stopped", "failed")  # states without a process


@dataclass(frozen=True, slots=True)
class DesiredPool:
    name: str
    replicas: int  # declared, scheduled or set by the autoscaler
    config_hash: str  # hash of the current configuration
    load_timeout_s: float
    drain_timeout_s: float
    removed: bool = False
    because: str = ""  # reason for `replicas`; empty: the document declares them
    placement: Placement = field(default_factory=Placement)
    update: Update = field(default_factory=Update)
    stable_hash: str = ""  # latest other configuration with which every instance was ready; empty: none
    proven: bool = True  # every instance has been ready with the current configuration
    halted: str = ""  # why the change to the current configuration was halted
    launched: bool = True  # Weir starts its processes, so it also replaces unreachable ones
    ordinals: frozenset[int] | None = None  # ordinals, where an instance's role depends on its ordinal; None: any
    needs: tuple[str, ...] = ()  # pools that must have a ready instance before this one starts
    groups: Mapping[int, tuple[int, ...]] = field(default_factory=dict)  # ordinal → ordinals that serve only together
    listed: tuple[str, ...] | None = None  # keys of the engines that its source lists; None: it has no source


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    name: str
    pool: str
    ordinal: int
    state: str
    desired: str  # "running", "drained", "asleep" or "stopped"
    reason: str
    since: float  # Unix time at which its state began
    config_hash: str  # hash of its latest start
    restart_asked: str  # user who asked for a restart, and the reason; empty: no request
    idle: bool  # True if it is draining and its sample shows no requests
    next_start_at: float | None  # end of the back-off
    stop_deadline: float | None  # time of the SIGKILL
    node: str = ""  # node of its latest start
    gpus: tuple[int, ...] = ()  # GPUs assigned on that node
    retired: str = ""  # why it is being removed; empty: it stays
    load: int = 0  # running and waiting requests
    failures: int = 0  # failures in a row
    was_ready: bool = False  # True if ready before in this epoch
    asleep: int | None = None  # sleep level once it may sleep
    ordered_at: float | None = None  # time of a sleep or wake order without an outcome
    allowance_s: float = 0.0  # added to the load time-out of its kind
    listed: str = ""  # its key in the source of its pool


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    pool: str
    instance: str  # empty for an action on the pool
    ordinal: int
    reason: str
    failure: bool = False  # for "kill": True if the instance has failed, so that it backs off
    config_hash: str = ""  # for "start"
    node: str = ""  # for "start"
    gpus: tuple[int, ...] = ()
    listed: str = ""  # for "create": the key of the engine in the source of the pool


def act(kind: ActionKind, instance: ObservedInstance, reason: str, failure: bool = False) -> Action:
    return Action(kind, instance.pool, instance.name, instance.ordinal, reason, failure)


def of_pool(kind: ActionKind, pool: DesiredPool, reason: str) -> Action:
    return Action(kind, pool.name, "", 0, reason)


def goal(pool: DesiredPool, instance: ObservedInstance) -> Goal:
    return "gone" if pool.removed or instance.retired else GOALS[instance.desired]


def start_hash(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Return the configuration for the instance's next start: while a change is halted, one that works."""
    if not pool.halted:
        return pool.config_hash
    own = instance.config_hash
    return own if own and own != pool.config_hash else pool.stable_hash or pool.config_hash


def changed(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Return why a change of the pool replaces this process; empty if no change does, or the change is halted."""
    if pool.halted or instance.config_hash == pool.config_hash:
        return ""
    return "its configuration changed"


def outdated(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Return why this process must be replaced; empty if it need not be."""
    return instance.restart_asked or changed(pool, instance)


def leaving(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Return why this process must end; empty if it stays."""
    if pool.removed:
        return "the pool is removed"
    if instance.retired:
        return instance.retired
    return "stopped on request" if instance.desired == "stopped" else outdated(pool, instance)
