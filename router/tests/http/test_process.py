"""`python -m router` as a process: its start, its end, and its one-line report if it cannot start."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile

import httpx
import pytest

from router.tests.conftest import entry
from router.tests.engine import engine, first_then_wait
from router.tests.ports import free_port

pytestmark = pytest.mark.slow


class Process:
    def __init__(self, redis_url, *arguments):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        argv = [sys.executable, "-m", "router", "--redis", redis_url, "--port", str(self.port), *arguments]
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 - a pipe that nobody reads would stop the router when full
        self.process = subprocess.Popen(argv, stderr=self.log)

    async def ready(self, client):
        while True:
            try:
                health = (await client.get(self.url + "/healthz")).json()
            except httpx.TransportError:
                health = {}
            if health.get("pools", {}).get("demo", {}).get("ready"):
                return
            await asyncio.sleep(0.05)

    async def ended(self):
        return await asyncio.to_thread(self.process.wait, 20)

    def logged(self):
        self.log.seek(0)
        return self.log.read().decode()


@pytest.fixture
async def client():
    async with httpx.AsyncClient(timeout=20) as made:
        yield made


@pytest.fixture
def start(redis_url):
    started = []

    def begin(*arguments):
        started.append(Process(redis_url, *arguments))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.wait()
        each.log.close()


BODY = {"model": "llama", "prompt": "x", "stream": True}


async def test_a_running_stream_is_finished_after_the_signal_and_the_exit_status_is_zero(start, published, client):
    async with engine(first_then_wait) as made:
        published.policy()
        published.fleet(entry("demo-0", made.url))
        router = start()
        await router.ready(client)
        async with client.stream("POST", router.url + "/v1/completions", json=BODY) as running:
            chunks = running.aiter_raw()
            await anext(chunks)
            router.process.send_signal(signal.SIGTERM)
            while True:  # until it accepts no new connections
                try:
                    async with httpx.AsyncClient() as other:
                        await other.get(router.url + "/healthz")
                except httpx.TransportError:
                    break
                await asyncio.sleep(0.02)
            made.release.set()
            rest = b"".join([chunk async for chunk in chunks])
        assert rest.endswith(b"data: [DONE]\n\n")
        assert await router.ended() == 0


async def test_a_stream_that_outlasts_the_grace_period_ends_with_an_error_event(start, published, client):
    async with engine(first_then_wait) as made:
        published.policy()
        published.fleet(entry("demo-0", made.url))
        router = start("--grace", "1")
        await router.ready(client)
        async with client.stream("POST", router.url + "/v1/completions", json=BODY) as running:
            chunks = running.aiter_raw()
            await anext(chunks)
            router.process.send_signal(signal.SIGTERM)
            rest = b"".join([chunk async for chunk in chunks])
        assert b'"code":"shutting_down"' in rest
        assert await router.ended() == 0


async def test_a_second_signal_ends_the_process_at_once(start, published, client):
    async with engine(first_then_wait) as made:
        published.policy()
        published.fleet(entry("demo-0", made.url))
        router = start("--grace", "60")
        await router.ready(client)
        async with client.stream("POST", router.url + "/v1/completions", json=BODY) as running:
            chunks = running.aiter_raw()  # keep a reference: an unreferenced iterator closes the connection
            await anext(chunks)
            router.process.send_signal(signal.SIGTERM)
            await asyncio.sleep(0.5)
            router.process.send_signal(signal.SIGTERM)
            assert await router.ended() == 128 + signal.SIGTERM


def test_a_port_in_use_is_reported_in_one_line(redis_url):
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        argv = [sys.executable, "-m", "router", "--redis", redis_url, "--port", str(port)]
        ended = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert ended.stderr == f"router: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("url", ["nonsense", "http://x"])
def test_a_wrong_redis_url_is_reported_in_one_line(url):
    argv = [sys.executable, "-m", "router", "--redis", url, "--port", "0"]
    ended = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"router: --redis {url}: ")
    assert ended.stderr.count("\n") == 1


def test_the_router_imports_neither_django_nor_celery():
    code = "import sys, json, router.process; print(json.dumps([m for m in sys.modules if m in ('django', 'celery')]))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, env=os.environ)
    assert json.loads(ended.stdout) == []
