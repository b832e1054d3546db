"""A RabbitMQ server for the tests, on loopback, stopped at the end of the tests."""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from router.tests.ports import free_ports

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"
PATIENCE_S = 120.0


class RabbitMQ:
    def __init__(self) -> None:
        if not Path(SERVER).exists():
            raise SystemExit("no RabbitMQ server is installed here: apt-get install rabbitmq-server")
        self.folder = Path(tempfile.mkdtemp(prefix="weir-rabbitmq-", dir="/tmp"))
        self.port, between_nodes, names = free_ports(3)
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}//"
        folder = str(self.folder)
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            **{"HOME": folder, "RABBITMQ_MNESIA_BASE": f"{folder}/mnesia", "RABBITMQ_LOG_BASE": f"{folder}/log"},
            **{"RABBITMQ_CONF_ENV_FILE": "/dev/null", "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins"},
            **{"RABBITMQ_NODENAME": f"weir{self.port}@localhost", "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1"},
            **{"RABBITMQ_NODE_PORT": str(self.port), "RABBITMQ_DIST_PORT": str(between_nodes)},
            **{"ERL_EPMD_PORT": str(names), "ERL_EPMD_ADDRESS": "127.0.0.1"},
        }
        self._process: subprocess.Popen[bytes] | None = None
        # Started here in the foreground, as the daemon that RabbitMQ starts if there is none would outlive it.
        self._names = subprocess.Popen(["epmd"], env=self._environment, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        with (self.folder / "output").open("wb") as output:
            self._process = subprocess.Popen(
                [SERVER], env=self._environment, cwd=self.folder, stdout=output, stderr=output, start_new_session=True
            )
        end = time.monotonic() + PATIENCE_S
        while b"completed with" not in (said := (self.folder / "output").read_bytes()):
            if self._process.poll() is not None or time.monotonic() > end:
                raise AssertionError(f"RabbitMQ did not start: {said.decode(errors='replace')}")
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill the shell script and its Erlang machine, as a crash does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def remove(self) -> None:
        self.kill()
        self._names.terminate()
        self._names.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def rabbitmq() -> Iterator[RabbitMQ]:
    server = RabbitMQ()
    try:
        server.start()
        yield server
    finally:
        server.remove()
