"""Several routers on one port: the kernel distributes the connections, and stopping a router loses none of its
requests."""

import asyncio
import signal

import httpx
import pytest

from router.tests.conftest import entry
from router.tests.engine import engine
from router.tests.http.test_process import client, start  # noqa: F401 - fixtures
from router.tests.ports import free_port

pytestmark = pytest.mark.slow

BODY = {"model": "llama", "prompt": "x"}
CLIENTS = 6


class Load:
    """Clients that send requests without pause, half of them over a new connection each time."""

    def __init__(self, url):
        self.url = url
        self.answers = []
        self.wrong = []
        self.stopped = False

    async def run(self):
        async with httpx.AsyncClient(timeout=30) as kept:
            await asyncio.gather(*(self.ask(kept if number % 2 else None) for number in range(CLIENTS)))

    async def ask(self, kept):
        while not self.stopped:
            if kept is not None:
                await self.once(kept)
                continue
            async with httpx.AsyncClient(timeout=30) as fresh:
                await self.once(fresh)

    async def once(self, asking):
        for _ in range(3):
            try:
                answer = await asking.post(self.url + "/v1/completions", json=BODY)
            except httpx.TransportError:  # the connection was closed before use; the client retries, as any client does
                continue
            (self.answers if answer.status_code == 200 else self.wrong).append(answer.text)
            return
        self.wrong.append("no answer")

    async def more(self, count):
        wanted = len(self.answers) + count
        while len(self.answers) < wanted:
            assert not self.wrong, self.wrong
            await asyncio.sleep(0.01)


async def test_a_router_that_is_stopped_under_load_loses_no_request(start, published, client):  # noqa: F811
    async with engine() as made:
        published.policy()
        published.fleet(entry("demo-0", made.url))
        shared = str(free_port())
        one, two = (start("--shared-port", shared, "--id", name) for name in ("one", "two"))
        for router in (one, two):
            await router.ready(client)
        load = Load(f"http://127.0.0.1:{shared}")
        running = asyncio.ensure_future(load.run())
        await load.more(100)
        one.process.send_signal(signal.SIGTERM)
        assert await one.ended() == 0
        await load.more(100)
        load.stopped = True
        await running
        assert load.wrong == []
        assert two.process.poll() is None
