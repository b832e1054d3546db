"""Several hosts on this machine: a network namespace each, joined by a bridge in the namespace of the control host.
The control host has Redis (over TCP, with a password), the schedule and a router; each node has a worker and its own
data folder. Only the database file is shared, as a database server would be.
"""

import itertools
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

from controlplane.base.process import redis_server
from controlplane.doors.up.plan import celery
from controlplane.tests.migrated import migrated
from router.contract.redis import redis_keys
from router.tests.values import loaded

ROOT = Path(__file__).resolve().parents[4]
SLOW_LINK = Path(__file__).with_name("slow_link.py")
NET = "198.18.77"  # reserved for tests of networks (RFC 2544); no packet leaves the namespaces
CONTROL = f"{NET}.1"
PASSWORD = "a-password"
CLIENT = """
import json, sys, time, urllib.request
url, number = sys.argv[1], 0
while True:
    number += 1
    body = json.dumps({"model": "m", "prompt": f"request {number}", "max_tokens": 4}).encode()
    ask = urllib.request.Request(url, body, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(ask, timeout=20) as answer:
            said = [answer.status, answer.headers["x-weir-instance"]]
    except Exception as error:
        said = [getattr(error, "code", 0), ""]
    print(json.dumps([time.time(), number, *said]), flush=True)
    time.sleep(0.1)
"""


def why_not() -> str:
    """Return why this machine cannot simulate several hosts; empty if it can."""
    if os.geteuid() != 0:
        return "network namespaces take root"
    if shutil.which("ip") is None:
        return "the program ip is missing (package iproute2)"
    name = f"weir-try-{os.getpid()}"
    tried = [_ip("netns", "add", name), _ip("-n", name, "link", "add", "b0", "type", "bridge")]
    tried.append(_ip("-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1"))
    _ip("netns", "del", name)
    return next((f"no network namespaces here: {done.stderr.strip()}" for done in tried if done.returncode), "")


def _ip(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(["ip", *words], text=True, capture_output=True, timeout=20)


def ip(*words: str) -> None:
    done = _ip(*words)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr}"


class Hosts:
    def __init__(self, folder: Path, nodes: tuple[str, ...]) -> None:
        self.folder = folder
        self.addresses = {name: f"{NET}.{number}" for number, name in enumerate(nodes, start=2)}
        self.spaces = {name: f"weir-{os.getpid()}-{name}" for name in ("control", *nodes)}
        self.processes: list[subprocess.Popen[bytes]] = []
        self.workers: dict[str, subprocess.Popen[bytes]] = {}
        self._network()
        self._store()
        migrated(folder)

    # The network

    def _network(self) -> None:
        for space in self.spaces.values():
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
        control = self.spaces["control"]
        ip("-n", control, "link", "add", "bridge", "type", "bridge")
        ip("-n", control, "addr", "add", f"{CONTROL}/24", "dev", "bridge")
        ip("-n", control, "link", "set", "bridge", "up")
        for name, address in self.addresses.items():
            ip("-n", control, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", self.spaces[name])
            ip("-n", control, "link", "set", name, "master", "bridge")
            ip("-n", control, "link", "set", name, "up")
            ip("-n", self.spaces[name], "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", self.spaces[name], "link", "set", "eth0", "up")

    def cut_off(self, name: str) -> None:
        ip("-n", self.spaces["control"], "link", "set", name, "down")

    def bring_back(self, name: str) -> None:
        ip("-n", self.spaces["control"], "link", "set", name, "up")

    def slow_down(self, name: str, delay_ms: int) -> None:
        """Delay each packet on the node's link in both directions. A process carries the packets, as kernels may lack
        sch_netem.
        """
        control = self.spaces["control"]
        ip("-n", control, "link", "add", "slow-in", "type", "veth", "peer", "name", "slow-out")
        # Otherwise this kernel would answer for the bridge's address itself, and packets would bypass the link.
        for link in (name, "slow-in"):
            ip("-n", control, "link", "set", link, "arp", "off")
        ip("-n", control, "link", "set", name, "nomaster")
        ip("-n", control, "link", "set", "slow-out", "master", "bridge")
        for link in ("slow-in", "slow-out"):
            ip("-n", control, "link", "set", link, "up")
        self.wire = self.start("control", "wire", [sys.executable, str(SLOW_LINK), name, "slow-in", str(delay_ms)])

    def speed_up(self, name: str) -> None:
        self.wire.kill()
        self.wire.wait(10)
        control = self.spaces["control"]
        ip("-n", control, "link", "del", "slow-in")
        ip("-n", control, "link", "set", name, "arp", "on")
        ip("-n", control, "link", "set", name, "master", "bridge")

    def round_trip_s(self, name: str) -> float:
        """Return the time to connect from the control host to one of the node's engines."""
        host, port = next(url for url, node in self.rows("url, node") if node == name).split("/")[2].split(":")
        ask = f"socket.create_connection({(host, int(port))})"
        code = f"import socket, time; begin = time.time(); {ask}; print(time.time() - begin)"
        return float(self.run("control", [sys.executable, "-c", code]).stdout)

    # Processes

    def environment(self, host: str) -> dict[str, str]:
        data = self.folder / host
        data.mkdir(exist_ok=True)
        return os.environ | {
            "WEIR_DATA_DIR": str(data),
            "DATABASE_URL": f"sqlite://{self.folder}/weir.sqlite3",
            "REDIS_URL": f"redis://:{PASSWORD}@{CONTROL}:6379/0",
            "WEIR_ENGINE_PORTS": "18100-18160",
        }

    def _in(self, host: str, argv: list[str]) -> list[str]:
        return ["ip", "netns", "exec", self.spaces[host], *argv]

    def run(self, host: str, argv: list[str]) -> "subprocess.CompletedProcess[str]":
        env = self.environment(host)
        return subprocess.run(self._in(host, argv), env=env, cwd=ROOT, text=True, capture_output=True, timeout=60)

    def manage(self, *words: str) -> str:
        done = self.run("control", [sys.executable, str(ROOT / "manage.py"), *words])
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, host: str, name: str, argv: list[str]) -> "subprocess.Popen[bytes]":
        # `ip netns exec` becomes the program, so this is its pid.
        with (self.folder / f"{name}.log").open("wb") as log:
            command = self._in(host, argv)
            prepared = subprocess.Popen(
                command, env=self.environment(host), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        self.processes.append(prepared)
        return prepared

    def _store(self) -> None:
        socket = self.folder / "redis.sock"
        argv = redis_server.arguments(redis_server.find_server(), socket)
        argv[argv.index("--port") + 1] = "6379"
        self.start("control", "redis", [*argv, "--bind", CONTROL, "--requirepass", PASSWORD])
        # This test runs outside the namespaces, so it checks the socket.
        url = f"unix://:{PASSWORD}@{socket}"
        redis_server.wait_until_ready(url)
        self.redis = redis.Redis.from_url(url)

    def start_control(self) -> None:
        argv = celery(sys.executable, "control@control", "control", "--concurrency=4", "--control")
        self.start("control", "control", list(argv))
        argv = [sys.executable, "-m", "router", "--redis", self.environment("control")["REDIS_URL"], "--host", CONTROL]
        self.start("control", "router", [*argv, "--port", "8080", "--id", "r1"])

    def start_node(self, name: str) -> None:
        words = ["node", "--name", name, "--address", self.addresses[name], "--label", f"rack={name}"]
        self.workers[name] = self.start(name, name, [sys.executable, str(ROOT / "manage.py"), *words])

    @contextmanager
    def suspended_worker(self, name: str) -> Iterator[None]:
        os.kill(self.workers[name].pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.workers[name].pid, signal.SIGCONT)

    def silent_s(self, name: str) -> float:
        """Return the seconds since the node's last heartbeat."""
        query = "SELECT (julianday('now') - julianday(last_seen)) * 86400 FROM fleet_node WHERE name = ?"
        with sqlite3.connect(self.folder / "weir.sqlite3", timeout=20) as database:
            return float(database.execute(query, (name,)).fetchone()[0])

    def start_client(self) -> None:
        self.start("control", "client", [sys.executable, "-c", CLIENT, f"http://{CONTROL}:8080/v1/completions"])

    # Observations

    def answers(self, since: float = 0.0) -> list[tuple[float, int, int, str]]:
        """Return (time, number, status, instance) of each request, as the client saw it."""
        lines = (self.folder / "client.log").read_text().splitlines()
        return [tuple(json.loads(line)) for line in lines if json.loads(line)[0] >= since]  # type: ignore[misc]

    def longest_s(self, since: float) -> float:
        """Return the longest pause between two answers to a client that sends one request after another."""
        times = [answer[0] for answer in self.answers(since)]
        return max(later - earlier for earlier, later in itertools.pairwise(times))

    def entries(self) -> dict[str, dict[str, Any]]:
        value = loaded(self.redis.get(redis_keys.fleet_key("demo")))  # type: ignore[arg-type]
        return {entry["id"]: entry for entry in value["instances"]} if value else {}

    def rows(self, columns: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.folder / "weir.sqlite3", timeout=20) as database:
            return database.execute(f"SELECT {columns} FROM fleet_instance ORDER BY ordinal").fetchall()

    def engines(self, node: str) -> list[tuple[str, int, int]]:
        """Return (instance, epoch, pid) of each engine process that runs on a node, whatever the database says."""
        found = []
        for entry in Path("/proc").iterdir():
            held = _variables(entry) if entry.name.isdigit() else {}
            if held.get("WEIR_NODE") == node and held.get("WEIR_FLEET") == str(self.folder / node):
                found.append((held["WEIR_INSTANCE"], int(held["WEIR_EPOCH"]), int(entry.name)))
        return sorted(found)

    def starts(self) -> list[tuple[str, str]]:
        """Return (instance, header of its log) of every start on every node."""
        logs = [path for name in self.addresses for path in (self.folder / name / "logs" / "instances").glob("*.log*")]
        return [
            (path.name, " ".join(line.split()[:4]))
            for path in logs
            for line in path.read_text().splitlines()
            if "epoch" in line and "fleet.simengine" in line
        ]

    def served(self, node: str, instance: str) -> float:
        """Return the number of requests that an engine has answered, asked on its own node."""
        (url,) = (url for name, url in self.rows("name, url") if name == instance)
        return self.served_at(node, url)

    def served_at(self, node: str, url: str) -> float:
        code = f"import urllib.request; print(urllib.request.urlopen('{url}/metrics').read().decode())"
        page = self.run(node, [sys.executable, "-c", code]).stdout.splitlines()
        return sum(float(line.split()[-1]) for line in page if line.startswith("vllm:request_success_total"))

    def until(self, condition: Callable[[], bool], limit_s: float = 90) -> float:
        """Return the seconds until the condition held."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() - begin > limit_s:
                logs = "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))
                raise AssertionError(f"not within {limit_s} s: {self.rows('name, state, node, epoch, reason')}\n{logs}")
            time.sleep(0.1)
        return time.monotonic() - begin

    def routable(self, *nodes: str) -> Callable[[], bool]:
        """Return whether exactly these nodes have the routable instances (one word each, in any order)."""
        return lambda: sorted(e["node"] for e in self.entries().values() if e["routable"]) == sorted(nodes)

    def close(self) -> None:
        for prepared in reversed(self.processes):
            if prepared.poll() is None:
                os.killpg(prepared.pid, signal.SIGKILL)
                prepared.wait(10)
        for node in self.addresses:
            for _, _, pid in self.engines(node):
                os.kill(pid, signal.SIGKILL)
        for space in self.spaces.values():
            _ip("netns", "del", space)
        self.redis.close()


def _variables(entry: Path) -> dict[str, str]:
    try:
        held = (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    pairs = (one.decode(errors="replace").partition("=") for one in held if one.startswith(b"WEIR_"))
    found = {name: value for name, _, value in pairs}
    return found if "WEIR_EPOCH" in found else {}
