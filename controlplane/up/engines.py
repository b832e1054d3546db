"""Ending the engines when Weir is brought down. What should run stays as it is: the next `up` starts them again."""

import asyncio
import signal
import time

from django.db import connections
from django.utils import timezone

from fleet import launch
from fleet.models import Instance, State

GRACE_S = 2.0
NODE = "local"


async def stop() -> None:
    await asyncio.to_thread(_stop)


def _stop() -> None:
    """SIGTERM to all at once, SIGKILL to those that remain; then the rows say that they are stopped."""
    try:
        running = list(_running())
        for instance in running:
            launch.send(instance.pid, instance.pid_started, signal.SIGTERM)
        _wait(running, GRACE_S)
        kill(running)
        _wait(running, 1.0)
        Instance.objects.filter(pk__in=[instance.pk for instance in running]).update(
            state=State.STOPPED, reason="Weir was brought down", since=timezone.now(), pid=None, pid_started=None
        )
    finally:
        connections.close_all()


def kill(running: list[Instance] | None = None) -> None:
    for instance in _running() if running is None else running:
        launch.send(instance.pid, instance.pid_started, signal.SIGKILL)


def _running() -> list[Instance]:
    return [
        instance
        for instance in Instance.objects.filter(node=NODE, pid__isnull=False)
        if launch.is_alive(instance.pid, instance.pid_started)
    ]


def _wait(running: list[Instance], limit_s: float) -> None:
    end = time.monotonic() + limit_s
    while time.monotonic() < end and any(launch.is_alive(each.pid, each.pid_started) for each in running):
        time.sleep(0.02)
