"""State changes of instances, and the history of instances, pools and nodes: rows in the database, entries on the
live ticker."""

import logging
from functools import partial
from typing import Any

import redis
from django.db import transaction
from django.utils import timezone

from fleet.models import Changes, Instance, InstanceEvent, Pool, State
from fleet.redis import connect
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import FleetEvent
from router.contract.values.secret_text import masked

EVENTS_KEPT = 1_000  # entries kept on the ticker
# Routine steps of starts, drains and stops; the ticker shows only their triggers and failures.
ROUTINE = frozenset(
    {"created", "retire", "keep", "deleted"}
    | {State.STARTING, State.LOADING, State.DRAINING, State.STOPPING, State.STOPPED, State.READY}
)
log = logging.getLogger(__name__)


def move(instance: Instance, to: State, reason: str, *, actor: str = "", **fields: Any) -> bool:
    """Change the state by a conditional UPDATE, so that only one of two concurrent attempts succeeds. Return False if
    the row no longer has the caller's state and epoch."""
    was, before, now, reason = instance.state, instance.since, timezone.now(), masked(reason)
    changes: Changes = {"state": to, "reason": reason, "since": now, **fields}
    claimed = Instance.objects.filter(pk=instance.pk, state=instance.state, epoch=instance.epoch).update(**changes)
    if not claimed:
        return False
    for name, value in changes.items():
        setattr(instance, name, value)
    back = to == State.READY and (was == State.UNREACHABLE or instance.failures > 0)
    record(instance, to, reason, actor, seconds=max(0.0, (now - before).total_seconds()), announced=back)
    return True


def record(
    instance: Instance,
    kind: str,
    text: str,
    actor: str = "",
    reason: str = "",
    seconds: float | None = None,
    *,
    announced: bool = False,
) -> InstanceEvent:
    """Record an event. `seconds` is the duration of the state or change that it ends. With `announced`, even a routine
    event appears on the ticker."""
    event = _recorded(
        kind, text, actor, reason, seconds, instance=instance.name, pool=instance.pool.name, epoch=instance.epoch
    )
    # The ticker leaves out experiments' pools.
    if not instance.pool.ephemeral_owner and (announced or kind not in ROUTINE):
        became = f" {kind}" if kind in State.values else ""
        line = f"{instance.name}{became}: {text}{reason and f': {reason}'}"
        announce(kind, instance.name, line, actor, event.at.timestamp(), (instance.pool.name,))
    return event


def record_pool(
    pool: Pool,
    kind: str,
    text: str,
    actor: str = "",
    reason: str = "",
    seconds: float | None = None,
    *,
    version: int = 0,
) -> InstanceEvent:
    """Record an event of a pool. `version` is the configuration whose rollout begins or ends with this event."""
    event = _recorded(kind, text, actor, reason, seconds, pool=pool.name)
    if not pool.ephemeral_owner:
        announce(kind, pool.name, f"{pool.name}: {text}", actor, event.at.timestamp(), (pool.name,), version)
    return event


def record_node(
    name: str, kind: str, text: str, actor: str = "", reason: str = "", seconds: float | None = None
) -> InstanceEvent:
    event = _recorded(kind, text, actor, reason, seconds, node=name)
    announce("node", name, f"node {name}: {text}{reason and f': {reason}'}", actor, event.at.timestamp())
    return event


def _recorded(kind: str, text: str, actor: str, reason: str, seconds: float | None, **subject: Any) -> InstanceEvent:
    return InstanceEvent.objects.create(
        kind=kind, text=text, actor=actor, reason=reason, seconds=seconds, at=timezone.now(), **subject
    )


def announce(
    kind: str, subject: str, text: str, actor: str, at: float, pools: tuple[str, ...] = (), version: int = 0
) -> None:
    """Add an entry to the ticker on commit: a transaction that waits for Redis would block every other writer of
    SQLite, and may still be rolled back."""
    event = FleetEvent(at=at, kind=kind, subject=subject, text=text, actor=actor, pools=pools, version=version)
    transaction.on_commit(partial(_add_to_ticker, event))


def _add_to_ticker(event: FleetEvent) -> None:
    """Add the entry to the ticker; without Redis, drop it."""
    try:
        connect().xadd(redis_keys.EVENTS, {"e": codec.encode(event)}, maxlen=EVENTS_KEPT, approximate=True)
    except redis.RedisError as error:
        log.warning("event not announced: %s", error)
