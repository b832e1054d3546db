"""Ending the engines when Weir is brought down. What should run stays as it is: the next `up` starts them again."""

import asyncio
import signal

from django.conf import settings
from django.db import connections

from fleet import launch
from fleet.launcher import LaunchError
from fleet.shutdown import stop_all

NODE = "local"
GRACE_S = 1.5


async def stop() -> None:
    await asyncio.to_thread(_stop)


def _stop() -> None:
    try:
        left = stop_all(NODE, GRACE_S).left
    finally:
        connections.close_all()
    kill()  # what a launcher started and could not write down
    if left:
        raise LaunchError("; ".join(f"{name}: {why}" for name, why in left.items()))


def kill() -> None:
    """At once, without asking the database: they carry our data folder in their environment."""
    for pid, started in launch.find({"WEIR_FLEET": str(settings.DATA_DIR)}):
        launch.send(pid, started, signal.SIGKILL)
