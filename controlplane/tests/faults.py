"""Faults in a whole Weir with traffic and an active operator: what is lost, and when everything works again.
`bench/faults.py` runs every row and writes docs/findings/tables/faults.csv; test_faults.py checks what must not be
lost.
"""

import contextlib
import http.client
import json
import os
import shutil
import signal
import struct
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import redis

from controlplane.tests.postgres import Postgres, postgres
from controlplane.tests.rabbitmq import RabbitMQ, rabbitmq
from controlplane.tests.real_up import FLEET, RealUp, new_folder, running
from router.tests.ports import free_port

LASTS_S = 20.0
RATE = 5.0  # requests/s
PATIENCE_S = 120.0
DISK_MB = 160
CLOCK = Path(__file__).with_name("clock.c")


class Impossible(Exception):
    """The row needs something that this machine lacks; the message names it."""


@dataclass
class World:
    weir: RealUp
    database: Postgres | None = None
    broker: RabbitMQ | None = None
    clock: Path | None = None  # contains the clock offset (clock.c)

    @property
    def redis(self) -> "redis.Redis":
        return redis.Redis.from_url(f"unix://{self.weir.folder / 'run' / 'redis.sock'}")

    def pid(self, name: str) -> int:
        if name == "engine":
            return self.weir.engines()[0][0]
        pid = self.weir.child(name)
        assert pid is not None, f"{name} does not run"
        return pid

    def told(self) -> str:
        """Return the last lines of `up` and the routers."""
        logs = [self.weir.output, *sorted((self.weir.folder / "logs").glob("router-*"))]
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


Change = Callable[[World], None]


@dataclass(frozen=True)
class Row:
    fault: str
    subject: str
    stage: str  # the required set-up
    begin: Change
    end: Change | None = None  # after LASTS_S; None: the fault ends at once


@dataclass
class Found:
    """The result of a row."""

    sent: int = 0
    lost: Counter[str] = field(default_factory=Counter)  # failed requests by outcome
    gap_s: float = 0.0  # longest time without an answer
    whole_s: float | None = None  # seconds after the end of the fault; None: longer than PATIENCE_S
    published: int = 0  # acknowledged by the API
    saved: int = 0  # drafts, acknowledged
    experiment: str = ""  # outcome of the experiment that was running
    missing: list[str] = field(default_factory=list)  # items that were acknowledged, but are no longer there


# Requests


class Traffic:
    """Sends RATE requests a second to the router port, each on its own connection."""

    def __init__(self, weir: RealUp) -> None:
        self._weir = weir
        self.sent = 0
        self.lost: Counter[str] = Counter()
        self._answered = [time.monotonic()]
        self._ended = threading.Event()
        self._pool = ThreadPoolExecutor(256)
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(1 / RATE):
            self.sent += 1
            self._pool.submit(self._ask)

    def _ask(self) -> None:
        what = completion(self._weir)
        if what == "200":
            self._answered.append(time.monotonic())
        else:
            self.lost[what] += 1

    def __enter__(self) -> "Traffic":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._pool.shutdown()

    @property
    def gap_s(self) -> float:
        times = sorted(self._answered)
        return max((later - before for before, later in pairwise(times)), default=0.0)


def completion(weir: RealUp) -> str:
    """Return the status of a completion, or the error."""
    connection = http.client.HTTPConnection("127.0.0.1", weir.router_port, timeout=60)
    body = json.dumps({"model": "llama-3.1-8b", "prompt": "hello", "max_tokens": 4})
    try:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        return str(answer.status)
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__
    finally:
        connection.close()


# An operator


def api(weir: RealUp, path: str, body: object = None, method: str | None = None, timeout_s: float = 15) -> Any:
    """Return the answer's JSON. Raises OSError for an unsuccessful answer."""
    token = (weir.folder / "token").read_text().strip()
    request = urllib.request.Request(f"http://127.0.0.1:{weir.web_port}/api/v1{path}", method=method)
    request.add_header("authorization", f"Bearer {token}")
    if body is not None:
        request.data = json.dumps(body).encode()
        request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        return json.load(answer)


EXPERIMENT = {"name": "kept", "trace": "agentic-demo", "pool": "demo", "mode": "twin", "seeds": [1], "duration_s": 30}
ARMS = [{"name": "live"}, {"name": "other", "strategy": "round_robin"}]


class Operator:
    """Starts an experiment, saves drafts and publishes them, and records what was acknowledged."""

    def __init__(self, weir: RealUp) -> None:
        self._weir = weir
        self.saved: list[int] = []  # values of a parameter
        self.kept: list[int | None] = []  # values found in the draft before it was changed again
        self.published: list[str] = []  # reasons
        self.experiment: int = api(weir, "/experiments", {**EXPERIMENT, "arms": ARMS})["id"]
        self._number = 10_000
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            with contextlib.suppress(OSError, http.client.HTTPException):
                self.work()

    def work(self) -> None:
        """Save and publish one draft."""
        self._number += 1
        number, reason = self._number, f"number {self._number} of {id(self)}"
        opened = api(self._weir, "/policies/default/draft", {})  # the previous draft, if its publication failed
        self.kept.append(_heavy(opened))
        overrides = {"classes.heavy_new_tokens": number}
        api(self._weir, "/policies/default/draft", {"overrides": overrides}, method="PATCH")
        self.saved.append(number)
        api(self._weir, "/policies/default/draft/publish", {"reason": reason})
        self.published.append(reason)

    def __enter__(self) -> "Operator":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def ended(self) -> str:
        """Return the outcome of the experiment; a worker that died is recognised by its heartbeat."""
        end = time.monotonic() + PATIENCE_S
        status = ""
        while time.monotonic() < end:
            status = str(api(self._weir, f"/experiments/{self.experiment}")["status"])
            if status in ("done", "failed"):
                break
            time.sleep(0.5)
        return status

    def missing(self) -> list[str]:
        """Return acknowledged items that are missing: versions, audit entries, values of drafts, results."""
        versions = _pages(self._weir, "/policies/default/versions?limit=100", None, "number")
        entries = _pages(self._weir, "/audit?limit=200", "entries", "id")
        reasons, audited = {one["reason"] for one in versions}, {one["reason"] for one in entries}
        values = {*map(_heavy, versions), *self.kept, _draft_value(self._weir)}
        return [
            *(f"version of {reason}" for reason in self.published if reason not in reasons),
            *(f"audit entry of {reason}" for reason in self.published if reason not in audited),
            *(f"draft with {value}" for value in self.saved if value not in values and value != self.saved[-1]),
            *_missing_results(self._weir, self.experiment, self.ended()),
        ]


def _missing_results(weir: RealUp, experiment: int, status: str) -> list[str]:
    """Return the experiments that are done without results, or failed without a reason."""
    results = api(weir, f"/experiments/{experiment}/results")
    if status == "done":
        return [] if len(results["arms"]) == len(ARMS) else [f"results of experiment {experiment}"]
    cause = results["experiment"]["cause"]
    return [] if status == "failed" and cause else [f"end of experiment {experiment}, which is {status}"]


def _pages(weir: RealUp, path: str, key: str | None, cursor: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before = ""
    while True:
        page = api(weir, path + before)
        rows = page[key] if key else page
        found += rows
        if len(rows) < 100:
            return found
        before = f"&before={rows[-1][cursor]}"


def _draft_value(weir: RealUp) -> int | None:
    try:
        draft = api(weir, "/policies/default/draft")
    except urllib.error.HTTPError:
        return None  # none is open
    return _heavy(draft)


def _heavy(stored: Mapping[str, Any]) -> int | None:
    """Return the operator's parameter in a version or draft."""
    return stored["document"].get("classes", {}).get("heavy_new_tokens")


# A row


def run(row: Row, world: World, lasts_s: float = LASTS_S) -> Found:
    """Wait until everything works, then apply the fault during traffic."""
    weir = world.weir
    weir.until(lambda: is_whole(weir), f"a whole Weir before {row.fault} of {row.subject}")
    found = Found()
    with Traffic(weir) as traffic, Operator(weir) as operator:
        time.sleep(3.0)
        row.begin(world)
        if row.end is not None:
            time.sleep(lasts_s)
            row.end(world)
        over, before = time.monotonic(), sampled(weir)
        while time.monotonic() - over < PATIENCE_S:
            if is_whole(weir, before):
                found.whole_s = time.monotonic() - over
                break
            time.sleep(0.25)
        time.sleep(3.0)
    found.sent, found.lost, found.gap_s = traffic.sent, traffic.lost, traffic.gap_s
    found.saved, found.published = len(operator.saved), len(operator.published)
    found.experiment = operator.ended()
    found.missing = operator.missing()
    return found


def is_whole(weir: RealUp, before: Mapping[str, float] | None = None) -> bool:
    """Return whether every process runs; requests, pages and publishing work; every instance is ready and has a
    newer sample."""
    if not all(map(weir.child, PROCESSES[:-1])) or completion(weir) != "200" or weir.get("/login") != 200:
        return False
    try:
        states = {one["status"] for one in api(weir, "/instances", timeout_s=5)}
        number = api(weir, "/policies/default", timeout_s=5)["live"]["number"]
        now = sampled(weir)
        fresh = len(now) == 2 and all((before or {}).get(name) != at for name, at in now.items())
        return fresh and states == {"ready"} and served(weir) >= number
    except (OSError, http.client.HTTPException, KeyError, TypeError):
        return False


def sampled(weir: RealUp) -> dict[str, float]:
    """Return the times of the samples; empty while they are unknown."""
    try:
        return {one["id"]: one["sample"]["at"] for one in api(weir, "/instances", timeout_s=5) if one["sample"]}
    except (OSError, http.client.HTTPException):
        return {}


def served(weir: RealUp) -> int:
    """The version that the routers serve."""
    request = urllib.request.Request(f"http://127.0.0.1:{weir.router_port}/v1/completions")
    request.data = json.dumps({"model": "llama-3.1-8b", "prompt": "hello", "max_tokens": 1}).encode()
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=5) as answer:
        return int(answer.headers["x-weir-policy"])


# Faults

PROCESSES = ("web", "router-1", "control", "experiments", "redis", "engine")


def signalled(name: str, number: signal.Signals) -> Change:
    return lambda world: os.kill(world.pid(name), number)


def suspended(name: str) -> Row:
    pids: list[int] = []

    def begin(world: World) -> None:
        pids.append(world.pid(name))
        os.kill(pids[-1], signal.SIGSTOP)

    def end(world: World) -> None:
        with contextlib.suppress(ProcessLookupError):  # replaced in the meantime
            os.kill(pids[-1], signal.SIGCONT)

    return Row("SIGSTOP for 20 s", name, "one host", begin, end)


def without_descriptors(name: str) -> Row:
    """Use up the file descriptors: no file can be opened, no connection accepted."""
    before: list[str] = []

    def limit(pid: int, soft: str) -> None:
        subprocess.run(["prlimit", f"--pid={pid}", f"--nofile={soft}:"], check=True)

    def begin(world: World) -> None:
        pid = world.pid(name)
        limits = Path(f"/proc/{pid}/limits").read_text()
        before[:] = [str(pid), next(line for line in limits.splitlines() if "open files" in line).split()[3]]
        taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
        limit(pid, str(next(number for number in count() if number not in taken)))  # leaves no unused number below

    def end(world: World) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):  # it has ended in the meantime
            limit(int(before[0]), before[1])

    return Row("no file descriptors left for 20 s (EMFILE)", name, "one host", begin, end)


def fill(folder: Path) -> Path:
    """Fill the disk to the last byte."""
    path = folder / "filling"
    with path.open("wb", buffering=0) as file:
        for size in (1_000_000, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))
    return path


def _fill(world: World) -> None:
    fill(world.weir.folder)


def _empty(world: World) -> None:
    (world.weir.folder / "filling").unlink()


def _full_and_killed(world: World) -> None:
    _fill(world)
    for name in ("router-1", "web", "control"):
        os.kill(world.pid(name), signal.SIGKILL)


def _flush(world: World) -> None:
    world.redis.flushall()


def _corrupt(world: World) -> None:
    """Overwrite every string of Weir with garbage."""
    client = world.redis
    for number, key in enumerate(client.scan_iter("weir:*")):
        if client.type(key) == b"string":
            client.set(key, (b"", b"\xff\x00garbage", b'{"schema": 99}', b"[" * 2000)[number % 4], keepttl=True)


def clock(offset_s: int) -> Change:
    def change(world: World) -> None:
        assert world.clock is not None
        with world.clock.open("r+b") as file:  # overwritten in place, because the file is mapped
            file.write(struct.pack("l", offset_s))

    return change


def _database_away(world: World) -> None:
    assert world.database is not None
    world.database.stop("immediate")


def _database_back(world: World) -> None:
    assert world.database is not None
    world.database.start()


def _broker_away(world: World) -> None:
    assert world.broker is not None
    world.broker.kill()


def _broker_back(world: World) -> None:
    assert world.broker is not None
    world.broker.start()


ROWS = (
    *(Row("kill -9", name, "one host", signalled(name, signal.SIGKILL)) for name in PROCESSES),
    *(suspended(name) for name in PROCESSES),
    *(Row("SIGTERM", name, "one host", signalled(name, signal.SIGTERM)) for name in PROCESSES),
    *(without_descriptors(name) for name in ("web", "router-1", "control")),
    Row("all keys flushed", "redis", "one host", _flush),
    Row("all values corrupted", "redis", "one host", _corrupt),
    Row("disk full for 20 s", "data folder", "one host", _fill, _empty),
    Row("disk full for 20 s, router-1, web and control killed", "data folder", "one host", _full_and_killed, _empty),
    Row(
        "read-only for 20 s",
        "data folder",
        "one host",
        lambda world: world.weir.forbid_writes(),
        lambda world: world.weir.allow_writes(),
    ),
    Row("an hour forward for 20 s, then back", "clock", "clock", clock(3600), clock(0)),
    Row("an hour back for 20 s, then forward", "clock", "clock", clock(-3600), clock(0)),
    Row("crash, away for 20 s", "PostgreSQL", "PostgreSQL", _database_away, _database_back),
    Row("crash, away for 20 s", "RabbitMQ", "RabbitMQ", _broker_away, _broker_back),
)


# Set-ups


@contextlib.contextmanager
def small_disk(megabytes: int = DISK_MB) -> Iterator[Path]:
    """A folder on its own disk."""
    folder = new_folder()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        folder.rmdir()
        raise Impossible(f"no disk can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def setting(stage: str) -> Iterator[World]:
    """A running Weir with two routers and two engines on a small disk, plus what the stage requires."""
    with contextlib.ExitStack() as stack:
        fleet = Path(stack.enter_context(_file(FLEET.encode())))
        extra: dict[str, str] = {}
        world = World(RealUp(Path("/")))
        if stage == "PostgreSQL":
            world.database = stack.enter_context(postgres(free_port()))
            extra["DATABASE_URL"] = world.database.url
        if stage == "RabbitMQ":
            world.broker = stack.enter_context(rabbitmq())
            extra["WEIR_CELERY_BROKER_URL"] = world.broker.url
        if stage == "clock":
            world.clock = Path(stack.enter_context(_file(struct.pack("l", 0))))
            extra |= {"LD_PRELOAD": str(_compiled(world.clock.parent)), "WEIR_TEST_CLOCK": str(world.clock)}
        folder = stack.enter_context(small_disk())
        world.weir = stack.enter_context(running("--routers", "2", "--fleet", str(fleet), folder=folder, **extra))
        world.weir.wait_for("2/2 instances of pool demo are ready", PATIENCE_S)
        world.weir.until(lambda: all(map(world.weir.child, PROCESSES[:-1])), "all processes")
        yield world


def _compiled(folder: Path) -> Path:
    library = folder / "clock.so"
    compiler = shutil.which("cc")
    if compiler is None:
        raise Impossible("no C compiler is installed here, which the clock needs: apt-get install gcc libc6-dev")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(CLOCK)], check=True)
    return library


@contextlib.contextmanager
def _file(content: bytes) -> Iterator[str]:
    folder = new_folder()
    path = folder / "file"
    path.write_bytes(content)
    try:
        yield str(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
