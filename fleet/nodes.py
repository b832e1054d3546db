"""Nodes: telling that one is there and what it has, and keeping instances off it."""

import datetime as dt
import functools
import socket
import time
from typing import Any

from django.conf import settings
from django.utils import timezone

from fleet import events
from fleet.launcher import current
from fleet.models import Node

INVENTORY_S = 60.0
SILENT_S = 12.0  # without a heartbeat for so long: its instances are looked at from the control host


def beat(name: str, now: dt.datetime) -> Node:
    """Called by the node's own worker every few seconds."""
    values = {
        "hostname": socket.gethostname(),
        "address": settings.NODE_ADDRESS,
        "last_seen": now,
        "inventory": _inventory(int(time.monotonic() / INVENTORY_S)) | current().moving(),
        "labels": dict(settings.NODE_LABELS),
    }
    node, created = Node.objects.update_or_create(name=name, defaults=values)
    if created:
        events.announce("node", name, f"node {name} reports for the first time", "", time.time())
    return node


@functools.lru_cache(maxsize=1)
def _inventory(period: int) -> dict[str, Any]:
    """Looked at once in each period: NVML takes its time."""
    return current().inventory()


def cordon(name: str, actor: str, reason: str = "") -> Node:
    """Start nothing new there; what runs stays. Node.DoesNotExist."""
    return _set(name, "cordoned", actor, reason, cordoned=True, draining=False)


def drain(name: str, actor: str, reason: str = "") -> Node:
    """Start nothing new there and move what runs to other nodes, where its pool may be on others."""
    return _set(name, "drained", actor, reason, cordoned=True, draining=True)


def uncordon(name: str, actor: str, reason: str = "") -> Node:
    """Take instances again."""
    return _set(name, "open again", actor, reason, cordoned=False, draining=False)


def _set(name: str, word: str, actor: str, reason: str, *, cordoned: bool, draining: bool) -> Node:
    node = Node.objects.get(name=name)
    node.cordoned, node.draining = cordoned, draining
    node.because = f"{actor}{reason and f': {reason}'}"[:450] if cordoned else ""
    node.save(update_fields=["cordoned", "draining", "because"])
    text = f"node {name} is {word}, as {actor} asks{reason and f': {reason}'}"
    events.announce("node", name, text, actor, time.time())
    return node


def silent(now: dt.datetime) -> list[str]:
    """Names of nodes that have not been heard of for a while."""
    since = now - dt.timedelta(seconds=SILENT_S)
    return list(Node.objects.filter(last_seen__lt=since).values_list("name", flat=True))


def known() -> list[str]:
    return list(Node.objects.order_by("name").values_list("name", flat=True))


def age_s(node: Node) -> float | None:
    """Since its last heartbeat."""
    return None if node.last_seen is None else max(0.0, (timezone.now() - node.last_seen).total_seconds())
