"""The actions that bring the observed fleet closer to the desired one. Pure.
Each action is one step for one instance or pool; the next plan takes the next step. The plan for a fleet in its desired
state is empty.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fleet.plan import rollout
from fleet.plan.desired import AT_REST, Action, DesiredPool, ObservedInstance, act, goal, leaving, of_pool, start_hash
from fleet.plan.placement import HeldResources, NodeView, PendingStart, PlacedInstance, not_allowed, place
from fleet.plan.state import REPLACE_AFTER_S, replace_after_s

CLAIM_S = 20.0  # time after which a start that its node has not executed is sent again
KILL_AGAIN_S = 5.0  # interval between two SIGKILLs to a process in an uninterruptible wait
LOST_AFTER_S = 30.0  # after this long unreachable on a lost node, an instance starts elsewhere
REMEMBERED_S = 3600.0  # time for which an instance that its source no longer lists stays visible
ORDER_AGAIN_S = 60.0  # time after which a sleep or wake order without an outcome is followed by another


@dataclass(frozen=True, slots=True)
class PlanContext:
    """Facts about the whole fleet, shared within one plan."""

    now: float  # Unix seconds
    nodes: Mapping[str, NodeView]
    ready_pools: frozenset[str]  # pools with at least one ready instance
    moves: Mapping[str, str]  # instance → why it must leave its node; only if another node can take it

    def reports(self, node: str) -> bool:
        return node in self.nodes and self.nodes[node].reports


def plan(
    desired: Iterable[DesiredPool],
    observed: Iterable[ObservedInstance],
    now: float,
    nodes: Iterable[NodeView],
) -> tuple[Action, ...]:
    """Return the next step for everything that differs. Instances of pools outside `desired` are left alone."""
    pools, instances = {pool.name: pool for pool in desired}, list(observed)
    by_pool: dict[str, list[ObservedInstance]] = {}
    for instance in instances:
        by_pool.setdefault(instance.pool, []).append(instance)
    known = {node.name: node for node in nodes}
    held = {
        one.name: HeldResources(one.name, one.pool, one.node, pools[one.pool].placement, one.gpus)
        for one in instances
        if one.state not in AT_REST and one.pool in pools
    }
    ready = frozenset(instance.pool for instance in instances if instance.state == "ready")
    context = PlanContext(now, known, ready, _moves(pools, instances, held, known))
    found = [action for pool in pools.values() for action in _plan_pool(pool, by_pool.get(pool.name, []), context)]
    return tuple(_with_nodes(found, pools, instances, held, known))


def _plan_pool(pool: DesiredPool, instances: list[ObservedInstance], context: PlanContext) -> list[Action]:
    verdict = rollout.verdict(pool, instances)
    if verdict is not None:
        return [verdict]  # the verdict changes what the next plan does
    may_start = not waits_for(pool, context.ready_pools)
    actions = rollout.headcount(pool, instances, context.moves, may_start)
    actions += _steps(pool, instances, context, may_start)
    if pool.removed and not instances:
        actions.append(of_pool("delete_pool", pool, "its last instance is gone"))
    return actions


def _steps(
    pool: DesiredPool, instances: list[ObservedInstance], context: PlanContext, may_start: bool
) -> Iterator[Action]:
    """Yield the next step of each instance. A change takes a few instances at a time, those of a group together."""
    slots = rollout.slots(pool, instances) if may_start else 0
    out = rollout.broken_groups(pool, instances) if may_start else set()
    for instance in sorted(instances, key=lambda one: one.ordinal):
        in_turn = rollout.waits_for_its_turn(pool, instance, context.moves) and instance.ordinal not in out
        if in_turn and slots <= 0:
            continue
        action = _STEPS[instance.state](pool, instance, context)
        if action is None:
            continue
        yield action
        if in_turn:
            together = pool.groups.get(instance.ordinal, (instance.ordinal,))
            slots -= len(together)
            out.update(together)


def waits_for(pool: DesiredPool, ready_pools: Iterable[str]) -> str:
    """Return the pools that the instance still waits for; empty if it may start."""
    there = set(ready_pools)
    missing = [name for name in pool.needs if name not in there]
    return f"waits for the pool {', '.join(missing)}: no ready instance" if missing else ""


# Placement


def _moves(
    pools: Mapping[str, DesiredPool],
    instances: Iterable[ObservedInstance],
    held: Mapping[str, HeldResources],
    nodes: Mapping[str, NodeView],
) -> dict[str, str]:
    asked = {one.name: (one, _why_leave(pools[one.pool], one, nodes)) for one in instances if one.pool in pools}
    must = {name: (one, why) for name, (one, why) in asked.items() if why}
    placed = place((_demand(pools[one.pool], one) for one, _ in must.values()), held.values(), nodes.values())
    return {name: why for name, (_, why) in must.items() if placed[name].node}


def _why_leave(pool: DesiredPool, instance: ObservedInstance, nodes: Mapping[str, NodeView]) -> str:
    """Return why the instance must leave its node; empty if it stays. `_unreachable` handles lost nodes."""
    node = nodes.get(instance.node)
    if node is None or instance.state in AT_REST or goal(pool, instance) == "gone":
        return ""
    if node.draining:
        return f"node {node.name} is being drained"
    misplaced = not_allowed(pool.placement, node)
    return f"node {node.name} {misplaced}" if misplaced else ""


def _demand(pool: DesiredPool, instance: ObservedInstance) -> PendingStart:
    return PendingStart(instance.name, pool.name, pool.placement, instance.node)


def _with_nodes(
    actions: Iterable[Action],
    pools: Mapping[str, DesiredPool],
    instances: Iterable[ObservedInstance],
    held: Mapping[str, HeldResources],
    nodes: Mapping[str, NodeView],
) -> list[Action]:
    """Give each start a node; a start for which there is none is replaced by a rest with the reason."""
    found = list(actions)
    starts = {action.instance for action in found if action.kind == "start"}
    if not starts:
        return found
    rows = {one.name: one for one in instances}
    demands = [_demand(pools[rows[name].pool], rows[name]) for name in sorted(starts)]
    placed = place(demands, (one for one in held.values() if one.instance not in starts), nodes.values())
    placed_actions = (_with_node(action, placed.get(action.instance), rows) for action in found)
    return [action for action in placed_actions if action is not None]


def _with_node(action: Action, placed_on: PlacedInstance | None, rows: Mapping[str, ObservedInstance]) -> Action | None:
    if action.kind != "start" or placed_on is None:
        return action
    if placed_on.node:
        return dataclasses.replace(action, node=placed_on.node, gpus=placed_on.gpus)
    row = rows[action.instance]
    # A failed or unreachable instance keeps its own, more useful reason.
    return act("rest", row, placed_on.refusal) if row.state == "stopped" and row.reason != placed_on.refusal else None


# Each of these functions returns the next step of one instance in one state.


def _at_rest(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    """Return the next step of a stopped or failed instance."""
    target = goal(pool, instance)
    if target == "gone":
        remembered = pool.listed is not None and not pool.removed and context.now - instance.since < REMEMBERED_S
        return None if remembered else act("delete", instance, leaving(pool, instance))
    if target == "stopped":
        return act("rest", instance, "stopped on request") if instance.state == "failed" else None
    waits = waits_for(pool, context.ready_pools)
    if waits:
        return act("rest", instance, waits) if instance.state == "stopped" and instance.reason != waits else None
    config = start_hash(pool, instance)
    backing_off = instance.next_start_at is not None and context.now < instance.next_start_at
    if backing_off and config == instance.config_hash:
        return None
    return _start(instance, config, instance.restart_asked or _why_start(pool, instance, config))


def _why_start(pool: DesiredPool, instance: ObservedInstance, config: str) -> str:
    if pool.halted and config != instance.config_hash and instance.config_hash:
        return "with the last working configuration"
    return "as desired"


def _start(instance: ObservedInstance, config: str, reason: str) -> Action:
    return dataclasses.replace(act("start", instance, reason), config_hash=config)


def _starting(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    """Return the next step of an instance that was ordered but not launched yet."""
    if context.now - instance.since < CLAIM_S:
        return None
    if goal(pool, instance) in {"gone", "stopped"}:
        return act("rest", instance, leaving(pool, instance))
    return _start(instance, start_hash(pool, instance), "its node did not execute the start order")


def _loading(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    why = leaving(pool, instance)
    if why:
        return act("stop", instance, why)  # it has no requests yet, so it needs no drain
    limit_s = pool.load_timeout_s + instance.allowance_s
    if context.now - instance.since >= limit_s:
        return act("kill", instance, f"not ready within {limit_s:g} s of its start", failure=True)
    return None


def _ready(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    why = leaving(pool, instance) or context.moves.get(instance.name, "")
    if why:
        return act("drain", instance, why)
    if instance.desired == "asleep":
        return act("drain", instance, "going to sleep")
    return act("drain", instance, "drained on request") if instance.desired == "drained" else None


def _draining(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    why = leaving(pool, instance) or context.moves.get(instance.name, "")
    if not why:
        return _staying_out(instance, context.now)
    if instance.idle or instance.asleep is not None:
        return act("stop", instance, why)
    if context.now - instance.since >= pool.drain_timeout_s:
        return act(
            "stop", instance, f"{why}; not drained within {pool.drain_timeout_s:g} s, remaining requests are cut off"
        )
    return None


def _staying_out(instance: ObservedInstance, now: float) -> Action | None:
    """Return the next step of an instance that is, or was, drained or asleep on request.
    An order to sleep that has not begun is void once sleep is no longer desired. If it has begun without an outcome, it
    may still be carried out, so the engine takes no requests until it has been woken.
    """
    asleep, sleeps, ordered = instance.asleep is not None, instance.desired == "asleep", instance.ordered_at
    if not asleep and not sleeps:
        return act("undrain", instance, "takes requests again") if instance.desired == "running" else None
    if (asleep and sleeps) if ordered is None else now - ordered < ORDER_AGAIN_S:
        return None
    if sleeps and not asleep:
        return act("sleep", instance, "goes to sleep") if instance.idle else None
    return act("wake", instance, "wakes up")


def _unreachable(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    gone_for = context.now - instance.since
    if not context.reports(instance.node):
        return _lost(pool, instance) if gone_for >= LOST_AFTER_S else None
    why = leaving(pool, instance)
    if gone_for < (REPLACE_AFTER_S if why else replace_after_s(instance.reason, pool.update.replace_after_s)):
        return None
    if not pool.launched and not why:
        return None  # Weir cannot restart an instance that it did not start
    return act("kill", instance, why or instance.reason, failure=not why)


def _lost(pool: DesiredPool, instance: ObservedInstance) -> Action:
    """Give up an instance whose node is also lost; fleet/node/fencing.py ends leftovers when the node returns."""
    if goal(pool, instance) in {"gone", "stopped"}:
        return act("rest", instance, leaving(pool, instance))
    return _start(instance, start_hash(pool, instance), f"its node {instance.node} is lost")


def _stopping(pool: DesiredPool, instance: ObservedInstance, context: PlanContext) -> Action | None:
    if instance.stop_deadline is None or context.now < instance.stop_deadline:
        return None
    if not context.reports(instance.node) and context.now - instance.since >= LOST_AFTER_S:
        return act("rest", instance, f"{instance.reason}; its node {instance.node} is lost")
    return act("kill", instance, instance.reason)


_STEPS: dict[str, Callable[[DesiredPool, ObservedInstance, PlanContext], Action | None]] = {
    "stopped": _at_rest,
    "failed": _at_rest,
    "starting": _starting,
    "loading": _loading,
    "ready": _ready,
    "draining": _draining,
    "unreachable": _unreachable,
    "stopping": _stopping,
}
