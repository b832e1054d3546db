"""Records nodes' heartbeats and inventory; cordons and drains nodes."""

import datetime as dt
import functools
import logging
import socket
import time

import redis
from django.conf import settings
from django.db.models import QuerySet
from django.utils import timezone
from msgspec import to_builtins

from fleet import events
from fleet.control.launchers import current
from fleet.kinds.resources import Inventory
from fleet.models import InstanceEvent, Node
from fleet.node.launcher import Launcher
from fleet.redis import connect
from fleet.tries import Failures
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import NodeReport, NodesValue

INVENTORY_S = 60.0
SILENT_S = 12.0  # after this long without a heartbeat, the control host probes the node's instances
log = logging.getLogger(__name__)
_failures = Failures(log)


def record_heartbeat(name: str, now: dt.datetime) -> Node:
    """Record a heartbeat, which the node's own worker sends every few seconds."""
    launcher = current()
    values = {
        "hostname": socket.gethostname(),
        "address": settings.NODE_ADDRESS,
        "last_seen": now,
        "inventory": to_builtins(launcher.live_inventory(_inventory(launcher, int(time.monotonic() / INVENTORY_S)))),
        "labels": dict(settings.NODE_LABELS),
    }
    node, created = Node.objects.update_or_create(name=name, defaults=values)
    if created:
        events.record_node(name, "reports", "reports for the first time")
    elif node.missed_at is not None and Node.objects.filter(pk=node.pk, missed_at=node.missed_at).update(
        missed_at=None
    ):
        events.record_node(name, "back", "reports again", seconds=(now - node.missed_at).total_seconds())
    return node


@functools.lru_cache(maxsize=1)
def _inventory(launcher: Launcher, period: int) -> Inventory:
    """Return the node's inventory; cached for one period, because NVML is slow."""
    return launcher.inventory()


def cordon(name: str, actor: str, reason: str = "") -> Node:
    """Stop starting instances on the node; running ones stay. Raise Node.DoesNotExist."""
    return _set(name, "cordoned", actor, reason, cordoned=True, draining=False)


def drain(name: str, actor: str, reason: str = "") -> Node:
    """Cordon the node, and move instances whose placement allows another node."""
    return _set(name, "drained", actor, reason, cordoned=True, draining=True)


def uncordon(name: str, actor: str, reason: str = "") -> Node:
    """Allow new instances on the node again."""
    return _set(name, "open again", actor, reason, cordoned=False, draining=False)


def _set(name: str, word: str, actor: str, reason: str, *, cordoned: bool, draining: bool) -> Node:
    node = Node.objects.get(name=name)
    lasted = _closed_for_s(node)
    node.cordoned, node.draining = cordoned, draining
    node.because = f"{actor}{reason and f': {reason}'}"[:450] if cordoned else ""
    node.save(update_fields=["cordoned", "draining", "because"])
    events.record_node(name, word, f"{word} by {actor}", actor, reason, lasted)
    return node


def _closed_for_s(node: Node) -> float | None:
    """Return the seconds since the node was cordoned or drained; None if it is open."""
    latest = InstanceEvent.objects.filter(node=node.name, kind__in=("cordoned", "drained")).first()
    return (timezone.now() - latest.at).total_seconds() if latest and node.cordoned else None


def silent(now: dt.datetime) -> list[str]:
    """Return the names of nodes without a recent heartbeat."""
    return list(_silent(now).values_list("name", flat=True))


def _silent(now: dt.datetime) -> "QuerySet[Node]":
    return Node.objects.filter(last_seen__lt=now - dt.timedelta(seconds=SILENT_S))


def record_silent(now: dt.datetime) -> list[str]:
    """Record the nodes that have fallen silent since the last call. Return their names."""
    fallen = [
        node
        for node in _silent(now).filter(missed_at=None)
        # A node that has just reported is no longer silent.
        if Node.objects.filter(pk=node.pk, missed_at=None, last_seen=node.last_seen).update(missed_at=node.last_seen)
    ]
    for node in fallen:
        text = f"no heartbeat for {SILENT_S:.0f} s; control host now checks its engines"
        events.record_node(node.name, "silent", text)
    return [node.name for node in fallen]


def publish(now: dt.datetime) -> bool:
    """Publish the nodes for pages that read only Redis. Return whether Redis accepted them."""
    reports = tuple(
        NodeReport(name=node.name, last_seen=_unix(node.last_seen), missed_at=_unix(node.missed_at))
        for node in Node.objects.order_by("name")
    )
    what = "publication of the nodes"
    try:
        connect().set(redis_keys.NODES, codec.encode(NodesValue(at=now.timestamp(), nodes=reports)))
    except redis.RedisError as error:
        _failures.failed(what, error)
        return False
    _failures.works(what)
    return True


def _unix(at: dt.datetime | None) -> float | None:
    return None if at is None else at.timestamp()


def known() -> list[str]:
    return list(Node.objects.order_by("name").values_list("name", flat=True))


def age_s(node: Node) -> float | None:
    """Return the seconds since the node's last heartbeat."""
    return None if node.last_seen is None else max(0.0, (timezone.now() - node.last_seen).total_seconds())
