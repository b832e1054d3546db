"""Whether a pool is as declared, and if not, in which ways. Pure. Health is another question: this is what runs."""

from collections.abc import Sequence

from fleet.wanted import DesiredPool, ObservedInstance, goal, outdated

_WITHOUT_PROCESS = ("stopped", "failed", "starting")


def differences(pool: DesiredPool, instances: Sequence[ObservedInstance]) -> tuple[str, ...]:
    """In words; empty when the pool is as declared."""
    goals = [(instance, goal(pool, instance)) for instance in instances]
    stays = [instance for instance, wanted in goals if wanted in {"run", "drained", "asleep"}]
    running = [instance for instance in stays if instance.state not in _WITHOUT_PROCESS]
    counts = {
        "not created yet": 0 if pool.removed else pool.replicas - sum(wanted != "gone" for _, wanted in goals),
        "not running": len(stays) - len(running),
        "to be replaced": sum(bool(outdated(pool, instance)) for instance in running),
        "to be stopped": sum(wanted == "stopped" and instance.state != "stopped" for instance, wanted in goals),
        "to be removed": sum(wanted == "gone" for _, wanted in goals),
    }
    return tuple(f"{count} {words}" for words, count in counts.items() if count > 0)
