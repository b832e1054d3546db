"""What should run and what does, as plain values, and what follows for one instance. Pure."""

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
AT_REST = ("stopped", "failed")  # nothing runs


@dataclass(frozen=True, slots=True)
class DesiredPool:
    name: str
    replicas: int  # that are wanted now: declared, scheduled or as the load asks for
    config_hash: str  # of the configuration that each instance should have been started with
    load_timeout_s: float
    drain_timeout_s: float
    removed: bool = False
    because: str = ""  # why so many replicas, when it is not the document that says so
    placement: Placement = field(default_factory=Placement)
    update: Update = field(default_factory=Update)
    stable_hash: str = ""  # the latest other configuration with which every instance was ready; empty: none
    proven: bool = True  # every instance has been ready with the present configuration
    halted: str = ""  # why the change to the present configuration does not go on
    launched: bool = True  # its processes are ours: what is out of reach is replaced
    numbered: bool = False  # what an instance is depends on its number: they stay 0 … replicas-1
    needs: tuple[str, ...] = ()  # pools that must have a ready instance before one of this is started


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    name: str
    pool: str
    ordinal: int
    state: str
    desired: str  # "running", "drained", "asleep" or "stopped"
    reason: str
    since: float  # Unix seconds, in that state
    config_hash: str  # of what its latest start was made from
    restart_asked: str  # by whom and why; empty: nobody
    idle: bool  # while draining: no request is left, as its own figures say
    next_start_at: float | None  # back-off
    stop_deadline: float | None  # then SIGKILL
    node: str = ""  # of its latest start
    gpus: tuple[int, ...] = ()  # that it has for itself there
    retired: str = ""  # why its pool can do without it; empty: it stays
    load: int = 0  # requests that it runs or that wait there
    failures: int = 0  # in a row
    was_ready: bool = False  # in this epoch
    asleep: int | None = None  # level of its sleep
    ordered_at: float | None = None  # when it was last told to sleep or wake
    allowance_s: float = 0.0  # in addition to the load time-out of its kind


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    pool: str
    instance: str  # empty for what is about the pool
    ordinal: int
    reason: str
    failure: bool = False  # of a kill: what is killed has failed, so back off
    config_hash: str = ""  # of a start: the configuration to start it with
    node: str = ""  # of a start: where
    gpus: tuple[int, ...] = ()


def act(kind: ActionKind, instance: ObservedInstance, reason: str, failure: bool = False) -> Action:
    return Action(kind, instance.pool, instance.name, instance.ordinal, reason, failure)


def of_pool(kind: ActionKind, pool: DesiredPool, reason: str) -> Action:
    return Action(kind, pool.name, "", 0, reason)


def goal(pool: DesiredPool, instance: ObservedInstance) -> Goal:
    return "gone" if pool.removed or instance.retired else GOALS[instance.desired]


def start_hash(pool: DesiredPool, instance: ObservedInstance) -> str:
    """The configuration that it would be started with now: while a change is halted, one that works."""
    if not pool.halted:
        return pool.config_hash
    own = instance.config_hash
    return own if own and own != pool.config_hash else pool.stable_hash or pool.config_hash


def changed(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Why a change of the pool replaces the running process; empty when it does not (or the change is halted)."""
    if pool.halted or instance.config_hash == pool.config_hash:
        return ""
    return "its configuration has changed"


def outdated(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Why the running process must be replaced; empty when it is as it should be."""
    return instance.restart_asked or changed(pool, instance)


def leaving(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Why the process must end; empty when it may stay."""
    if pool.removed:
        return "the pool is removed"
    if instance.retired:
        return instance.retired
    return "stopped on request" if instance.desired == "stopped" else outdated(pool, instance)
