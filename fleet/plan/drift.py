"""Whether a pool is as declared, and if not, in which ways. Pure. Health is another question: this is what runs."""

from collections import Counter
from collections.abc import Sequence

from fleet.plan.desired import DesiredPool, ObservedInstance, goal, outdated

_ORDER = ("not created yet", "not running", "to be replaced", "to be stopped", "to be removed")
_WITHOUT_PROCESS = ("stopped", "failed", "starting")


def difference(pool: DesiredPool, instance: ObservedInstance) -> str:
    """In which way one instance is not as declared; empty when it is."""
    wanted = goal(pool, instance)
    if wanted == "gone":
        return "to be removed"
    if wanted == "stopped":
        return "" if instance.state == "stopped" else "to be stopped"
    if instance.state in _WITHOUT_PROCESS:
        return "not running"
    return "to be replaced" if outdated(pool, instance) else ""


def differences(pool: DesiredPool, instances: Sequence[ObservedInstance]) -> tuple[str, ...]:
    """In words; empty when the pool is as declared."""
    found = Counter(difference(pool, instance) for instance in instances)
    staying = len(instances) - found["to be removed"]
    found["not created yet"] = 0 if pool.removed else pool.replicas - staying
    return tuple(f"{found[words]} {words}" for words in _ORDER if found[words] > 0)
