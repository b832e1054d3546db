"""An engine under a path, such as vLLM with --root-path behind a proxy: every caller uses the path."""

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest
from django.utils import timezone

from fleet.control import adapters, sleep
from fleet.kinds.external import ExternalSpec
from fleet.models import AdapterHome, Instance, Pool, State
from fleet.observe import identify
from fleet.observe.engine_pages import EnginePages
from fleet.tests.simengine.conftest import StartSim, start_sim
from router.tests.standalone.test_alone import Alone

BASE = "/team/llama"
__all__ = ["start_sim"]


class PathProxy(ThreadingHTTPServer):
    """A proxy that serves one path only."""

    def __init__(self, engine: httpx.Client) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.engine, self.outside = engine, list[str]()
        self.url = f"http://127.0.0.1:{self.server_port}{BASE}"


class Passing(BaseHTTPRequestHandler):
    server: PathProxy

    def do_GET(self) -> None:
        if not self.path.startswith(f"{BASE}/"):
            self.server.outside.append(self.path)
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        answer = self.server.engine.request(self.command, self.path.removeprefix(BASE), content=body)
        self.send_response(answer.status_code)
        self.send_header("content-type", answer.headers.get("content-type", ""))
        self.send_header("content-length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def proxy(start_sim: StartSim) -> Iterator[PathProxy]:
    with PathProxy(start_sim(max_loras=2).http) as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield made
        made.shutdown()


@pytest.mark.django_db
def test_pages_sleep_and_adapters_are_requested_below_the_engines_path(
    proxy: PathProxy, tmp_path: Path, live_redis: object
) -> None:
    pool = Pool.objects.create(name="chat", model="sim", kind="external", replicas=1, engine={"enable_lora": True})
    row = Instance.objects.create(pool=pool, name="chat-0", ordinal=0, url=proxy.url, state=State.READY, epoch=1)
    pages = EnginePages()
    found = asyncio.run(identify.identify(pages.prober, row.url, ExternalSpec()))
    assert found is not None
    assert (found.server.name, found.models, found.events) == ("vllm", ("sim",), proxy.url)
    AdapterHome.objects.create(instance=row, epoch=1, name="bot", source=str(tmp_path))
    assert adapters.adapt_instance("chat-0", 1)
    assert AdapterHome.objects.get().state == AdapterHome.State.LOADED, AdapterHome.objects.get().text
    Instance.objects.update(state=State.DRAINING, desired="asleep", ordered_at=timezone.now())
    assert sleep.sleep_instance("chat-0", 1)
    assert proxy.engine.get("/is_sleeping").json() == {"is_sleeping": True}
    assert sleep.wake_instance("chat-0", 1)  # this call also computes a token
    assert proxy.outside == []


@pytest.mark.slow
def test_a_router_process_below_a_path_serves_chats_from_an_engine_below_another(proxy: PathProxy) -> None:
    router = Alone("--instances", proxy.url, "--root-path", "/llm")
    chat = {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    with httpx.Client(base_url=f"{router.url}/llm", timeout=60) as client:
        try:
            for _ in range(1000):
                if (health := client.get("/healthz").json())["pools"]["default"]["ready"]:
                    break
                time.sleep(0.02)
            assert health["pools"]["default"]["ready"] == 1, health
            assert [one["id"] for one in client.get("/v1/models").json()["data"]] == ["sim"]
            for streamed in (False, True):
                answer = client.post("/v1/chat/completions", json=chat | {"stream": streamed})
                assert (answer.status_code, "data: [DONE]" in answer.text) == (200, streamed), answer.text
            assert client.get("/receipts").json()["receipts"][0]["outcome"] == "ok"
        finally:
            router.process.terminate()
            assert router.process.wait(30) == 0
            router.log.close()
    assert proxy.outside == []
