"""The routers that bench/router.py compares: how each is installed and started before the same engines.

Each is installed from the package index into its own virtual environment under bench/out/peers/, in the version named
here, and runs with its defaults except what the comparison needs: one process, cache-aware routing if it has it, no log
per request.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import redis

from controlplane.base.process import redis_server
from router.contract.redis import redis_keys
from router.policy.schema import document
from router.request_path import ROUTER
from router.tests.values import stored

HERE = Path(__file__).resolve().parent
SOURCES = {"WEIR_COMPILED": "0"}  # Weir runs from its sources unless a router sets otherwise
TICKS = os.sysconf("SC_CLK_TCK")
START_S = 90.0


class Unavailable(Exception):
    """A router that cannot take part; the message says why."""


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    port: int
    helper: int | None = None  # pid of Weir's Redis, which is counted separately


@dataclass(frozen=True)
class Setting:
    """The conditions under which a router runs."""

    folder: Path
    engines: list[int]  # ports of the engines
    port: int
    pin: list[str]  # prefix of its command line
    pin_rest: list[str]
    profile: str | None
    policy: str = "cache_aware"  # policy of routers other than Weir
    checkout: Path = HERE.parent  # folder of Weir's code
    python: str = sys.executable  # interpreter of Weir
    env: Mapping[str, str] = field(default_factory=dict)  # Weir's settings
    authority: Path | None = None  # authority that signed the engines' certificates; None: no TLS

    @property
    def urls(self) -> list[str]:
        return [f"http{'s' * (self.authority is not None)}://127.0.0.1:{port}" for port in self.engines]

    @property
    def trusting(self) -> dict[str, str]:
        """Return the environment in which a program trusts the engines."""
        return {"SSL_CERT_FILE": str(self.authority)} if self.authority is not None else {}


def installed(name: str, package: str) -> Path:
    """Return the bin folder of the router's virtual environment."""
    home = HERE / "out" / "peers" / name
    done = home / f"{package.replace('/', '_')}.installed"
    if not done.exists():
        print(f"installing {package} …", file=sys.stderr, flush=True)
        shutil.rmtree(home, ignore_errors=True)
        for argv in ([sys.executable, "-m", "venv", home], [home / "bin" / "pip", "install", "-q", package]):
            made = subprocess.run(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            if made.returncode:
                raise Unavailable(f"{package} cannot be installed: {(made.stderr.strip() or '?').splitlines()[-1]}")
        done.touch()
    return home / "bin"


@contextmanager
def process(argv: Sequence[object], **options: object) -> Iterator[subprocess.Popen[bytes]]:
    running = subprocess.Popen([str(word) for word in argv], start_new_session=True, **options)
    try:
        yield running
    finally:
        running.terminate()
        try:
            running.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()


@contextmanager
def serving(setting: Setting, argv: Sequence[object], name: str, ready: str, **env: str) -> Iterator[Running]:
    """Run a router. `env` is added to the environment."""
    log = setting.folder / f"{name}.log"
    with log.open("wb") as out:
        command = [*setting.pin, *argv]
        with process(command, cwd=setting.checkout, stdout=out, stderr=out, env={**os.environ, **env}) as running:
            _wait(setting.port, ready, running, log)
            yield Running(running, setting.port)


def _wait(port: int, path: str, running: subprocess.Popen[bytes], log: Path) -> None:
    ends_at = time.monotonic() + START_S
    while time.monotonic() < ends_at and running.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
                answer.read()
                return
        except OSError:
            time.sleep(0.2)
    last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
    raise Unavailable(f"it did not become ready; the last line of its log: {last[0][:200]}")


@contextmanager
def sglang(setting: Setting, package: str = "sglang-router==0.3.2", module: str = "sglang_router") -> Iterator[Running]:
    python = installed(module, package) / "python"
    argv = [python, "-m", f"{module}.launch_router", "--policy", setting.policy, "--worker-urls", *setting.urls]
    argv += ["--host", "127.0.0.1", "--port", setting.port, "--prometheus-port", setting.port + 1]
    argv += ["--prometheus-host", "127.0.0.1", "--log-level", "warn"]
    argv += ["--ca-cert-paths", setting.authority] if setting.authority is not None else []
    with serving(setting, argv, module, "/readiness", PYTHONPATH="") as running:
        yield running


def smg(setting: Setting) -> AbstractContextManager[Running]:
    """Run smg, the successor of sglang-router."""
    return sglang(setting, "smg==1.13.0", "smg")


@contextmanager
def vllm(setting: Setting) -> Iterator[Running]:
    binary = installed("vllm", "vllm-router==0.1.17") / "vllm-router"
    argv = [binary, "--policy", setting.policy, "--worker-urls", *setting.urls]
    argv += ["--host", "127.0.0.1", "--port", setting.port, "--prometheus-port", setting.port + 1]
    with serving(
        setting, [*argv, "--log-level", "warning"], "vllm", "/readiness", PYTHONPATH="", **setting.trusting
    ) as running:
        yield running


@contextmanager
def litellm(setting: Setting) -> Iterator[Running]:
    binary = installed("litellm", "litellm[proxy]==1.106.2") / "litellm"
    models = [
        f"- {{model_name: bench, litellm_params: {{model: openai/bench, api_base: {url}/v1, api_key: x}}}}"
        for url in setting.urls
    ]
    config = setting.folder / "litellm.yaml"
    settings = [
        "litellm_settings: {telemetry: false}",
        "general_settings: {dangerously_permit_weak_or_unset_master_key: true}",
    ]
    config.write_text("\n".join(["model_list:", *models, *settings, ""]))
    argv = [binary, "--config", config, "--host", "127.0.0.1", "--port", setting.port, "--num_workers", 1]
    with serving(
        setting, argv, "litellm", "/health/liveliness", LITELLM_LOG="ERROR", PYTHONPATH="", **setting.trusting
    ) as running:
        yield running


# This does what `python -m router` does, except that a request's records are dropped instead of written.
UNRECORDED = """
import sys
from router.request_path import ROUTER

ROUTER.use()
from router.process import main
from router.sync.reporter import Reporter

async def forget(self):
    self._recorder.pending.clear()

Reporter._flush_receipts = forget
sys.exit(main())
"""


@contextmanager
def weir(setting: Setting, router: Sequence[str] = ("-m", "router")) -> Iterator[Running]:
    """Run Weir as in production: default policy from Redis, prefix index, affinity, receipts and traffic to Redis,
    metrics."""
    socket = setting.folder / "redis.sock"
    url = f"unix://{socket}"
    arguments = redis_server.arguments(redis_server.find_server(), socket)
    with process([*setting.pin_rest, *arguments], stdout=subprocess.DEVNULL) as keeper:
        redis_server.wait_until_ready(url)
        with redis.Redis.from_url(url) as client:
            publish(client, setting.urls, setting.authority)
        python = [setting.python, *(["-m", "cProfile", "-o", setting.profile] if setting.profile else [])]
        argv = [*python, *router, "--redis", url, "--port", setting.port, "--log-level", "warning"]
        with serving(setting, argv, "weir", "/healthz", **SOURCES | setting.env) as running:
            running.helper = keeper.pid
            yield running


def weir_compiled(setting: Setting) -> AbstractContextManager[Running]:
    """Run Weir with the compiled copy of its request path."""
    if not ROUTER.is_valid():
        raise Unavailable("there is no compiled copy of these sources: make compiled")
    return weir(replace(setting, env={**setting.env, "WEIR_COMPILED": "1"}))


def weir_unrecorded(setting: Setting) -> AbstractContextManager[Running]:
    """Run Weir without receipts and recorded traffic, whose cost the difference shows."""
    return weir(setting, ("-c", UNRECORDED))


@contextmanager
def weir_alone(setting: Setting) -> Iterator[Running]:
    """Run `python -m router --instances`: the same router with its policy from a file; receipts stay in its memory."""
    policy = setting.folder / "policy.json"
    policy.write_text(json.dumps(document.default()))
    trusted = f";tls.authorities=file:{setting.authority}" if setting.authority is not None else ""
    instances = ",".join(url + trusted for url in setting.urls)
    argv = [setting.python, "-m", "router", "--instances", instances, "--policy", policy]
    argv += ["--model", "bench", "--port", setting.port, "--log-level", "warning"]
    with serving(setting, argv, "weir-alone", "/healthz", **SOURCES | setting.env) as running:
        yield running


@contextmanager
def floor(setting: Setting) -> Iterator[Running]:
    """Run a proxy in Python that decides nothing (bench/floor.py)."""
    if setting.authority is not None:
        raise Unavailable("it speaks no TLS")
    argv = [setting.python, "-m", "bench.floor", setting.port, *setting.engines]
    with serving(setting, argv, "floor", "/healthz") as running:
        yield running


def publish(client: redis.Redis, urls: list[str], authority: Path | None = None) -> None:
    made = document.default()
    policy = {"pool": "bench", "policy": "default", "version": 1, "document": made, "sha256": document.sha256(made)}
    common: dict[str, object] = {"epoch": 1, "state": "ready", "routable": True, "block_size": 16, "kv_blocks": 28_000}
    if authority is not None:
        common["tls"] = {"authorities": f"file:{authority}"}
    instances = [{"id": f"bench-{i}", "url": url, **common} for i, url in enumerate(urls)]
    fleet = {"pool": "bench", "model": "bench", "at": time.time(), "instances": instances}
    client.set(redis_keys.policy_key("bench"), stored(policy))
    client.set(redis_keys.fleet_key("bench"), stored(fleet))
    client.set(redis_keys.API_KEYS, stored({"required": [], "keys": []}))
    client.sadd(redis_keys.POOLS, "bench")


PEERS: dict[str, Callable[[Setting], AbstractContextManager[Running]]] = {
    "weir": weir,
    "weir-compiled": weir_compiled,
    "weir-unrecorded": weir_unrecorded,
    "weir-alone": weir_alone,
    "floor": floor,
    "sglang-router": sglang,
    "smg": smg,
    "vllm-router": vllm,
    "litellm": litellm,
}


WEIR = ("weir", "weir-unrecorded", "weir-alone")


def tree(pid: int) -> list[int]:
    """Return the process and its descendants."""
    found = [pid]
    for one in found:
        for task in Path(f"/proc/{one}/task").glob("*/children"):
            found += [int(child) for child in task.read_text().split()]
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """Return the user and system seconds of all the processes."""
    return sum(_ticks(pid, 11) + _ticks(pid, 12) for pid in pids) / TICKS


def kernel_s(pids: Sequence[int]) -> float:
    """Return the system seconds of all the processes."""
    return sum(_ticks(pid, 12) for pid in pids) / TICKS


def _ticks(pid: int, field: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[field])


def memory_mb(pids: Sequence[int]) -> float:
    """Return the resident memory of all the processes."""
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
