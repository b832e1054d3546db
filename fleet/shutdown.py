"""Ending every engine of a node at once: all get SIGTERM together, those that remain get SIGKILL.

What should run stays as it is; the next start of Weir starts them again.
"""

import signal
import time
from collections.abc import Sequence

from django.utils import timezone

from fleet import launch
from fleet.models import Instance, State
from fleet.processes import runs
from fleet.publishing import publish_fleet


def stop_all(node: str, grace_s: float) -> list[str]:
    """The names of the instances that were running; they are gone when this returns."""
    running = [row for row in Instance.objects.filter(node=node, pid__isnull=False) if runs(row)]
    for number, limit_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, 2.0)):
        for row in running:
            launch.send(row.pid, row.pid_started, number)
        _wait(running, limit_s)
    Instance.objects.filter(pk__in=[row.pk for row in running]).update(
        state=State.STOPPED, reason="Weir was brought down", since=timezone.now(), pid=None, pid_started=None
    )
    for pool in sorted({row.pool.name for row in running}):
        publish_fleet(pool)
    return [row.name for row in running]


def _wait(running: Sequence[Instance], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end and any(launch.is_alive(row.pid, row.pid_started) for row in running):
        launch.reap()
        time.sleep(0.02)
