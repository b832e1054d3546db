"""If an engine is killed before its first byte, another answers; after it, the client gets an error."""

import asyncio
import os
import signal
import sys
from contextlib import asynccontextmanager

import pytest

from router.tests.conftest import entry

SCRIPT = """
import asyncio, sys
from router.tests import engine
async def main():
    async with engine.engine(getattr(engine, sys.argv[1])) as made:
        print(made.port, flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@asynccontextmanager
async def killable(behaviour):
    """Start an engine in a separate process; return (URL, kill)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SCRIPT, behaviour, stdout=asyncio.subprocess.PIPE
    )
    port = int(await process.stdout.readline())

    async def kill():
        os.kill(process.pid, signal.SIGKILL)
        await process.wait()

    try:
        yield f"http://127.0.0.1:{port}", kill
    finally:
        if process.returncode is None:
            await kill()


async def with_killable(world, url):
    """Build a world in which the engine at `url` is chosen first and a working one is the other."""
    w = await world(None)
    w.published.fleet(entry("demo-0", url), entry("demo-1", w.engines[0].url))
    await w.until(lambda: len(w.router.pools.get("demo").endpoints) == 2)
    return w


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_killed_before_its_first_byte_is_replaced_by_another_and_serves_nothing_twice(world, stream):
    async with killable("hang") as (url, kill):
        w = await with_killable(world, url)
        endpoint = w.router.pools.get("demo").endpoints["demo-0"]
        asked = [asyncio.ensure_future(w.ask(stream=stream)) for _ in range(4)]
        await w.until(lambda: endpoint.requests == 2)
        await kill()
        answers = await asyncio.gather(*asked)
        assert [answer.status_code for answer in answers] == [200] * 4
        served = [request.headers["x-request-id"] for request in w.engines[0].received]
        assert len(served) == len(set(served)) == 4
        await w.until(lambda: endpoint.requests == 0)


async def test_an_engine_killed_in_the_middle_of_a_stream_ends_it_with_an_error_event_without_a_retry(world):
    async with killable("first_then_wait") as (url, kill):
        w = await with_killable(world, url)
        body = {"model": "llama", "prompt": "x", "stream": True}
        async with w.client.stream("POST", "/v1/completions", json=body) as answer:
            assert answer.headers["x-weir-instance"] == "demo-0"
            chunks = answer.aiter_raw()
            first = await anext(chunks)
            await kill()
            rest = b"".join([chunk async for chunk in chunks])
        assert b"w0" in first
        assert b'"code":"upstream_failed"' in rest
        assert b"[DONE]" not in rest
        assert not w.engines[0].received


async def test_a_killed_engine_is_known_by_its_breaker_and_its_prefixes_are_forgotten(world):
    async with killable("reply") as (url, kill):
        w = await with_killable(world, url)
        w.published.policy(failure__breaker_failures=1)
        await w.until(lambda: w.router.pools.get("demo").policy["failure.breaker_failures"] == 1)
        await kill()
        assert {(await w.ask()).headers["x-weir-instance"] for _ in range(6)} == {"demo-1"}
        pool = w.router.pools.get("demo")
        assert pool.endpoints["demo-0"].breaker.state == "open"
        assert pool.index.chunks("demo-0") == 0
