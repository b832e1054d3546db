"""A PostgreSQL server for the tests: a new cluster in /tmp, on loopback, removed at the end of the tests."""

import contextlib
import os
import secrets
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

INSTALL = "apt-get install postgresql redis-server"


def binaries() -> Path:
    """Return the folder of the binaries, which Debian keeps out of the PATH, one per version."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not found:
        raise SystemExit(f"no PostgreSQL server is installed here: {INSTALL}")
    return found[-1]


class Postgres:
    def __init__(self, port: int) -> None:
        self.port = port
        self.folder = Path(tempfile.mkdtemp(prefix="weir-postgres-", dir="/tmp"))
        self.password = secrets.token_hex(16)
        self._data = self.folder / "data"
        self._password_file = self.folder / "password"
        self._password_file.write_text(self.password)
        if os.getuid() == 0:
            for path in (self.folder, self._password_file):
                shutil.chown(path, "postgres")
        self._run("initdb", "-U", "weir", "-A", "scram-sha-256", f"--pwfile={self._password_file}", "-E", "UTF8",
                  "--locale=C.UTF-8", "--no-sync")  # fmt: skip

    @property
    def url(self) -> str:
        return f"postgresql://weir:{self.password}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        options = f"-c listen_addresses=127.0.0.1 -c port={self.port} -c unix_socket_directories={self.folder}"
        self._run("pg_ctl", "-w", "-t", "60", "-l", str(self.folder / "log"), "-o", f"{options} -c fsync=off", "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server; `immediate` is like a crash: no shutdown, recovery from the log at the next start."""
        self._run("pg_ctl", "-w", "-m", mode, "stop")

    def _run(self, name: str, *arguments: str) -> None:
        # PostgreSQL refuses to run as root; Debian's package has made a user for it.
        other = ("runuser", "-u", "postgres", "--") if os.getuid() == 0 else ()
        command = [*other, str(binaries() / name), "-D", str(self._data), *arguments]
        # A file, not a pipe, as the server that pg_ctl starts would keep the pipe open.
        with (self.folder / "commands").open("ab") as output:
            subprocess.run(command, stdout=output, stderr=output, cwd=self.folder, check=True, timeout=120)

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it is stopped already
            self.stop("immediate")
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def postgres(port: int) -> Iterator[Postgres]:
    server = Postgres(port)
    try:
        server.start()
        yield server
    finally:
        server.remove()
