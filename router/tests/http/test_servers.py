"""`router.app:app` behaves alike under uvicorn, hypercorn and the server of `python -m router`."""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile

import httpx
import pytest

from router.tests.engine import engine, events
from router.tests.plain_engine import plain
from router.tests.ports import free_port

pytestmark = pytest.mark.slow

ASK = {"model": "llama", "prompt": "x"}
SERVERS = {
    "own": ["router", "--port", "{port}"],
    "uvicorn": ["uvicorn", "router.app:app", "--port", "{port}"],
    "hypercorn": ["hypercorn", "router.app:app", "--bind", "127.0.0.1:{port}"],
}


class Server:
    """A router process, configured by its environment."""

    def __init__(self, name, **variables):
        self.url = f"http://127.0.0.1:{(port := free_port())}"
        own = {key: value for key, value in os.environ.items() if key != "REDIS_URL"}
        argv = [sys.executable, "-m", *(word.format(port=port) for word in SERVERS[name])]
        if name == "own":
            argv += ["--instances", variables["WEIR_ROUTER_INSTANCES"], "--model", variables["WEIR_ROUTER_MODEL"]]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would stop it when it is full
        self.process = subprocess.Popen(argv, env={**own, **variables}, stderr=self.log, start_new_session=True)

    def logged(self):
        return os.pread(self.log.fileno(), 1_000_000, 0).decode()

    async def ready(self, client):
        while True:
            assert self.process.poll() is None, self.logged()
            try:
                if (await client.get(self.url + "/healthz")).json()["pools"]["default"]["ready"]:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)

    async def end(self):
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, 20)


@pytest.fixture
def start():
    started = []

    def begin(name, **variables):
        started.append(Server(name, **variables))
        return started[-1]

    yield begin
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)
        each.process.wait()
        each.log.close()


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=20) as made:
        yield made


async def conversation(client, url):
    """Return the answers to a fixed list of requests, without the parts that differ from request to request."""
    answers = [
        await client.get(url + "/v1/models"),
        await client.get(url + "/v1/models/org%2Fnone"),
        await client.head(url + "/healthz"),
        await client.post(url + "/v1/completions", json=ASK),
        await client.post(url + "/v1/completions", json={**ASK, "stream": True}),
        await client.post(url + "/v1/completions", content=b"no JSON"),
        await client.get(url + "/v1/completions"),
        await client.get(url + "/nothing"),
    ]
    same = ("x-weir-instance", "x-weir-class", "x-weir-policy", "x-weir-flow", "content-type", "allow")
    return [
        (
            answer.status_code,
            {name: answer.headers[name] for name in same if name in answer.headers},
            re.sub(rb'"created":\d+', b"", answer.content.replace(answer.headers["x-request-id"].encode(), b"ID")),
        )
        for answer in answers
    ]


async def test_every_server_gives_the_same_answers(start, client):
    answers = {}
    async with engine(plain()) as made:
        for name in SERVERS:
            variables = {"WEIR_ROUTER_INSTANCES": f"{made.url};id=one", "WEIR_ROUTER_MODEL": "llama"}
            server = start(name, **variables)
            await server.ready(client)
            answers[name] = await conversation(client, server.url)
            await server.end()
    assert [status for status, _, _ in answers["own"]] == [200, 404, 200, 200, 200, 400, 405, 404]
    assert answers["own"][4][2] == b"".join(events(usage=False))
    assert answers["uvicorn"] == answers["own"]
    assert answers["hypercorn"] == answers["own"]


@pytest.mark.parametrize("name", ["uvicorn", "hypercorn"])
def test_a_server_names_a_wrong_setting_and_does_not_start(start, name):
    server = start(name, WEIR_ROUTER_INSTANCES="nonsense")
    server.process.wait(timeout=60)
    assert "WEIR_ROUTER_INSTANCES: url: not the URL of an instance; allowed: http" in server.logged()
