"""Ends every engine of a node. Their desired state is kept, so that Weir's next start starts them again."""

from django.utils import timezone

from fleet.control.launchers import current
from fleet.control.publish import publish_fleet
from fleet.models import Instance, State
from fleet.node.launcher import ShutdownReport


def stop_all(node: str, grace_s: float) -> ShutdownReport:
    """End the node's instances and wait for their end; the report names those that may still be running."""
    ended = current().end_all(node, grace_s)
    rows = Instance.objects.filter(node=node, name__in=ended.names)
    pools = sorted(set(rows.values_list("pool__name", flat=True)))
    rows.update(
        state=State.STOPPED, reason="Weir was brought down", since=timezone.now(), pid=None, pid_started=None, pod=""
    )
    for pool in pools:
        publish_fleet(pool)
    return ended
