"""Ending the engines when Weir is brought down. What should run stays as it is: the next `up` starts them again."""

import asyncio
import signal

from django.conf import settings
from django.db import connections

from fleet.control.shutdown import stop_all
from fleet.node import process
from fleet.node.launcher import LaunchError

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
    for pid, started in process.find({"WEIR_FLEET": str(settings.DATA_DIR)}):
        process.send(pid, started, signal.SIGKILL)
