"""Keeps an instance from running twice: for each instance, a node remembers the latest epoch that it started, and ends
older ones. The database holds the current epoch of an instance and its node. A node that was disconnected may still run
earlier epochs of instances that have since started elsewhere; it ends these first.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from django.conf import settings

from fleet.models import Instance, State
from fleet.node import process

AGAIN_S = 30.0  # interval between two checks; a node whose steps paused checks at once
PRESENT = (State.STARTING, State.LOADING, State.READY, State.DRAINING, State.UNREACHABLE, State.STOPPING)
log = logging.getLogger(__name__)


def markers(name: str, node: str) -> dict[str, str]:
    """Return environment variables that identify a process started by Weir whose pid was not recorded."""
    return {"WEIR_INSTANCE": name, **fleet_markers(node)}


def fleet_markers(node: str) -> dict[str, str]:
    return {"WEIR_FLEET": str(settings.DATA_DIR), "WEIR_NODE": node}


def claim(instance: Instance) -> int | None:
    """Remember this epoch and return None if it may start; otherwise return the epoch that has already started."""
    path = _record(instance)
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b", buffering=0) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        started = _number(file.read())
        if instance.epoch <= started:
            return started
        # The file is overwritten in place; if it were truncated first, it would stay empty on a full disk.
        file.seek(0)
        file.write(b"%d" % instance.epoch)
        file.truncate()
    _forget_earlier(path, instance.name)
    return None


def _number(text: bytes) -> int:
    """Return the epoch; 0 for a damaged record, which must not prevent every start."""
    return int(text) if text.isdigit() else 0


def _record(instance: Instance) -> Path:
    """Return the file of an instance and its pool's creation."""
    return Path(settings.DATA_DIR) / "starts" / instance.node / f"{instance.name}.{instance.pool.born}"


def _forget_earlier(path: Path, name: str) -> None:
    for other in path.parent.glob(f"{name}.*"):
        if other != path:
            other.unlink(missing_ok=True)


def fence(node: str) -> list[str]:
    """End processes of this node that the database does not expect. Return the names of their instances."""
    running = process.find_marked(fleet_markers(node))
    if not running:
        return []
    names = {variables.get("WEIR_INSTANCE", "") for _, _, variables in running}
    rows = Instance.objects.filter(name__in=names, node=node, state__in=PRESENT)
    present = {(name, str(epoch)) for name, epoch in rows.values_list("name", "epoch")}
    ended = []
    for pid, started, variables in running:
        name, epoch = variables.get("WEIR_INSTANCE", ""), variables.get("WEIR_EPOCH", "")
        if (name, epoch) not in present:
            log.warning("ending process %d: epoch %s of %s must no longer run on node %s", pid, epoch, name, node)
            process.stop(pid, started, grace_s=0)
            ended.append(name)
    return ended


class Fence:
    """Fences a node at its first step, after each pause, and periodically."""

    def __init__(self, end: Callable[[str], list[str]] = fence) -> None:
        self._end = end
        self._fenced: dict[str, float] = {}  # node → monotonic time of its latest check
        self._stepped: dict[str, float] = {}

    def step(self, node: str) -> list[str]:
        now = time.monotonic()
        paused = now - self._stepped.get(node, -AGAIN_S) >= AGAIN_S / 3
        due = now - self._fenced.get(node, -AGAIN_S) >= AGAIN_S
        self._stepped[node] = now
        if not paused and not due:
            return []
        self._fenced[node] = now
        return self._end(node)
