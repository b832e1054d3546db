"""Forgets a node that has been removed for good."""

import datetime as dt

from django.db import transaction
from django.utils import timezone

from fleet import events
from fleet.control import nodes
from fleet.models import Instance, Node, Port
from fleet.plan.desired import AT_REST
from fleet.services import NotPossible
from router.contract.redis.staleness import NODE_GONE_S

_SHOWN = 4  # instances named in a refusal


def forget(name: str, actor: str, reason: str = "") -> Node:
    """Forget the node. Raise Node.DoesNotExist; NotPossible while it reports or an instance may still run there."""
    node = Node.objects.get(name=name)
    refusal = why_not(node, timezone.now())
    if refusal:
        raise NotPossible(refusal)
    with transaction.atomic():
        if not Node.objects.filter(pk=node.pk, last_seen=node.last_seen).delete()[0]:
            raise NotPossible(f"{name} has just reported; end its worker first")
        Instance.objects.filter(node=name).update(node="")
        Port.objects.filter(node=name).delete()
    events.record_node(name, "forgotten", f"forgotten by {actor}", actor, reason, nodes.age_s(node))
    return node


def why_not(node: Node, now: dt.datetime) -> str:
    """Return why the node cannot be forgotten, with a remedy; empty if it can be."""
    if node.last_seen is not None and now - node.last_seen < dt.timedelta(seconds=NODE_GONE_S):
        heard_s = nodes.age_s(node) or 0.0
        return (
            f"{node.name} is alive: it reported {heard_s:.0f} s ago. Drain it, end its worker, and wait "
            f"{NODE_GONE_S:.0f} s"
        )
    held = Instance.objects.filter(node=node.name).exclude(state__in=AT_REST).order_by("name")
    names = [f"{row.name} ({row.state})" for row in held]
    if not names:
        return ""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return (
        f"{node.name} still holds {', '.join(names[:_SHOWN])}{more}. Unreachable instances are started on another node "
        f"after a while if their placement allows one; otherwise stop them or change the placement"
    )
