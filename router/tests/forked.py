"""Starts `python -m MODULE` as a fork of a process that has already imported it. Tests start hundreds of simulated
engines, whose imports take ten times as long as the rest of their start.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.connection import Connection

ENGINE, STORE = "fleet.simengine.__main__", "fleet.simengine.store"
LATE = "fleet.simengine.kv.choose"  # an engine imports it, together with an HTTP client, when it first transfers KV
_forks = get_context("forkserver")
_forks.set_forkserver_preload([__name__, ENGINE, STORE, LATE])


class Forked:
    """The part of `subprocess.Popen` used by tests; the process shares their stderr."""

    def __init__(self, module: str, words: Sequence[str]) -> None:
        read, write = os.pipe()
        self.stdout = open(read)  # noqa: SIM115  (closed by who reads it)
        with Connection(write, readable=False) as output:
            given = (module, list(words), dict(os.environ), output)
            self._process = _forks.Process(target=_main, args=given, daemon=True)
            self._process.start()
        assert self._process.pid
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        ended = self._process.exitcode
        if ended is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return ended

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _main(module: str, words: list[str], environment: dict[str, str], output: Connection) -> None:
    os.dup2(output.fileno(), 1)
    output.close()
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = [module, *words]
    sys.exit(import_module(module).main())
