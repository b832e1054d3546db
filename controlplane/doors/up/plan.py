"""The processes of `up`, with their command lines. Pure."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

# Stages in the order of their start: the store; the servers, while the database is prepared (migrated.py); the workers;
# background processes when the pages answer; the traffic when the fleet is ready.
Stage = Literal["store", "servers", "workers", "background", "traffic"]
# Workers stop before the engines, which they would otherwise start again; servers stop last, so that running answers
# can end.
STOP_ORDER: tuple[tuple[Stage, ...], ...] = (("traffic",), ("workers", "background"), ("servers",), ("store",))

DEMO_POOL = "demo"
THREADS = 10  # threads per control or node worker, more than its concurrent jobs, so that an order finds a free one

STOPPED_WITHIN_S = 10.0  # limit on the grace periods of all stages and the engines together

BACKOFF_FIRST_S = 0.5
BACKOFF_LIMIT_S = 30.0
STEADY_S = 60.0  # after a run of this length, earlier failures no longer count


@dataclass(frozen=True)
class Options:
    """The options of the command line."""

    host: str = "127.0.0.1"
    web_port: int = 8000
    router_port: int = 8080  # port for clients; with several routers, each has a second port above it
    routers: int = 1
    demo: bool = True
    fleet: Path | None = None

    @property
    def router_ports(self) -> tuple[int, ...]:
        """Return the port of each router."""
        if self.routers == 1:
            return (self.router_port,)
        return tuple(range(self.router_port + 1, self.router_port + 1 + self.routers))

    @property
    def listens(self) -> dict[int, str]:
        """Return each port with the option that sets it."""
        routers = (self.router_port, *self.router_ports)
        return {self.web_port: "--web-port"} | {port: "--router-port" for port in routers}


@dataclass(frozen=True)
class Surroundings:
    """The values determined by the machine and the environment."""

    python: str  # path of the interpreter
    redis_url: str
    redis_command: tuple[str, ...] = ()  # empty if `redis_url` is a server that Weir does not start
    index_socket: str = ""  # socket of the index process; empty if each router follows KV events by itself


@dataclass(frozen=True)
class Ready:
    """The check of whether a process serves."""

    by: Literal["redis", "http", "worker", "running"]
    target: str = ""  # URL, or the worker's name


@dataclass(frozen=True)
class Process:
    name: str
    stage: Stage
    argv: tuple[str, ...]
    ready: Ready
    grace_s: float  # time between SIGTERM and SIGKILL
    shows: str = ""  # text of the console line when it is ready


def loopback(host: str) -> str:
    """Return the address at which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104


def url(host: str, port: int) -> str:
    return f"http://{loopback(host)}:{port}"


def processes(options: Options, around: Surroundings) -> tuple[Process, ...]:
    return (
        *store(around),
        web(options, around),
        *(index(around) if options.routers > 1 else ()),
        *(router(options, around, number) for number in range(1, options.routers + 1)),
        worker(around, "control", "control,node.local", f"--concurrency={THREADS}", "--control", "--node", "local"),
        replace(worker(around, "experiments", "experiments", "--concurrency=1"), stage="background"),
        *((traffic(options, around),) if options.demo else ()),
    )


def store(around: Surroundings) -> tuple[Process, ...]:
    if not around.redis_command:
        return ()
    return (Process("redis", "store", around.redis_command, Ready("redis", around.redis_url), 1.0, around.redis_url),)


def web(options: Options, around: Surroundings) -> Process:
    argv = (around.python, "-m", "controlplane.doors.web", "--host", options.host, "--port", str(options.web_port))
    home = url(options.host, options.web_port)
    return Process("web", "servers", argv, Ready("http", f"{home}/healthz"), 2.5, home)


def index(around: Surroundings) -> tuple[Process, ...]:
    """Return the process that follows the engines' KV events for all routers, if there are several."""
    if not around.index_socket:
        return ()
    argv = (around.python, "-m", "router.index", "--socket", around.index_socket)
    return (Process("index", "servers", argv, Ready("running"), 1.0, around.index_socket),)


def router(options: Options, around: Surroundings, number: int) -> Process:
    name, port = f"router-{number}", options.router_ports[number - 1]
    shared: tuple[str, ...] = ("--shared-port", str(options.router_port)) if options.routers > 1 else ()
    if options.routers > 1 and around.index_socket:
        shared = (*shared, "--index", around.index_socket)
    argv = (
        *(around.python, "-m", "router"),  # REDIS_URL is in the environment: a command line would show its password.
        *("--host", options.host, "--port", str(port), "--id", name, "--grace", "1.5"),
        *("--web", url(options.host, options.web_port)),
        *shared,
    )
    home = url(options.host, port)
    return Process(name, "servers", argv, Ready("http", f"{home}/healthz"), 2.5, f"{home}/v1")


def worker(around: Surroundings, name: str, queues: str, *flags: str) -> Process:
    argv = celery(around.python, f"{name}@local", queues, *flags)
    return Process(name, "workers", argv, Ready("worker", f"{name}@local"), 2.0, f"Celery, queues {queues}")


def celery(python: str, name: str, queues: str, *flags: str) -> tuple[str, ...]:
    """Return the command line of every worker of Weir."""
    # Threads are used because tasks wait for engines, Redis and the database, and each further process costs memory.
    # Checks are off because Django's would import every page and the REST API, which no task needs: half of a worker's
    # start-up time.
    return (
        *(python, "-m", "celery", "-A", "controlplane.celery", "--skip-checks", "worker"),
        *("-Q", queues, "-n", name),
        *("--pool=threads", *flags, "--without-gossip", "--without-mingle", "--loglevel=WARNING"),
    )


def traffic(options: Options, around: Surroundings) -> Process:
    target = url(options.host, options.router_port)
    argv = (around.python, "-m", "controlplane.evidence.experiments.replay.demo", target, DEMO_POOL)
    return Process("traffic", "traffic", argv, Ready("running"), 0.5, f"demo sessions to {target}")


def restart_delay_s(failures: int) -> float:
    """Return the delay before restarting a process that ended by itself, after this many consecutive failures."""
    return min(BACKOFF_FIRST_S * 2.0 ** min(failures - 1, 10), BACKOFF_LIMIT_S) if failures > 0 else 0.0


def failures_after(failures: int, ran_s: float) -> int:
    """Return the consecutive failures, including the run that just ended after `ran_s`."""
    return 1 if ran_s >= STEADY_S or math.isnan(ran_s) else failures + 1
