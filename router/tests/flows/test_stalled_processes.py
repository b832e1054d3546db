"""Detection, between processes, of an engine of any role that answers the routers' own requests but holds its
clients'."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from router.contract.redis import redis_keys
from router.picker.server import SERVICE
from router.tests.conftest import Published, entry
from router.tests.engine import ANSWER, Behaviour, Engine, Received, Writer, engine, hang, reply
from router.tests.picker import asking
from router.tests.ports import free_ports
from router.tests.values import stored

pytestmark = [pytest.mark.slow, pytest.mark.timeout(60)]

ROLES = {
    "prefill": ("prefill", "prefill", "decode"),
    "decode": ("prefill", "decode", "decode"),
    "both": ("both", "both"),
}
PREFILLED = ANSWER | {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "e"}}
POLICY: dict[str, Any] = {
    "flow__heavy": "offload",
    "failure__stall_after_s": 5.0,
    "failure__first_byte_timeout_s": 40.0,
}
SPENT = 2  # tokens of a probe by the router


class Fleet:
    """Engines of the given roles with their samples; the first of a role may hold its clients' requests."""

    def __init__(self, engines: list[Engine], published: Published, roles: tuple[str, ...], role: str) -> None:
        self.engines, self._published = engines, published
        self.hanging = roles.index(role)
        self.name = f"demo-{self.hanging}"
        self.is_hung = False
        self.tokens = [7.0] * len(engines)
        self.clients = [0] * len(engines)
        for number, made in enumerate(engines):
            made.behaviour = self._behaviour(number)
        more = {} if role == "both" else {"connector": "nixl"}
        published.policy(**POLICY)
        published.fleet(
            *(
                entry(f"demo-{number}", made.url, kind="vllm", role=roles[number], **more)
                for number, made in enumerate(engines)
            )
        )

    def _behaviour(self, number: int) -> Behaviour:
        async def behave(made: Engine, request: Received, writer: Writer) -> None:
            moves_kv = bool(request.document.get("kv_transfer_params"))
            is_clients = moves_kv or request.document.get("max_tokens") != 1
            self.clients[number] += is_clients
            if is_clients and self.is_hung and number == self.hanging:
                await hang(made, request, writer)
                return
            self.tokens[number] += 100 if is_clients else SPENT
            of_prefill = moves_kv and request.document["kv_transfer_params"].get("do_remote_decode")
            await reply(PREFILLED if of_prefill else ANSWER)(made, request, writer)

        return behave

    async def samples(self) -> None:
        while True:
            for number, tokens in enumerate(self.tokens):
                name = f"demo-{number}"
                value = {"id": name, "epoch": 1, "at": time.time(), "pool": "demo", "waiting": 0.0}
                value["running"] = float(self.is_hung and number == self.hanging)
                counted = {"prompt_tokens_total": tokens, "generation_tokens_total": tokens, "kv_usage": 0.1}
                self._published.client.set(redis_keys.instance_key(name), stored(value | counted))
            await asyncio.sleep(0.5)


@pytest.fixture
async def fleet(published: Published) -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:
        written: list[asyncio.Task[None]] = []

        async def make(role: str) -> Fleet:
            engines = [await stack.enter_async_context(engine(reply())) for _ in ROLES[role]]
            made = Fleet(engines, published, ROLES[role], role)
            written.append(asyncio.create_task(made.samples()))
            return made

        yield make
        for task in written:
            task.cancel()


@contextmanager
def process(module: str, log: Path, *arguments: str) -> Any:
    with log.open("wb") as out:
        running = subprocess.Popen([sys.executable, "-m", module, *arguments], stderr=out, env={**os.environ})
        try:
            yield running
        finally:
            running.kill()
            running.wait()


async def health(url: str) -> dict[str, Any]:
    async with httpx.AsyncClient(timeout=5) as client:
        try:
            found: dict[str, Any] = (await client.get(f"{url}/healthz")).json()
        except httpx.TransportError:
            return {}
        return found


async def until(true: Callable[[], Any], what: str) -> Any:
    for _ in range(600):
        if found := await true():
            return found
        await asyncio.sleep(0.05)
    raise AssertionError(f"never came true: {what}")


async def named(url: str, fleet: Fleet) -> str:
    return next((why for why in (await health(url)).get("degraded", ()) if f"{fleet.name} is stalled" in why), "")


async def is_ready(url: str, count: int) -> bool:
    return bool((await health(url)).get("pools", {}).get("demo", {}).get("ready") == count)


async def done(tasks: "list[asyncio.Task[Any]]", count: int) -> bool:
    return sum(task.done() for task in tasks) >= count


def body(number: int) -> dict[str, Any]:
    return {"model": "llama", "prompt": f"{number} " + "hello " * 4_000}


@pytest.mark.parametrize("role", ROLES)
async def test_a_router_avoids_an_engine_that_answers_only_the_routers_own_requests(
    fleet: Callable[..., Any], redis_url: str, tmp_path: Path, role: str
) -> None:
    made, (port,) = await fleet(role), free_ports(1)
    url = f"http://127.0.0.1:{port}"
    with process("router", tmp_path / "log", "--redis", redis_url, "--port", str(port)):
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            await until(lambda: is_ready(url, len(made.engines)), "ready")
            for number in range(2 * len(made.engines)):
                assert (await client.post("/v1/completions", json=body(number))).status_code == 200
            made.is_hung = True
            asked = [asyncio.create_task(client.post("/v1/completions", json=body(100 + at))) for at in range(4)]
            why = await until(lambda: named(url, made), "stalled")
            assert ("tokens of the router's own requests alone" in why) == (role != "decode"), why
            before = made.clients[made.hanging]
            further = [asyncio.create_task(client.post("/v1/completions", json=body(200 + at))) for at in range(6)]
            await until(lambda: done(further, 5), "the others serve")
            assert made.clients[made.hanging] <= before + 1, "one request at a time tries it"
            made.engines[made.hanging].release.set()
            assert {(await task).status_code for task in (*asked, *further)} == {200}


async def test_a_picker_avoids_an_engine_that_answers_only_the_routers_own_requests(
    fleet: Callable[..., Any], redis_url: str, tmp_path: Path
) -> None:
    made, (port, pages) = await fleet("both"), free_ports(2)
    url = f"http://127.0.0.1:{pages}"
    ports = ("--port", str(port), "--http-port", str(pages))
    with process("router.picker", tmp_path / "log", "--redis", redis_url, *ports):
        await until(lambda: is_ready(url, 2), "ready")
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ask = channel.stream_stream(f"/{SERVICE}/Process")

            async def pick(number: int) -> tuple[str, Any]:
                call = ask()
                head = {":method": "POST", ":path": "/v1/completions", "x-request-id": f"r-{number}"}
                await call.write(asking.headers(head) + asking.modes())
                await call.write(asking.body(httpx.Request("POST", url, json=body(number)).content))
                return asking.read(await call.read()).endpoints.split(",")[0], call

            for number in range(4):
                (await pick(number))[1].cancel()
            made.is_hung = True
            address = made.engines[made.hanging].url.removeprefix("http://")
            held = [await pick(100 + number) for number in range(2)]
            assert address in {first for first, _ in held}
            why = await until(lambda: named(url, made), "stalled")
            assert "tokens of the router's own requests alone" in why
            tried = [(await pick(200 + number))[0] for number in range(4)]
            assert tried.count(address) <= 1, "one request at a time tries it"
            for _, call in held:
                call.cancel()
