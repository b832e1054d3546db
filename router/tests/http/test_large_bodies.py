"""Bodies that are small to send but expensive to process are refused early and do not slow other requests."""

import asyncio
import gzip
import json
import threading

import pytest

from router.http.body import ANY_RATIO, MAX_RATIO
from router.serving.prompt.prepare import AT_ONCE
from router.tests.conftest import entry, key_entry
from router.tests.http.test_own_errors import code_of
from router.tests.http.test_request_limits import HEAD, code, connect  # noqa: F401 - a fixture
from router.tests.test_keys import ALICE, bearer, keyed
from router.tokenize import bounds, prompt

CHAT = "/v1/chat/completions"
UNSENT = b"content-length: 1000\r\n"


def arrays(count):
    return b'{"model":"llama","messages":[' + b"[]," * count + b"[]]}"


# The router checks API keys before it reads a body


@pytest.mark.parametrize(
    ("required", "headers"),
    [
        (("*",), b""),
        (("demo",), b""),
        (("demo",), b"x-weir-pool: demo\r\n"),
        ((), b"authorization: Bearer sk-weir-wrong\r\n"),
    ],
)
async def test_a_request_without_a_valid_key_is_refused_before_its_body_is_read(world, connect, required, headers):  # noqa: F811
    w = await keyed(world, key_entry(ALICE), required=required)
    client = await connect(w)
    client.send(HEAD + headers + UNSENT + b"\r\n")
    status, _, body = await client.answer()
    assert (status, code(body)) == (401, "invalid_api_key" if not required else "missing_api_key")


async def test_a_body_without_a_key_is_read_if_it_could_name_a_pool_that_requires_none(world, connect):  # noqa: F811
    w = await keyed(world, key_entry(ALICE), required=("demo",))
    w.published.policy("open")
    w.published.fleet(entry("open-0", w.engines[0].url), pool="open", model="other")
    await w.until(lambda: w.router.pools.get("open") and w.router.pools.get("open").ready)
    assert (await w.ask(model="other")).status_code == 200
    assert code_of(await w.ask()) == "missing_api_key"
    client = await connect(w)
    client.send(HEAD + b"x-weir-pool: demo\r\n" + UNSENT + b"\r\n")
    assert (await client.answer())[0] == 401


async def test_the_pool_of_an_experiment_accepts_large_bodies_too(world):
    w = await keyed(world, key_entry(ALICE))
    w.published.policy("exp-1")
    w.published.fleet(entry("exp-1-0", w.engines[0].url), pool="exp-1")
    await w.until(lambda: w.router.pools.get("exp-1") and w.router.pools.get("exp-1").ready)
    assert (await w.ask(headers={"x-weir-pool": "exp-1"}, prompt="x" * 200_000)).status_code == 200


async def test_a_large_body_with_a_valid_key_is_served(world):
    w = await keyed(world, key_entry(ALICE))
    assert (await w.ask(headers=bearer(ALICE), prompt="x" * 200_000)).status_code == 200


# Compressed bodies


@pytest.mark.parametrize("size", [ANY_RATIO + 1000, 8 * ANY_RATIO])
async def test_a_compressed_body_that_becomes_too_large_is_refused(world, size):
    w = await world(None)
    packed = gzip.compress(b" " * size)
    response = await w.client.post(CHAT, content=packed, headers={"content-encoding": "gzip"})
    assert (response.status_code, code_of(response)) == (413, "body_too_large")
    assert f"more than {MAX_RATIO} times its size" in response.json()["error"]["message"]


async def test_a_highly_compressed_but_small_body_is_served(world):
    w = await world(None)
    plain = json.dumps({"model": "llama", "messages": [{"role": "user", "content": "x" * (ANY_RATIO - 100)}]}).encode()
    response = await w.client.post(CHAT, content=gzip.compress(plain), headers={"content-encoding": "gzip"})
    assert response.status_code == 200
    assert w.engines[0].received[0].body == plain


async def test_bytes_after_a_compressed_body_are_refused(world):
    w = await world(None)
    packed = gzip.compress(b'{"model":"llama","prompt":"x"}') + b"more"
    response = await w.client.post("/v1/completions", content=packed, headers={"content-encoding": "gzip"})
    assert (response.status_code, code_of(response)) == (400, "invalid_encoding")


# JSON


@pytest.mark.parametrize(
    "body",
    [
        arrays(bounds.MAX_CONTAINERS),
        b'{"prompt":[' + b"1," * (bounds.MAX_VALUES + 1) + b"1]}",
        b'{"prompt":"[[[","x":' + b"[" * (2 * bounds.MAX_CONTAINERS),
    ],
)
async def test_a_body_with_too_many_values_is_refused(world, body):
    w = await world(None)
    response = await w.client.post(CHAT, content=body)
    assert (response.status_code, code_of(response)) == (400, "json_too_complex")
    assert not w.engines[0].received


async def test_brackets_inside_strings_do_not_count_as_structure(world):
    w = await world(None)
    assert (await w.ask(prompt='[{"a":1},' * 200_000)).status_code == 200


def nested(levels):
    return b"[" * levels + b"]" * levels


DEEP = {
    CHAT: (b'{"messages":%b}', b'{"tools":%b}', b'{"messages":[{"role":"user","content":{"a":%b}}]}'),
    "/v1/completions": (b'{"prompt":%b}', b'{"prompt":[1,%b]}', b'{"stream":true,"stream_options":{},"x":%b}'),
    "/v1/responses": (b'{"input":%b}',),
    "/v1/messages": (b'{"system":[%b],"messages":[]}',),
    "/rerank": (b'{"query":"x","documents":%b}',),
}


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in DEEP.items() for body in bodies])
async def test_a_body_that_is_nested_too_deeply_is_refused(world, path, body):
    w = await world(None)
    for levels in (300, 600, 1000):
        response = await w.client.post(path, content=body % nested(levels))
        assert (response.status_code, response.json()["error"]["code"]) == (400, "json_too_complex"), levels
    assert (await w.client.post(path, content=body % nested(195))).status_code == 200
    assert (await w.client.post(path, content=body % nested(1030))).json()["error"]["code"] == "invalid_json"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"session_id":%b}', "parameter_not_allowed"),
        (b'{"priority":%b}', "invalid_priority"),
        (b'{"messages":[{"content":[{"type":"text","text":"a","uuid":%b}]}]}', "invalid_json"),
    ],
)
async def test_an_array_where_a_string_belongs_is_refused_at_any_depth(world, body, code):
    w = await world(None)
    for levels in (1, 1010):
        response = await w.client.post(CHAT, content=body % nested(levels))
        assert (response.status_code, code_of(response)) == (400, code)


async def test_a_number_too_large_for_a_double_is_not_json(world):
    w = await world(None)
    response = await w.client.post(CHAT, content=b'{"max_tokens":%b}' % (b"1" * 400))
    assert (response.status_code, code_of(response)) == (400, "invalid_json")


@pytest.mark.parametrize(
    "asked",
    [
        {"prompt": "x" * (AT_ONCE + 1)},
        {"prompt": [10] * (bounds.SMALL // 3)},
        {"prompt": "x" * bounds.SMALL, "tools": [{"a": [{}]}] * prompt.MANY},
    ],
    ids=["long", "ids", "nested"],
)
async def test_other_clients_are_served_while_a_large_body_is_read(world, monkeypatch, asked):
    w = await world(None)
    may, read = threading.Event(), prompt.read

    def slowly(body, *of):
        assert len(body) <= bounds.SMALL or may.wait(30)
        return read(body, *of)

    monkeypatch.setattr(prompt, "read", slowly)
    large = asyncio.ensure_future(w.client.post("/v1/completions", json={"model": "llama", **asked}))
    await asyncio.sleep(0.05)
    assert (await w.client.get("/healthz")).status_code == 200
    assert (await w.ask()).status_code == 200
    assert not large.done()
    may.set()
    assert (await large).status_code == 200


@pytest.mark.parametrize(
    ("document", "many"),
    [
        ({"messages": [{"role": "user", "content": "x" * 400_000}] * 100}, False),
        ({"messages": [1] * (prompt.MANY + 1)}, True),
        ({"messages": [{"role": "user", "content": [{"text": "x"}] * prompt.MANY}]}, True),
        ({"input": ["x"] * (prompt.MANY + 1)}, True),
        ({"query": "x", "documents": ["x"] * (prompt.MANY + 1)}, True),
    ],
)
def test_markup_that_is_rendered_in_pieces_counts_as_a_whole(document, many):
    assert prompt.has_many(document) is many


@pytest.mark.parametrize(
    ("body", "many"),
    [
        (b'{"messages":[%b1]}' % (b"[],{}," * (prompt.MANY // 2)), True),
        (b'{"tools":[{"a":%b1%b}]}' % (b"[" * prompt.MANY, b"]" * prompt.MANY), True),
        (b'{"messages":[{"content":"%b"}]}' % (b"some text, " * 40_000), False),
        (b'{"messages":[%b1]}' % (b'{"role":"user"},' * (prompt.MANY - 2)), False),
    ],
    ids=["flat", "deep", "text", "as many as are read at once"],
)
def test_brackets_are_counted_before_a_body_is_parsed(body, many):
    assert bounds.has_many(body, prompt.MANY) is many
