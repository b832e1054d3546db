"""What to do so that what runs becomes what should run. Pure: `plan(desired, observed, now) -> actions`.

Each action is one step for one instance; once it is carried out, the next plan takes the next step. A fleet that is as
it should be has an empty plan.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from fleet.state import REPLACE_AFTER_S

ActionKind = Literal["create", "start", "drain", "undrain", "stop", "kill", "rest", "delete", "delete_pool"]
Goal = Literal["run", "drained", "stopped", "gone"]

CLAIM_S = 20.0  # a start that its node has not carried out by then is given out again
KILL_AGAIN_S = 5.0  # between two SIGKILLs to a process that stays (it may be in an uninterruptible wait)


@dataclass(frozen=True, slots=True)
class DesiredPool:
    name: str
    replicas: int
    config_hash: str  # of the configuration that each instance should have been started with
    node: str
    node_seen: bool  # the node's worker is there to do something
    load_timeout_s: float
    drain_timeout_s: float
    removed: bool = False


@dataclass(frozen=True, slots=True)
class ObservedInstance:
    name: str
    pool: str
    ordinal: int
    state: str
    wish: str  # "running", "drained" or "stopped"
    reason: str
    since: float  # Unix seconds, in that state
    config_hash: str  # of what its latest start was made from
    restart_asked: str  # by whom and why; empty: nobody
    idle: bool  # while draining: no request is left, as its own figures say
    next_start_at: float | None  # back-off
    stop_deadline: float | None  # then SIGKILL


@dataclass(frozen=True, slots=True)
class Action:
    kind: ActionKind
    pool: str
    instance: str  # empty for delete_pool
    ordinal: int
    reason: str
    failure: bool = False  # of a kill: what is killed has failed, so back off


def rolling_limit(replicas: int) -> int:
    """How many instances may be out of routing at once for a change of configuration."""
    return max(1, replicas // 4)


def plan(desired: Iterable[DesiredPool], observed: Iterable[ObservedInstance], now: float) -> tuple[Action, ...]:
    """The next step for everything that is not as it should be; instances of pools not named are left alone."""
    by_pool: dict[str, list[ObservedInstance]] = {}
    for instance in observed:
        by_pool.setdefault(instance.pool, []).append(instance)
    return tuple(action for pool in desired for action in _plan_pool(pool, by_pool.get(pool.name, []), now))


def _plan_pool(pool: DesiredPool, instances: list[ObservedInstance], now: float) -> list[Action]:
    actions = _missing(pool, instances)
    slots = rolling_limit(pool.replicas) - sum(_is_out(pool, instance) for instance in instances)
    for instance in sorted(instances, key=lambda one: one.ordinal):
        rolling = _waits_for_its_turn(pool, instance)
        if rolling and slots <= 0:
            continue
        action = _STEPS[instance.state](pool, instance, now)
        if action is not None:
            actions.append(action)
            slots -= rolling
    if pool.removed and not instances:
        actions.append(Action("delete_pool", pool.name, "", 0, "its last instance is gone"))
    return actions


def _waits_for_its_turn(pool: DesiredPool, instance: ObservedInstance) -> bool:
    """A change of configuration goes through the pool a few at a time; what an operator asks of one is done now."""
    return (
        instance.state == "ready"
        and goal(pool, instance) == "run"
        and bool(outdated(pool, instance))
        and not instance.restart_asked
    )


def _missing(pool: DesiredPool, instances: list[ObservedInstance]) -> list[Action]:
    if pool.removed:
        return []
    there = {instance.ordinal for instance in instances}
    return [
        Action("create", pool.name, f"{pool.name}-{ordinal}", ordinal, f"{pool.replicas} replicas are wanted")
        for ordinal in range(pool.replicas)
        if ordinal not in there
    ]


def _is_out(pool: DesiredPool, instance: ObservedInstance) -> bool:
    return goal(pool, instance) == "run" and instance.state != "ready"


def goal(pool: DesiredPool, instance: ObservedInstance) -> Goal:
    if pool.removed or instance.ordinal >= pool.replicas:
        return "gone"
    goals: dict[str, Goal] = {"running": "run", "drained": "drained", "stopped": "stopped"}
    return goals[instance.wish]


def outdated(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Why the running process must be replaced; empty when it is as it should be."""
    if instance.restart_asked:
        return instance.restart_asked
    return "its configuration has changed" if instance.config_hash != pool.config_hash else ""


def _leaving(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Why the process must end; empty when it may stay."""
    reasons: dict[Goal, str] = {
        "gone": "the pool is removed" if pool.removed else f"scaled down to {pool.replicas}",
        "stopped": "stopped on request",
    }
    return reasons.get(goal(pool, instance), "") or outdated(pool, instance)


def _do(kind: ActionKind, instance: ObservedInstance, reason: str, failure: bool = False) -> Action:
    return Action(kind, instance.pool, instance.name, instance.ordinal, reason, failure)


def _at_rest(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    """Stopped or failed: nothing runs."""
    wanted = goal(pool, instance)
    if wanted == "gone":
        return _do("delete", instance, _leaving(pool, instance))
    if wanted == "stopped":
        return _do("rest", instance, "stopped on request") if instance.state == "failed" else None
    if not pool.node_seen:
        reason = f"node {pool.node} has no worker; it is started once there is one"
        # What failed keeps its own reason, which says more.
        return _do("rest", instance, reason) if instance.state == "stopped" and instance.reason != reason else None
    if instance.next_start_at is not None and now < instance.next_start_at:
        return None
    return _do("start", instance, instance.restart_asked or "should run")


def _starting(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    """Given to its node, which has not launched it yet."""
    if now - instance.since < CLAIM_S:
        return None
    if goal(pool, instance) in {"gone", "stopped"}:
        return _do("rest", instance, _leaving(pool, instance))
    return _do("start", instance, "the node has not taken up the start") if pool.node_seen else None


def _loading(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    leaving = _leaving(pool, instance)
    if leaving:
        return _do("stop", instance, leaving)  # nothing has been sent there yet
    if now - instance.since >= pool.load_timeout_s:
        return _do("kill", instance, f"not ready within {pool.load_timeout_s:g} s of its start", failure=True)
    return None


def _ready(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    leaving = _leaving(pool, instance)
    if leaving:
        return _do("drain", instance, leaving)
    return _do("drain", instance, "drained on request") if instance.wish == "drained" else None


def _draining(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    leaving = _leaving(pool, instance)
    if not leaving:
        return _do("undrain", instance, "takes requests again") if instance.wish == "running" else None
    if instance.idle:
        return _do("stop", instance, leaving)
    if now - instance.since >= pool.drain_timeout_s:
        return _do("stop", instance, f"{leaving}; not drained within {pool.drain_timeout_s:g} s, the rest is cut off")
    return None


def _unreachable(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    if now - instance.since < REPLACE_AFTER_S:
        return None
    leaving = _leaving(pool, instance)
    return _do("kill", instance, leaving or instance.reason, failure=not leaving)


def _stopping(pool: DesiredPool, instance: ObservedInstance, now: float) -> Action | None:
    if instance.stop_deadline is None or now < instance.stop_deadline:
        return None
    return _do("kill", instance, instance.reason)


_STEPS: dict[str, Callable[[DesiredPool, ObservedInstance, float], Action | None]] = {
    "stopped": _at_rest,
    "failed": _at_rest,
    "starting": _starting,
    "loading": _loading,
    "ready": _ready,
    "draining": _draining,
    "unreachable": _unreachable,
    "stopping": _stopping,
}
