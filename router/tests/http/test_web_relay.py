"""The web process owns files and batches: routers relay calls about them and send a batch's lines under its key."""

import asyncio
import hashlib
from typing import Any

import pytest

from router.contract.redis.api_keys import MARK
from router.serving.web_relay import WebRelay
from router.tests.conftest import key_entry
from router.tests.engine import engine, hang_up, reply
from router.tests.test_keys import ALICE, bearer, keyed

LIST = {"object": "list", "data": []}
SECRET = MARK.decode() + "batch-secret"


async def test_calls_reach_the_web_process_and_its_answers_reach_the_client(world: Any) -> None:
    async with engine(hang_up, reply(LIST, 200, "x-web: 1"), reply(LIST), reply(LIST), reply(LIST)) as web:
        w = await keyed(world, key_entry(ALICE), required=())
        assert (await w.client.get("/v1/batches")).status_code == 404
        w.router.web = WebRelay(web.url)
        headers = bearer(ALICE)
        w.client.headers.update(headers)
        first = await w.client.post("/v1/batches/batch_1/cancel?x=1", content=b"{}", headers=headers)
        assert (first.json(), first.headers["x-web"]) == (LIST, "1")
        received = web.received[0]
        assert (received.method, received.target, received.body) == ("POST", "/v1/batches/batch_1/cancel?x=1", b"{}")
        assert received.headers["authorization"] == headers["authorization"]
        assert (await w.client.get("/v1/files")).json() == LIST
        assert (await w.client.get("/v1/filesystem")).status_code == 404
        assert (await w.client.delete("/v1/files/file-1")).json() == LIST
        assert (await w.client.put("/v1/files/file-1")).status_code == 405
        for address in ("/v1/files/../../api/v1/fleet", "/v1/files/%2e%2e/%2E%2E/login", "/v1/batches/a/b"):
            assert (await raw(w, address)).startswith(b"HTTP/1.1 404 ")
        assert (await raw(w, "/v1/files/a%0D%0Ax%3Fy%20%23%C3%A9")).startswith(b"HTTP/1.1 200 ")
        assert web.received[-1].target == "/v1/files/a%0D%0Ax%3Fy%20%23%C3%A9"
        lost = await w.client.get("/v1/files")
        assert (lost.status_code, lost.json()["error"]["code"]) == (503, "batches_unavailable")
    assert w.engines[0].received == []


async def raw(w: Any, target: str) -> bytes:
    """Return the beginning of an answer to a raw path, which httpx would simplify."""
    reader, writer = await asyncio.open_connection("127.0.0.1", w.client.base_url.port)
    key = f"authorization: Bearer {ALICE}\r\n"
    writer.write(f"GET {target} HTTP/1.1\r\nhost: x\r\n{key}connection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    return answer


@pytest.mark.parametrize(
    ("line", "code"), [("", "missing_api_key"), ("authorization: Bearer sk-weir-other\r\n", "invalid_api_key")]
)
async def test_a_file_without_a_key_is_refused_before_its_body_is_read(world: Any, line: str, code: str) -> None:
    async with engine(hang_up) as web:
        w = await keyed(world, key_entry(ALICE), required=())
        w.router.web = WebRelay(web.url)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.client.base_url.port)
        writer.write(f"POST /v1/files HTTP/1.1\r\nhost: x\r\n{line}content-length: 9\r\n\r\n".encode())
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        assert head.startswith(b"HTTP/1.1 401 ")
        assert code.encode() in await asyncio.wait_for(reader.readuntil(b"}"), 20)
        writer.close()
        assert web.received == []


@pytest.mark.parametrize("secret", [SECRET, SECRET + "x"])
async def test_a_line_sent_by_a_worker_counts_for_the_key_that_created_the_batch(world: Any, secret: str) -> None:
    w = await world(None)
    digest = hashlib.sha256(SECRET.encode()).hexdigest()
    limited = {**key_entry(ALICE), "requests_per_min": 1}
    w.published.keys(limited, required=("*",), batch_sha256=digest)
    await asyncio.sleep(0)
    await w.until(lambda: w.router.pools.auth.ring is not None and w.router.pools.auth.ring.batch)
    headers = {"authorization": f"Bearer {secret}", "x-weir-key-id": key_entry(ALICE)["id"], "x-weir-priority": "50"}
    answers = [await w.ask(headers=headers) for _ in range(3)]
    if secret != SECRET:
        assert [one.status_code for one in answers] == [401] * 3
        return
    assert [one.status_code for one in answers] == [200] * 3
    receipt = await w.receipt(answers[0])
    assert (receipt["key"], receipt["band"]) == ("alice", -100)
    assert {"authorization", "x-weir-key-id"}.isdisjoint(w.engines[0].received[0].headers)
    assert (await w.ask(headers={**headers, "x-weir-key-id": "nobody"})).status_code == 401


async def test_a_key_id_without_the_workers_secret_is_ignored(world: Any) -> None:
    w = await world(None)
    assert (await w.ask(headers={"x-weir-key-id": "1"})).status_code == 200
    assert "x-weir-key-id" not in w.engines[0].received[0].headers
