"""An engine that its trainer pauses looks idle and healthy, but gets no requests."""

import json
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from math import inf
from threading import Thread
from time import sleep

import pytest

from fleet import services
from fleet.models import Instance, State
from fleet.plan.state import NOT_READY, PAUSED, replace_after_s
from fleet.tests.world import World

MODELS = {"object": "list", "data": [{"id": "m"}]}


class Engine(BaseHTTPRequestHandler):
    """The pages of vLLM or SGLang that a node reads."""

    dialect = "vllm"
    protocol_version = "HTTP/1.1"
    paused: bool | None = False  # None: started without developer endpoints
    hangs_s = 0.0  # time for which the scheduler hangs
    asked: Counter[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.asked[self.path] += 1
        pages = {"/v1/models": json.dumps(MODELS), "/metrics": f"# \n{self.dialect}:num_requests_running 0\n"}
        pages |= {"/health": ""} if self.dialect == "vllm" else {"/ready": "", "/server_info": '{"version": "0.5.23"}'}
        if self.paused is not None and self.dialect == "vllm":
            pages["/is_paused"] = json.dumps({"is_paused": self.paused})
        body = pages.get(self.path, "").encode()
        if self.path == "/server_info":
            sleep(self.hangs_s)
        refused = self.path == "/ready" and self.paused
        self.send_response(503 if refused else 200 if self.path in pages else 404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def engine() -> Iterator[tuple[str, type[Engine]]]:
    made = type("Own", (Engine,), {"asked": Counter()})
    with ThreadingHTTPServer(("127.0.0.1", 0), made) as server:
        Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", made
        server.shutdown()


def served(world: World, url: str, server: str = "vllm") -> None:
    pool = {"name": "p", "model": "m", "kind": "external", "engine": {"urls": [url], "server": server}}
    named = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}
    services.apply_fleet(named, "ada")
    world.until_ready(1)


@pytest.mark.parametrize(("server", "reason"), [("vllm", PAUSED), ("sglang", NOT_READY)])
def test_an_engine_leaves_routing_while_it_is_paused_and_sglang_is_never_asked_to_compute(
    world: World, engine: tuple[str, type[Engine]], server: str, reason: str
) -> None:
    url, made = engine
    made.dialect = server
    served(world, url, server)
    made.paused = True
    world.until(lambda: world.one().state == State.UNREACHABLE)
    assert (world.one().reason, world.published()["p-0"]["routable"]) == (reason, False)
    made.paused = False
    world.until_ready(1)
    assert bool(made.asked["/health"]) == (server == "vllm")


def test_an_sglang_that_hangs_does_not_count_as_paused(world: World, engine: tuple[str, type[Engine]]) -> None:
    """SGLang reports both on one page, which answers 503 forever once a health check has failed."""
    url, made = engine
    made.dialect = "sglang"
    served(world, url, "sglang")
    made.hangs_s, made.paused = 1.5, True
    world.until(lambda: world.one().state == State.UNREACHABLE)
    assert "503" in world.one().reason
    assert replace_after_s(world.one().reason, None) < inf


def test_an_sglang_in_the_middle_of_a_long_prompt_is_recognised_before_it_gets_requests(
    world: World, engine: tuple[str, type[Engine]]
) -> None:
    url, made = engine
    made.dialect, made.hangs_s = "sglang", 1.5
    pool = {"name": "p", "model": "m", "kind": "external", "engine": {"urls": [url], "server": "sglang"}}
    named = {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}
    services.apply_fleet(named, "ada")
    late = "/server_info took longer than 1 s"
    world.until(lambda: any(late in row.reason for row in Instance.objects.all()))
    assert world.one().state == State.LOADING
    made.hangs_s = 0.0
    world.until_ready(1)


def test_an_engine_that_cannot_be_paused_is_asked_only_once(world: World, engine: tuple[str, type[Engine]]) -> None:
    url, made = engine
    made.paused = None
    served(world, url)
    pages = made.asked["/health"]
    world.until(lambda: made.asked["/health"] > pages + 3)
    assert made.asked["/is_paused"] == 1
