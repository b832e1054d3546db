"""Every path and method of vLLM's and SGLang's servers, requested from the router and from the endpoint picker."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest

from router.contract import api_paths
from router.contract.api_paths import API_PATHS, BehindGateway, Handling, find
from router.contract.redis.api_keys import MARK
from router.serving.pages import MODELS, ONE_MODEL
from router.tests.conftest import World, key_entry
from router.tests.engine import reply
from router.tests.engines.servers import ROUTES, SERVERS, table
from router.tests.picker.asking import body, headers, modes
from router.tests.picker.test_picking import Gateway
from router.tokenize.prompt import RENDERERS

KEY = f"{MARK.decode()}of-x"
BODY = orjson.dumps({"model": "llama", "prompt": "hello", "messages": [], "input": "hello"})


@dataclass(frozen=True)
class Answer:
    status: int  # 0 if the request was sent to an engine
    code: str


@pytest.fixture
async def closed(world: Any) -> World:
    """A router whose only key may use only model x, which no pool serves."""
    made: World = await world(reply({}))
    made.published.keys(key_entry(KEY, models=["x"]), required=("*",))
    await made.until(lambda: made.router.pools.auth.ring is not None and made.router.pools.auth.ring.by_hash)
    return made


async def by_router(world: World, method: str, path: str) -> Answer:
    sent = len(world.engines[0].received)
    url = str(world.client.base_url).rstrip("/") + path  # a path of two slashes alone would be a host
    answer = await world.client.request(method, url, content=BODY, headers={"authorization": f"Bearer {KEY}"})
    assert len(world.engines[0].received) == sent, f"{method} {path} reached the engine"
    return Answer(answer.status_code, _code(answer.content))


async def by_picker(gateway: Gateway, method: str, path: str) -> Answer:
    head = {":method": method, ":path": path, "authorization": f"Bearer {KEY}"}
    asking, work = gateway.begin(headers(head) + modes(), body(BODY))
    told = await asking.answer()
    asking.say(None)
    await work
    return Answer(told.status, _code(told.body or b"")) if not told.endpoints else Answer(0, "")


def _code(text: bytes) -> str:
    try:
        return str(orjson.loads(text)["error"]["code"])
    except (orjson.JSONDecodeError, LookupError, TypeError):
        return ""


def requests() -> Iterator[tuple[str, str]]:
    """Return (method, path): as engines accept them, with methods that they do not accept, and with extra slashes."""
    for path, method in ROUTES:
        plain = path.replace("{", "").replace("}", "")
        verb = "GET" if method == "WEBSOCKET" else method
        yield verb, plain
        yield "PATCH", plain
        if plain != "/":
            yield from ((verb, written) for written in (f"/{plain}", f"{plain}/", plain.replace("/", "//")))


def test_the_table_has_every_path_of_both_servers() -> None:
    missing = [path for server in SERVERS.values() for path in server["paths"] if find(path) is None]
    assert missing == []


def test_a_path_is_served_with_the_methods_that_engines_have_or_is_refused_with_a_reason() -> None:
    for path, method in ROUTES:
        row = find(path)
        assert row is not None
        assert row.why if row.handling is Handling.REFUSED else method in row.methods, (method, path)


def test_paths_are_routed_if_their_prompts_can_be_read() -> None:
    assert set(RENDERERS) == {path for _, path in api_paths.ROUTED}


def test_a_path_is_in_the_table_once() -> None:
    paths = [row.path for row in API_PATHS]
    assert len(set(paths)) == len(paths)


def test_the_documents_have_every_path_and_the_versions() -> None:
    docs = Path(__file__).parents[3] / "docs"
    assert (docs / "api-paths.csv").read_text() == table()
    text = (docs / "router.md").read_text()
    assert all(
        f"{name}{server['version']}" in text
        for name, server in zip(("vLLM ", "SGLang "), SERVERS.values(), strict=True)
    )


@pytest.mark.attacks
async def test_no_path_of_an_engine_is_open_to_a_key_that_may_not_use_its_model(closed: World) -> None:
    gateway = Gateway(closed)
    for method, path in requests():
        answer = await by_router(closed, method, path)
        assert answer.status in (200, 307, 403, 404, 405), (method, path, answer)
        picked = await by_picker(gateway, method, path)
        row = find(path)
        if row is not None and row.behind_gateway is BehindGateway.ANY and method in row.methods:
            assert picked == Answer(0, "")  # the health of an engine is no secret
        elif row is not None and row.behind_gateway is BehindGateway.REFUSED and method in row.methods:
            assert picked == Answer(404, "not_served")
        else:
            assert picked == answer, (method, path)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("POST", "/sleep", 404, "not_served"),
        ("POST", "/invocations", 404, "not_served"),
        ("POST", "//v1/chat/completions", 404, "not_found"),
        ("POST", "/v1/chat/completions/", 307, "moved"),
        ("PUT", "/v1/chat/completions", 405, "method_not_allowed"),
        ("PUT", "/rerank", 405, "method_not_allowed"),
        ("PUT", "/v1/rerank", 403, "model_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/chat/completions", 403, "model_not_allowed"),
        ("GET", "/v1/files", 404, "not_served"),
        ("GET", "/nowhere/", 404, "not_found"),
    ],
)
async def test_router_and_picker_refuse_the_same_requests(
    closed: World, method: str, path: str, status: int, code: str
) -> None:
    answer = await by_router(closed, method, path)
    assert answer == Answer(status, code)
    assert await by_picker(Gateway(closed), method, path) == answer


async def test_a_slash_at_the_end_is_redirected_with_the_query(closed: World) -> None:
    answer = await closed.client.post("/v1/chat/completions/?a=%C3%A9&b=1")
    assert (answer.status_code, answer.headers["location"]) == (307, "../completions?a=%C3%A9&b=1")


async def test_the_table_lists_exactly_the_existing_pages(closed: World) -> None:
    own = {row.path for row in API_PATHS if row.handling is Handling.OWN}
    pages = set(closed.router.pages.paths) | {MODELS, f"{ONE_MODEL}{{model...}}"}
    assert own - {"/receipts", "/receipts/{id}"} == pages
    for path in own - {"/receipts", "/receipts/{id}", f"{ONE_MODEL}{{model...}}"}:
        answer = await closed.client.head(path, headers={"authorization": f"Bearer {KEY}"})
        assert (answer.status_code, answer.content) == (200, b"")


async def test_the_version_is_weirs(closed: World) -> None:
    assert set((await closed.client.get("/version")).json()) == {"version"}
