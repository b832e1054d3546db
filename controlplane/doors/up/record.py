"""The record of an `up`: its processes by pid and start time. A later `up` ends those that a killed `up` left
behind."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from fleet.node import process

GONE_S = 3.0


def write_record(path: Path, pids: Mapping[str, int]) -> None:
    states = {name: (pid, process.inspect(pid)) for name, pid in pids.items()}
    entries = {name: {"pid": pid, "started": state.started} for name, (pid, state) in states.items() if state}
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(entries, indent=1) + "\n")
    scratch.replace(path)


def leftovers(path: Path) -> dict[str, int]:
    """Return name → pid of the recorded processes that still run. The start time detects a reused pid."""
    try:
        entries = json.loads(path.read_text())
        recorded = {name: (int(entry["pid"]), float(entry["started"])) for name, entry in entries.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return {}
    return {name: pid for name, (pid, started) in recorded.items() if process.is_alive(pid, started)}


def end_groups(pids: Mapping[str, int]) -> None:
    """Kill each process group and wait until it has ended."""
    for pid in pids.values():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    until = time.monotonic() + GONE_S
    while any(process.inspect(pid) for pid in pids.values()) and time.monotonic() < until:
        time.sleep(0.02)
