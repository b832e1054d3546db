"""The rollout of a change through one pool: instance count, order, failure and completion. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import replace

from fleet.plan.desired import AT_REST, Action, DesiredPool, ObservedInstance, act, changed, goal, of_pool

NOT_LISTED = "its source no longer lists it"
FAILURES_OF_ONE_READY = 2  # failures in a row of an instance that was once ready, as the first may have another cause


def staying(instances: Sequence[ObservedInstance]) -> list[ObservedInstance]:
    return [instance for instance in instances if not instance.retired]


def verdict(pool: DesiredPool, instances: Sequence[ObservedInstance]) -> Action | None:
    """Decide whether the change to the current configuration is complete or has failed."""
    if pool.proven or pool.halted or pool.removed:
        return None
    running = [instance for instance in staying(instances) if goal(pool, instance) == "run"]
    if running and all(one.state == "ready" and one.config_hash == pool.config_hash for one in running):
        return of_pool("complete", pool, f"{len(running)}/{pool.replicas} ready")
    failed = next((one for one in instances if _has_failed(pool, one)), None)
    if failed is None or not pool.stable_hash:
        return None
    kind = "rollback" if pool.update.on_failure == "rollback" else "halt"
    return of_pool(kind, pool, f"{failed.name} failed with the new configuration: {failed.reason}")  # type: ignore[arg-type]


def _has_failed(pool: DesiredPool, instance: ObservedInstance) -> bool:
    if instance.state != "failed" or instance.config_hash != pool.config_hash:
        return False
    return instance.failures >= (FAILURES_OF_ONE_READY if instance.was_ready else 1)


def in_change(
    pool: DesiredPool, instances: Sequence[ObservedInstance], moves: Collection[str]
) -> list[ObservedInstance]:
    """Return the running instances that a change of configuration or placement will replace."""
    return [
        one
        for one in staying(instances)
        if goal(pool, one) == "run" and one.state not in AT_REST and (changed(pool, one) or one.name in moves)
    ]


def headcount(
    pool: DesiredPool, instances: Sequence[ObservedInstance], moves: Collection[str], may_start: bool
) -> list[Action]:
    """Return the instances to create, to keep rather than remove, or to retire."""
    if pool.removed:
        return []
    if pool.listed is not None:
        return _listed(pool, pool.listed, instances)
    stay, changing = staying(instances), in_change(pool, instances, moves)
    if pool.ordinals is not None:
        return _numbered(pool, pool.ordinals, instances, stay)
    surge = min(pool.update.surge(pool.replicas), len(changing)) if may_start else 0
    missing = pool.replicas + surge - len(stay)
    if missing > 0:
        return _more(pool, instances, missing, surge)
    retired = _surplus(stay, -missing, {one.name for one in changing})
    if surge and not retired:
        return _replaced(pool, stay, changing)
    return [act("retire", one, _scaled_down(pool)) for one in retired]


def _numbered(
    pool: DesiredPool,
    ordinals: frozenset[int],
    instances: Sequence[ObservedInstance],
    stay: Sequence[ObservedInstance],
) -> list[Action]:
    retired = [act("retire", one, _scaled_down(pool)) for one in stay if one.ordinal not in ordinals]
    new = sorted(ordinals - {one.ordinal for one in instances})
    return [*retired, *(_create(pool, number, _replicas_reason(pool)) for number in new)]


def _listed(pool: DesiredPool, listed: Sequence[str], instances: Sequence[ObservedInstance]) -> list[Action]:
    """Return actions that give each engine listed by the source one instance; ordinals have no meaning here."""
    rows = {one.listed: one for one in instances}
    gone = [act("retire", one, NOT_LISTED) for one in instances if not one.retired and one.listed not in listed]
    back = [act("keep", rows[key], "its source lists it again") for key in listed if key in rows and rows[key].retired]
    there = {one.ordinal for one in instances}
    new = [key for key in listed if key not in rows]
    free = (number for number in range(len(there) + len(new)) if number not in there)
    numbers = dict(zip(new, free, strict=False))
    made = [replace(_create(pool, number, "its source lists it"), listed=key) for key, number in numbers.items()]
    return [*gone, *back, *made]


def _create(pool: DesiredPool, number: int, reason: str) -> Action:
    return Action("create", pool.name, f"{pool.name}-{number}", number, reason)


def _replicas_reason(pool: DesiredPool) -> str:
    return f"desired replicas: {pool.replicas}{pool.because and f' ({pool.because})'}"


def _scaled_down(pool: DesiredPool) -> str:
    return f"scaled down to {pool.replicas}{pool.because and f': {pool.because}'}"


def _more(pool: DesiredPool, instances: Sequence[ObservedInstance], missing: int, surge: int) -> list[Action]:
    back = [one for one in instances if one.retired and one.state == "draining" and not changed(pool, one)]
    kept = [act("keep", one, "is needed again") for one in back[: 0 if surge else missing]]
    there = {one.ordinal for one in instances}
    free = (number for number in range(len(there) + missing) if number not in there)
    reason = "starts before an old one ends" if surge else _replicas_reason(pool)
    new = [next(free) for _ in range(missing - len(kept))]
    return kept + [_create(pool, number, reason) for number in new]


def _surplus(stay: Sequence[ObservedInstance], count: int, changing: Collection[str]) -> list[ObservedInstance]:
    """Choose surplus instances: first those not ready, then those due for replacement, then the idlest, then the
    newest."""

    def cost(one: ObservedInstance) -> tuple[bool, bool, int, int]:
        return one.state == "ready", one.name not in changing, one.load, -one.ordinal

    return sorted(stay, key=cost)[:count]


def _replaced(
    pool: DesiredPool, stay: Sequence[ObservedInstance], changing: Sequence[ObservedInstance]
) -> list[Action]:
    """Retire changed instances. With surge, an old instance retires when a new one is ready."""
    resting = sum(goal(pool, one) != "run" for one in stay)
    ready = sum(one.state == "ready" and goal(pool, one) == "run" for one in stay)
    spare = ready - (pool.replicas - resting - pool.update.unavailable(pool.replicas))
    old = sorted((one for one in changing if one.state == "ready"), key=lambda one: (one.load, one.ordinal))
    return [act("retire", one, "replaced by a new instance") for one in old[: max(0, spare)]]


def slots(pool: DesiredPool, instances: Sequence[ObservedInstance]) -> int:
    """Return the number of further instances that an in-place change may take out of routing."""
    if pool.update.strategy == "surge" and pool.ordinals is None:
        return 0
    run = [one for one in staying(instances) if goal(pool, one) == "run"]
    # Fixed ordinals rule out surge, so the change is in place, at least one instance at a time.
    return max(1, pool.update.unavailable(pool.replicas)) - sum(one.state != "ready" for one in run)


def broken_groups(pool: DesiredPool, instances: Sequence[ObservedInstance]) -> set[int]:
    """Return the ordinals of groups that do not serve because a member is not ready: changing the other members
    costs nothing."""
    ready = {one.ordinal for one in instances if one.state == "ready"}
    return {ordinal for ordinal, group in pool.groups.items() if not ready.issuperset(group)}


def waits_for_its_turn(pool: DesiredPool, instance: ObservedInstance, moves: Collection[str]) -> bool:
    """Return whether a change will replace this ready instance when its turn comes; an operator's restart does not
    wait."""
    replaced = bool(changed(pool, instance)) or instance.name in moves
    return instance.state == "ready" and goal(pool, instance) == "run" and replaced and not instance.restart_asked
