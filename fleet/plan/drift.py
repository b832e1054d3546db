"""Differences between a pool and its declaration, other than health. Pure."""

from collections import Counter
from collections.abc import Sequence

from fleet.plan.desired import AT_REST, DesiredPool, ObservedInstance, goal, outdated

_ORDER = ("not created yet", "not running", "to be replaced", "to be stopped", "to be removed")
_WITHOUT_PROCESS = ("stopped", "failed", "starting")


def difference(pool: DesiredPool, instance: ObservedInstance) -> str:
    """Return the difference of an instance from its declaration; empty if it matches."""
    target = goal(pool, instance)
    if target == "gone":
        remembered = pool.listed is not None and not pool.removed and instance.state in AT_REST
        return "" if remembered else "to be removed"
    if target == "stopped":
        return "" if instance.state == "stopped" else "to be stopped"
    if instance.state in _WITHOUT_PROCESS:
        return "not running"
    return "to be replaced" if outdated(pool, instance) else ""


def differences(pool: DesiredPool, instances: Sequence[ObservedInstance]) -> tuple[str, ...]:
    """Count the instances by difference, such as "2 not running"; empty if the pool matches."""
    found = Counter(difference(pool, instance) for instance in instances)
    staying = sum(goal(pool, instance) != "gone" for instance in instances)
    found["not created yet"] = 0 if pool.removed else pool.replicas - staying
    return tuple(f"{found[kind]} {kind}" for kind in _ORDER if found[kind] > 0)
