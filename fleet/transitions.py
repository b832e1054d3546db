"""State changes by conditional UPDATE: of two concurrent attempts, one succeeds."""

from typing import Any

from django.utils import timezone

from fleet import events
from fleet.models import Instance, State
from router.contract.secret_text import masked


def move(instance: Instance, to: State, reason: str, *, actor: str = "", **fields: Any) -> bool:
    """False when the row no longer has the caller's state and epoch."""
    before, now, reason = instance.since, timezone.now(), masked(reason)
    changes: dict[str, Any] = {"state": to, "reason": reason, "since": now, **fields}
    claimed = Instance.objects.filter(pk=instance.pk, state=instance.state, epoch=instance.epoch).update(**changes)
    if not claimed:
        return False
    for name, value in changes.items():
        setattr(instance, name, value)
    events.record(instance, to, reason, actor, seconds=max(0.0, (now - before).total_seconds()))
    return True
