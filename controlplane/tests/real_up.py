"""A real `manage.py up` on free ports and with its own data folder, for tests that need everything."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

from controlplane.doors.up import record
from controlplane.tests.migrated import migrated
from fleet.node import process
from router.tests.ports import engine_ports, free_port, free_ports

CODE = Path(__file__).resolve().parents[2]
PATIENCE_S = 60.0
MANAGE = (sys.executable, str(CODE / "manage.py"))
# Two engines instead of the demo's eight.
FLEET = """
apiVersion: weir/v1
kind: Fleet
metadata: {name: small}
spec:
  pools:
    - {name: demo, model: llama-3.1-8b, kind: sim, replicas: 2, engine: {time_scale: 10.0, seed: 1}}
"""
# These words distinguish the command lines of its processes; those of workers and routers contain their names.
MARKS = {
    "redis": "valkey-server",
    "web": "controlplane.doors.web",
    "control": "control@",
    "experiments": "experiments@",
}


def new_folder():
    # /tmp, not $TMPDIR: a unix socket path has room for 107 bytes.
    return Path(tempfile.mkdtemp(prefix="weir-up-", dir="/tmp"))


def environment(folder, **extra):
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return kept | {"WEIR_DATA_DIR": str(folder)} | extra


def up(folder, *flags, **extra):
    """Run `up` to its end, for starts that are refused at once."""
    return subprocess.run(
        [sys.executable, "manage.py", "up", *flags],
        cwd=CODE,
        env=environment(folder, **extra),
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""  # the process has ended in the meantime


class RealUp:
    def __init__(self, folder, *flags, command=MANAGE, **extra):
        self.folder, self.command = folder, command
        self.extra = {"WEIR_ENGINE_PORTS": "{}-{}".format(*engine_ports())} | extra
        self.router_port = free_ports(3 if "--routers" in flags else 1)[0]
        self.web_port = free_port()
        self.flags = ("--web-port", str(self.web_port), "--router-port", str(self.router_port), *flags)
        self.output = folder / "up.out"
        self.process = None

    def start(self):
        with self.output.open("wb") as out:
            self.process = subprocess.Popen(
                [*self.command, "up", *self.flags],
                cwd=self.folder,
                env=environment(self.folder, **self.extra),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self

    def wait_for(self, text, patience_s=PATIENCE_S):
        self.until(lambda: text in self.output.read_text(), f"`{text}` in {self.output.read_text()}", patience_s)

    def until(self, holds, what, patience_s=PATIENCE_S):
        """Return the value of `holds` once it is true."""
        end = time.monotonic() + patience_s
        while time.monotonic() < end:
            if found := holds():
                return found
            assert self.process.poll() is None, f"up ended: {self.output.read_text()}"
            time.sleep(0.1)
        raise AssertionError(f"waited in vain for {what}; {self.output.read_text()}")

    def shell(self, code):
        """Return the words that the code prints in a `manage.py shell` of this Weir."""
        argv = [sys.executable, "manage.py", "shell", "--no-imports", "--verbosity", "0", "-c", code]
        env = environment(self.folder, **self.extra)
        return subprocess.run(argv, cwd=CODE, env=env, capture_output=True, text=True, check=True).stdout.split()

    def stop(self, number=signal.SIGINT):
        """Return the seconds until `up` had ended."""
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=PATIENCE_S)
        return time.monotonic() - began

    def forbid_writes(self):
        """Make files below the folder that are opened from now on read-only. Raise OSError where mounting is not
        allowed.
        """

        def is_mounted():
            mounted = subprocess.run(["mount", "--bind", self.folder, self.folder], capture_output=True, text=True)
            if mounted.returncode:
                raise OSError(mounted.stderr.strip())
            if not subprocess.run(["mount", "-o", "remount,ro,bind", self.folder], capture_output=True).returncode:
                return True
            self.allow_writes()  # A file was opened for writing in between.
            return False

        self.until(is_mounted, "a mount that nothing has written to")

    def allow_writes(self):
        subprocess.run(["umount", "--lazy", self.folder], check=True)

    def get(self, path, port=None):
        """Return the status; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port or self.web_port}{path}", timeout=5) as answer:
                return answer.status
        except urllib.error.HTTPError as refusal:
            return refusal.code
        except OSError:
            return 0

    def children(self):
        """Return name → pid of the processes that `up` has started itself."""
        return record.leftovers(self.folder / "run" / "processes.json")

    def child(self, name):
        """Return the pid of the process that `up` has started under that name, recorded or not; None while that process
        does not run.
        """
        mark, parent = MARKS.get(name, name).encode(), self.process.pid
        children = map(int, Path(f"/proc/{parent}/task/{parent}/children").read_text().split())
        return next((pid for pid in children if mark in _command(pid)), None)

    def engines(self):
        return process.find({"WEIR_FLEET": str(self.folder)})

    def everything(self):
        """Return every process whose command line contains our data folder."""
        return process.find({"WEIR_DATA_DIR": str(self.folder)}) + self.engines()

    def left(self):
        """Return the remaining processes; a killed process takes a moment to disappear."""
        end = time.monotonic() + 20.0
        while (found := self.everything()) and time.monotonic() < end:
            time.sleep(0.05)
        return found


@contextlib.contextmanager
def running(*flags, folder=None, command=MANAGE, **extra):
    """Start `up` and wait until it answers; whatever happens, no process of it remains. Its folder gets a migrated
    database, whose creation would otherwise take seconds.
    """
    if folder is None:
        folder = new_folder()
        if "DATABASE_URL" not in extra:
            migrated(folder)
    weir = RealUp(folder, *flags, command=command, **extra).start()
    try:
        yield weir
    finally:
        if weir.process.poll() is None:
            weir.process.kill()
        weir.process.wait()
        for pid, started in weir.everything():
            process.send(pid, started, signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)
