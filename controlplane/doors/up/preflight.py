"""Checks the machine before the first process is started; each finding is one line that says what to do."""

import errno
import fcntl
import os
import shutil
import socket
from pathlib import Path
from typing import IO

from controlplane.base.process import private_files
from controlplane.doors.up import CannotStart
from controlplane.doors.up.console import say
from controlplane.doors.up.plan import Options

ROOM_MB = 100  # minimum of free disk
ROUTERS_LIMIT = 16


def check_options(options: Options) -> None:
    if not 1 <= options.routers <= ROUTERS_LIMIT:
        raise CannotStart(f"--routers {options.routers}: allowed are 1 to {ROUTERS_LIMIT}")
    for port in options.listens:
        if not 1 <= port <= 65535:
            raise CannotStart(f"port {port}: allowed are 1 to 65535")
    if options.web_port in (options.router_port, *options.router_ports):
        raise CannotStart(f"port {options.web_port} is set for both the web server and a router; change --router-port")
    if options.fleet is not None and not options.fleet.is_file():
        raise CannotStart(f"--fleet {options.fleet}: no such file")


def prepare_folder(folder: Path) -> None:
    """Create the data folder with `run` and `logs` in it, close it to other users, and check that it can be written."""
    probe = folder / "run" / "probe"
    try:
        (folder / "logs").mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "run").mkdir(mode=0o700, exist_ok=True)
        if opened := private_files.tighten(folder):
            say("data folder", f"closed to other users: {private_files.describe(opened)}")
        if shutil.disk_usage(folder).free < ROOM_MB * 1_000_000:
            raise OSError(errno.ENOSPC, f"less than {ROOM_MB} MB free")
        probe.write_bytes(bytes(65536))
        probe.unlink()
    except OSError as error:
        raise CannotStart(
            f"data folder {folder}: {error.strerror}; make room there or name another folder in WEIR_DATA_DIR"
        ) from None


def claim(folder: Path) -> IO[str]:
    """Take the lock that only one `up` may hold on a data folder. The kernel releases it when the process ends, in
    whatever way."""
    lock = (folder / "run" / "up.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.seek(0)
        holder = lock.read().strip() or "unknown"
        lock.close()
        raise CannotStart(
            f"Weir is already running on {folder} (process {holder}); stop it, or set another WEIR_DATA_DIR"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock


def check_ports(options: Options) -> None:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    for port, flag in options.listens.items():
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((options.host, port))
            except OSError as error:
                problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
                raise CannotStart(f"port {port} on {options.host} {problem}; choose another with {flag}") from None
