"""Identifies a process by boot, pid namespace, pid and start time, to determine whether it has ended, if that can be
known."""

import functools
import os
from pathlib import Path

_GONE = {"Z", "X"}  # killed, but its parent has not waited for it yet
_STATE, _STARTED = 0, 19  # fields of /proc/<pid>/stat after the command in parentheses


def own() -> str:
    fields = _stat(os.getpid())
    return f"{_space()}/{os.getpid()}/{fields[_STARTED] if fields else ''}"


def is_gone(identity: str) -> bool:
    """Return True only if this process can know that the other has ended; False for one on another host or in another
    container."""
    space, _, rest = identity.partition("/")
    pid, _, started = rest.partition("/")
    if not space or space != _space() or not pid.isdecimal():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    fields = _stat(int(pid))  # None if a service manager hides the process (ProtectProc=)
    return fields is not None and (fields[_STATE] in _GONE or fields[_STARTED] != started)


@functools.cache
def _space() -> str:
    """Return boot and pid namespace; empty if a service manager hides the boot id (ProcSubset=)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}.{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def _stat(pid: int) -> list[str] | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
