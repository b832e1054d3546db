"""An adopted engine behind TLS: its page names the problem with a certificate until there is none."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet import services
from fleet.discovery.answer import judged
from fleet.discovery.engine_file import parse
from fleet.kinds import KINDS
from fleet.kinds.external import ExternalSpec
from fleet.kinds.listed import ListedEngine
from fleet.models import State
from fleet.spec.allow_lists import AllowLists, refusals
from fleet.spec.fleet_spec import InvalidFleet, parse_fleet
from fleet.tests.test_engine_keys import document, reason_of
from fleet.tests.world import World
from router.contract.net import whereabouts
from router.contract.net.pinned_http import EngineTransport
from router.tests.certificates import Authority

MODELS = {"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]}


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps(MODELS).encode() if self.path == "/v1/models" else b"vllm:num_requests_running 0\n"
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *words: object) -> None:
        pass


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)
    return Authority(tmp_path, "own")


@pytest.fixture
def url(authority: Authority) -> Iterator[str]:
    """Return the URL of an engine whose certificate is for another name."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Pages)
    server.socket = (
        authority.issue("engines.llm")
        .server()
        .wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    )
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def apply(url: str, **tls: str) -> None:
    services.apply_fleet(document("external", urls=[url], **({"tls": tls} if tls else {})), "ada")


def test_an_adopted_engine_serves_once_its_certificate_is_trusted(world: World, url: str, authority: Authority) -> None:
    apply(url)
    world.until(reason_of(world, "no authority that is trusted here has signed it (tls: authorities)"))
    apply(url, authorities=f"file:{authority.path}")
    world.until(reason_of(world, "it is not for 127.0.0.1; set tls: name to the name that it is for"))
    assert world.one().state == State.LOADING
    apply(url, authorities=f"file:{authority.path}", name="engines.llm")
    world.until_ready(1)
    published = world.published()["p-0"]
    assert published["tls"] == {"authorities": f"file:{authority.path}", "name": "engines.llm"}
    authority.path.unlink()
    world.until(world.is_in(State.UNREACHABLE))
    assert "its TLS authority is missing" in world.one().reason


async def test_a_client_of_the_engine_sends_no_key_to_an_impostor(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "secret")
    async with httpx.AsyncClient(transport=EngineTransport(url, "env:MY_API_KEY"), timeout=5) as client:
        with pytest.raises(httpx.ConnectError, match="no authority that is trusted here has signed it"):
            await client.get(f"{url}/v1/models")


@pytest.mark.parametrize(
    ("options", "where", "why"),
    [
        ({"urls": ["http://a:1"], "tls": {"authorities": "system"}}, "urls", "must begin with https://"),
        (
            {"urls": ["https://a:1"], "tls": {"key": "-----BEGIN PRIVATE KEY-----"}},
            "tls",
            "env:NAME, whose name has TLS",
        ),
        ({"urls": ["https://a:1"], "tls": {"verify": "no"}}, "tls", "authorities (system, or"),
    ],
)
def test_options_that_would_weaken_tls_are_refused(options: dict[str, Any], where: str, why: str) -> None:
    with pytest.raises(InvalidFleet) as refused:
        parse_fleet(document("external", **options))
    (problem,) = refused.value.problems
    assert problem.path == f"spec.pools[0].engine.{where}"
    assert why in problem.text
    assert "PRIVATE" not in f"{problem} {problem.text} {problem.value}"


def test_engines_listed_by_a_source_are_called_over_tls_only() -> None:
    secure = {"authorities": "system"}
    pods = judged(ExternalSpec(dns="engines:8000", tls=secure), "p", [ListedEngine("k", "http://10.0.0.7:8000")])
    assert [engine.url for engine in pods.engines] == ["https://10.0.0.7:8000"]
    listed = parse('[{"targets": ["a:1", "http://b:1", "https://c:1"]}]', "https://")
    answer = judged(ExternalSpec(file="f", tls=secure), "p", listed)
    assert [engine.url for engine in answer.engines] == ["https://a:1", "https://c:1"]
    assert answer.refused == ("http://b:1: must begin with https://, as the pool has tls",)


def test_the_lists_of_administrators_apply_to_certificates() -> None:
    given = {"urls": ["https://a:1"], "tls": {"authorities": "file:/etc/ca.pem", "certificate": "env:MY_TLS"}}
    lists = AllowLists(variables=("QWEN_*",), folders=("/etc/weir",))
    paths = [problem.path for problem in refusals(lists, KINDS["external"], "m", given, "p")]
    assert paths == ["p.engine.tls.authorities", "p.engine.tls.certificate"]
    assert refusals(AllowLists(), KINDS["external"], "m", given, "p") == []
