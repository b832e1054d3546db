"""One process of the plan: in its own session, with its own log, killed when `up` is killed."""

import asyncio
import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from controlplane.doors.up.plan import Process
from fleet.node.logs import plain, trim

PR_SET_PDEATHSIG = 1  # prctl(2)
_libc = ctypes.CDLL(None)


def _die_with_up() -> None:
    """Request SIGKILL for the new process when `up` ends. Forks do not inherit this request, so engines survive."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Child:
    def __init__(self, process: Process, logs: Path, environment: Mapping[str, str], folder: Path) -> None:
        self.process = process
        self.log = logs / f"{process.name}.log"
        self.environment = environment
        self.folder = folder
        self.handle: asyncio.subprocess.Process | None = None
        self.started = float("nan")  # time.monotonic() of the last start attempt
        self.failures = 0  # consecutive runs that were too short
        self.stopping = False

    @property
    def pid(self) -> int | None:
        """The pid; None while it is not running."""
        return self.handle.pid if self.handle is not None and self.handle.returncode is None else None

    @property
    def status(self) -> int | None:
        """The exit status of the last run, negative for a signal."""
        return self.handle.returncode if self.handle is not None else None

    @property
    def ran_s(self) -> float:
        return time.monotonic() - self.started

    async def start(self) -> None:
        trim(self.log)
        self.started = time.monotonic()
        starting = asyncio.ensure_future(self._start())
        try:
            self.handle = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # The process may already exist; without its handle it would never be stopped.
            self.handle = await starting
            raise

    async def _start(self) -> asyncio.subprocess.Process:
        with open_log(self.log) as log:
            return await asyncio.create_subprocess_exec(
                *self.process.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self.environment,
                start_new_session=True,
                preexec_fn=_die_with_up,
            )

    async def ended(self) -> int:
        """Wait for the end of the process. Return its exit status, negative for a signal."""
        assert self.handle is not None  # noqa: S101
        return await self.handle.wait()

    async def stop(self) -> None:
        self.stopping = True
        if self.pid is None:
            return
        self.signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(self.ended(), self.process.grace_s)
        except TimeoutError:
            self.signal(signal.SIGKILL)
            await self.ended()

    def signal(self, number: signal.Signals) -> None:
        """Signal the whole process group, so that no shell or fork is left behind."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def last_line(self) -> str:
        lines = tail(self.log).splitlines()
        return next((plain(line.strip()) for line in reversed(lines) if line.strip()), "no output")


def open_log(log: Path) -> IO[bytes]:
    """Open a log to append to; /dev/null if that is impossible, because a process without a log is better than none."""
    try:
        return log.open("ab")
    except OSError:
        return Path(os.devnull).open("ab")


def tail(log: Path, size: int = 4096) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - size))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
