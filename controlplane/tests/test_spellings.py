"""No spelling of a path bypasses the table of paths: in the router, the standalone router, the picker and batches."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import unquote

import orjson
import pytest

from controlplane.traffic.batches import services
from router.app import Router
from router.contract.api_paths import BATCHED, ROUTED
from router.http.server import HttpServer, listen
from router.standalone.file_source import FileSource
from router.tests.conftest import World, key_entry, published, world  # noqa: F401  (fixtures)
from router.tests.engine import Engine
from router.tests.picker.asking import body, headers, modes
from router.tests.picker.test_picking import Gateway
from router.tests.plain_engine import plain

PATHS = (
    *("/v1/chat/completions", "/v1/embeddings", "/tokenize"),  # served
    *("/invocations", "/sleep", "/v1/load_lora_adapter"),  # other paths of the engines' servers
)
SPELLINGS: tuple[Callable[[str], str], ...] = (
    str,
    str.upper,
    lambda path: path[0] + path[1:].capitalize(),
    lambda path: path + "/",
    lambda path: path + "//",
    lambda path: "/" + path,
    lambda path: path.replace("/", "//"),
    lambda path: "/." + path,
    lambda path: "/x/.." + path,
    lambda path: path + "/.",
    lambda path: path + "/../" + path.rpartition("/")[2],
    lambda path: path + ".",
    lambda path: path + "%20",
    lambda path: path + "%00",
    lambda path: path + ";a=1",
    lambda path: path + "%3Fa=1",
    lambda path: f"/%{ord(path[1]):02x}{path[2:]}",
    lambda path: f"/%25{ord(path[1]):02x}{path[2:]}",
    lambda path: "/" + path[1:].replace("/", "%2F"),
    lambda path: "/" + path[1:].replace("/", "%5c"),
    lambda path: path.replace("e", "%C3%A9"),
    lambda path: path + "?a=1",
    lambda path: path + "?path=/v1/completions&path=/rerank",
    lambda path: "/health?" + path,
    lambda path: "/v1/nothing?/.." + path,
)
METHODS = ("GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "post")
ASKED = [("POST", spelt(path)) for path in PATHS for spelt in SPELLINGS] + [
    (method, path) for path in PATHS for method in METHODS
]
SERVED = {(way, target) for way, target in ASKED if (way, unquote(target.partition("?")[0])) in ROUTED}
PICKED = {(way, target) for way, target in SERVED if "%" not in target}  # the picker takes a gateway's path literally
DOCUMENT = orjson.dumps({"model": "llama", "messages": [], "input": "x", "query": "x", "documents": [], "prompt": "x"})
MAY, MAY_NOT = "sk-weir-may", "sk-weir-barred"


async def test_no_spelling_of_a_path_reaches_an_engine_except_through_the_table(world: Any) -> None:  # noqa: F811
    w: World = await world(plain())
    w.published.keys(key_entry(MAY), key_entry(MAY_NOT, models=["another"]), required=("demo",))
    auth = w.router.pools.auth
    await w.until(lambda: auth.ring is not None and len(auth.ring.by_hash) == 2, "the keys")
    port, gateway = w.client.base_url.port, Gateway(w)
    assert await walk(lambda *one: sent(port, w.engines[0], *one)) == SERVED
    assert await walk(lambda *one: picked(gateway, *one)) == PICKED
    async with alone(w.engines[0]) as its_port:
        assert await walk(lambda *one: sent(its_port, w.engines[0], *one)) == SERVED
    assert await walk(lambda way, to: sent(port, w.engines[0], way, to, MAY_NOT)) == set()
    assert await walk(lambda way, to: picked(gateway, way, to, MAY_NOT)) == set()


async def walk(ask: Callable[..., Awaitable[bool]]) -> set[tuple[str, str]]:
    return {one for one in ASKED if await ask(*one)}


async def sent(port: int | None, engine: Engine, method: str, target: str, key: str = MAY) -> bool:
    """Return whether the engine got the request."""
    engine.received.clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"{method} {target} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}connection: close\r\ncontent-length: {len(DOCUMENT)}\r\n\r\n".encode() + DOCUMENT)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert answer.startswith(b"HTTP/1.1 "), answer
    asked = [request for request in engine.received if request.headers.get("authorization", "") or request.body]
    assert bool(asked) == answer.startswith(b"HTTP/1.1 200") or target.startswith("/health?"), answer
    return bool(asked)


async def picked(gateway: Gateway, method: str, target: str, key: str = MAY) -> bool:
    """Return whether the gateway was given an instance, for every page except those that any instance may answer."""
    lines = {":method": method, ":path": target, "authorization": f"Bearer {key}"}
    asking, work = gateway.begin(headers(lines) + modes(), body(DOCUMENT))
    asking.say(None)
    await asyncio.wait_for(work, 20)
    return bool((await asking.answer()).endpoints)


@asynccontextmanager
async def alone(engine: Engine) -> AsyncIterator[int]:
    """The port of a router without Redis."""
    listener = listen("127.0.0.1", 0)
    source = FileSource(engine.url, None, "llama", "alone")
    serving = HttpServer(Router(source), grace_s=1)
    await serving.start([listener])
    try:
        pool = source.pools.get("default")
        for _ in range(1000):
            if pool is not None and any(one.takes_requests for one in pool.endpoints.values()):
                break
            await asyncio.sleep(0.01)
        yield listener.getsockname()[1]
    finally:
        await serving.stop()


def test_a_batch_accepts_only_the_paths_of_the_table_and_one_spelling_of_each() -> None:
    taken = set()
    for _, target in [*ASKED, *(("POST", path) for path in BATCHED)]:
        with pytest.raises(services.Refused) as refused:
            services.create_batch(None, {"completion_window": "24h", "endpoint": target, "metadata": 1})  # type: ignore[arg-type]
        if refused.value.param == "metadata":
            taken.add(target)
    assert taken == set(BATCHED)


@pytest.mark.parametrize("window", [[], {}, None, 24, "25h"])
def test_an_invalid_completion_window_of_a_batch_is_refused_by_name(window: object) -> None:
    with pytest.raises(services.Refused) as refused:
        services.create_batch(None, {"completion_window": window, "endpoint": BATCHED[0]})  # type: ignore[arg-type]
    assert refused.value.param == "completion_window"
