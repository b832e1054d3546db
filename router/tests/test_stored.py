"""Only its creator can read a stored response, and only from the instance that stores it."""

import asyncio
import itertools
import json
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from router.contract.net import whereabouts
from router.contract.redis import redis_keys
from router.contract.redis.published import StoredResponse, name_of
from router.serving import stored_calls
from router.serving.answer.response_id import EVENTS, LARGEST, IdNoted
from router.serving.stored import FairlyKept
from router.sync import response_directory
from router.sync.redis_link import RedisLink
from router.tests.conftest import entry, key_entry, running
from router.tests.engine import Behaviour, Engine, Received, Writer, engine, reply, stream, write_head
from router.tests.test_aliases import known, second
from router.tests.test_keys import ALICE, BOB, bearer

PATH = "/v1/responses"
USAGE = {"input_tokens": 5, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 1, "total_tokens": 6}
numbers = itertools.count()


def stores(kept: dict[str, Any] | None = None) -> Behaviour:
    """An engine that has the responses that it created, and answers 404 to everything else."""
    kept = {} if kept is None else kept

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        making = request.method == "POST" and request.target == PATH
        await (make if making else tell)(kept, request)(engine, request, writer)

    return behave


def tell(kept: dict[str, Any], request: Received) -> Behaviour:
    name, _, action = request.target.split("?")[0].removeprefix(f"{PATH}/").partition("/")
    if name not in kept:
        return reply({"error": {"message": "not found"}}, 404)
    if action not in ("", "cancel"):
        return reply({"detail": "Not Found"}, 404)
    if request.method == "DELETE":
        del kept[name]
    return reply({"id": name, "did": f"{request.method} {action}".strip()})


def make(kept: dict[str, Any], request: Received) -> Behaviour:
    document = request.document
    previous = document.get("previous_response_id")
    if previous is not None and previous not in kept:
        return reply({"error": {"message": "not found"}}, 404)
    made = {"object": "response", "instructions": document.get("instructions"), "id": f"resp_{next(numbers)}"}
    kept[made["id"]] = document
    if not document.get("stream"):
        return reply({**made, "status": "completed", "usage": USAGE})
    created = b"event: response.created\ndata: " + json.dumps({"response": made}).encode() + b"\n\n"
    half = len(created) // 2
    ended = b"data: " + json.dumps({"response": {**made, "usage": USAGE}}).encode() + b"\n\n"
    return stream([created[:half], created[half:], b'data: {"delta":"x"}\n\n', ended])


async def first(w: Any, **body: Any) -> str:
    """Create a response and return its id."""
    answer = await w.ask(PATH, input="hello", **body)
    assert answer.status_code == 200, answer.text
    if not body.get("stream"):
        return str(answer.json()["id"])
    return str(json.loads(answer.text.split("data: ")[1].split("\n")[0])["response"]["id"])


async def further(w: Any, previous: str, **body: Any) -> Any:
    return await w.ask(PATH, input="and then?", previous_response_id=previous, **body)


def error(answer: Any) -> tuple[int, str, str]:
    return answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["message"]


@pytest.fixture
async def four(world: Any) -> Any:
    return await world(stores(), stores(), stores(), stores())


async def keyed(w: Any) -> Any:
    w.published.keys(key_entry(ALICE), key_entry(BOB))
    auth = w.router.pools.auth
    await w.until(lambda: auth.ring is not None and len(auth.ring.by_hash) == 2)
    return w


@pytest.mark.parametrize("streamed", [False, True])
async def test_every_turn_goes_to_the_instance_that_has_the_previous_turn(four, streamed):
    async def conversation() -> list[int]:
        previous = await first(four, stream=streamed, instructions="long " * 5_000)
        return [(await further(four, previous)).status_code for _ in range(3)]

    told = [await conversation() for _ in range(3)] + await asyncio.gather(*(conversation() for _ in range(12)))
    assert told == [[200] * 3] * 15


async def test_a_stored_response_is_read_cancelled_and_deleted_at_its_instance(four):
    for _ in range(4):
        name = await first(four)
        told = [
            await four.client.request(*call) for call in (("GET", f"{PATH}/{name}"), ("POST", f"{PATH}/{name}/cancel"))
        ]
        assert [answer.json()["did"] for answer in told] == ["GET", "POST cancel"]
        assert all(answer.headers["x-request-id"] for answer in told)
        items = await four.client.get(f"{PATH}/{name}/input_items")
        assert error(items)[:2] == (404, "not_served")
        assert (await four.client.delete(f"{PATH}/{name}")).json()["did"] == "DELETE"
        assert error(await four.client.get(f"{PATH}/{name}"))[:2] == (404, "response_not_found")
        assert error(await further(four, name))[:2] == (404, "previous_response_not_found")


async def test_the_query_string_is_forwarded(four):
    name = await first(four)
    await four.client.get(f"{PATH}/{name}?stream=true&starting_after=3")
    assert any(one.target == f"{PATH}/{name}?stream=true&starting_after=3" for e in four.engines for one in e.received)


@pytest.mark.parametrize("method", ["PATCH", "PUT", "HEAD", "POST"])
async def test_other_methods_are_refused(four, method):
    answer = await four.client.request(method, f"{PATH}/resp_1")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, DELETE")


@pytest.mark.parametrize("name", ["resp_unknown", "%0d%0aHost:%20x", "x" * 200, "%C3%A9"])
async def test_an_unknown_response_is_reported_as_unknown(four, name):
    assert error(await four.client.get(f"{PATH}/{name}"))[:2] == (404, "response_not_found")
    assert not any(e.received for e in four.engines)
    status, code, message = error(await further(four, "resp_unknown"))
    assert (status, code) == (404, "previous_response_not_found")
    assert "send the whole conversation as input, without previous_response_id" in message
    assert not any(e.received for e in four.engines)


async def test_another_key_cannot_read_a_response(four):
    w = await keyed(four)
    name = await first(w, headers=bearer(ALICE))
    for headers in (bearer(BOB), {}):
        assert error(await further(w, name, headers=headers))[:2] == (404, "previous_response_not_found")
        for method in ("GET", "DELETE"):
            answer = await w.client.request(method, f"{PATH}/{name}", headers=headers)
            assert error(answer)[:2] == (404, "response_not_found")
    assert (await further(w, name, headers=bearer(ALICE))).status_code == 200
    assert (await w.client.get(f"{PATH}/{name}", headers=bearer(ALICE))).status_code == 200
    own = await first(w)
    assert error(await further(w, own, headers=bearer(ALICE)))[:2] == (404, "previous_response_not_found")


async def test_a_key_that_lost_the_pool_loses_its_responses(four):
    w = await keyed(four)
    name = await first(w, headers=bearer(ALICE))
    w.published.keys(key_entry(ALICE, pools=["other"]), key_entry(BOB))
    await w.until(lambda: w.router.pools.auth.ring.holder(ALICE.encode()).pools)
    assert error(await w.client.get(f"{PATH}/{name}", headers=bearer(ALICE)))[:2] == (403, "pool_not_allowed")
    assert error(await further(w, name, headers=bearer(ALICE)))[:2] == (403, "pool_not_allowed")


async def test_an_owner_that_restarted_or_left_is_named(four):
    name = await first(four)
    owner = next(f"demo-{i}" for i, e in enumerate(four.engines) if e.received)
    entries = [entry(f"demo-{i}", e.url, epoch=2) for i, e in enumerate(four.engines)]
    pool = four.router.pools.get("demo")
    for entries_now, why in (
        (entries, f"{owner}, which stored it, was restarted"),
        (
            [one for one in entries if one["id"] != owner],
            f"{owner}, which stored it, has left the fleet",
        ),
    ):
        four.published.fleet(*entries_now)
        there = {(one["id"], 2) for one in entries_now}
        await four.until(lambda there=there: {(e.id, e.epoch) for e in pool.endpoints.values()} == there)
        status, code, message = error(await further(four, name))
        assert (status, code) == (404, "previous_response_not_found")
        assert why in message
        assert why in error(await four.client.get(f"{PATH}/{name}"))[2]


async def test_an_owner_that_takes_no_requests_is_awaited_or_replaced(four):
    name = await first(four)
    owner = next(i for i, e in enumerate(four.engines) if e.received)
    drained = {"routable": False, "state": "draining"}
    four.published.fleet(
        *(entry(f"demo-{i}", e.url, **(drained if i == owner else {})) for i, e in enumerate(four.engines))
    )
    pool = four.router.pools.get("demo")
    await four.until(lambda: not pool.endpoints[f"demo-{owner}"].routable)
    answer = await further(four, name)
    assert error(answer)[:2] == (503, "no_instance_ready")
    assert f"demo-{owner}, which stored '{name}', takes no requests (draining)" in error(answer)[2]
    assert answer.headers["retry-after"] == "5"
    assert (await four.client.get(f"{PATH}/{name}")).status_code == 200


async def test_an_owner_that_only_decodes_cannot_continue_a_response(four):
    name = await first(four)
    four.published.fleet(
        *(entry(f"demo-{i}", e.url, role="decode", connector="nixl") for i, e in enumerate(four.engines))
    )
    await four.until(lambda: all(e.role == "decode" for e in four.router.pools.get("demo").endpoints.values()))
    assert "computes no prompts" in error(await further(four, name))[2]


async def test_a_dead_owner_is_an_error_and_no_other_instance_is_asked(four):
    name = await first(four)
    owner = next(e for e in four.engines if e.received)

    async def dies(engine: Engine, request: Received, writer: Writer) -> None:
        writer.close()

    owner.behaviour = dies
    asked = [len(e.received) for e in four.engines if e is not owner]
    answer = await further(four, name)
    assert answer.status_code == 502
    assert error(await four.client.get(f"{PATH}/{name}"))[:2] == (502, "upstream_failed")
    assert [len(e.received) for e in four.engines if e is not owner] == asked


async def test_another_router_knows_the_owner(four, redis_url):
    name = await first(four)
    async with running(redis_url, "router-2") as (other, client):
        await four.until(lambda: other.pools.get("demo") is not None and other.pools.get("demo").ready)
        body = {"model": "llama", "input": "and then?", "previous_response_id": name}
        assert (await client.post(PATH, json=body)).status_code == 200
        assert (await client.get(f"{PATH}/{name}")).status_code == 200
        assert (await client.delete(f"{PATH}/{name}")).status_code == 200
    assert not four.published.client.exists(redis_keys.response_key(name_of("", name)))


async def test_an_engine_that_claims_anothers_response_gets_none_of_its_continuations(four, redis_url):
    name = await first(four)
    owner = next(f"demo-{place}" for place, one in enumerate(four.engines) if one.received)
    key, lie = redis_keys.response_key(name_of("", name)), {"id": name, "status": "completed", "usage": USAGE}
    await four.until(lambda: four.published.client.exists(key))
    there = four.published.client.get(key)
    for place, one in enumerate(four.engines):
        if f"demo-{place}" != owner:
            one.behaviour = reply(lie | {"object": "response"})
    async with running(redis_url, "router-2") as (other, client):
        await four.until(lambda: other.pools.get("demo") is not None and other.pools.get("demo").ready)
        for _ in four.engines:
            assert (await four.ask(PATH, input="hello")).status_code == 200
            assert (await client.post(PATH, json={"model": "llama", "input": "hello"})).status_code == 200
    assert (await further(four, name)).headers["x-weir-instance"] == owner
    assert four.published.client.get(key) == there


async def test_space_in_redis_is_shared_among_keys_and_entries_expire(live_redis, redis_url, monkeypatch):
    monkeypatch.setattr(redis_keys, "RESPONSES_KEPT", 4)
    clock = itertools.count(1_700_000_000)
    monkeypatch.setattr(response_directory, "time", SimpleNamespace(time=lambda: next(clock)))
    link = RedisLink(redis_url)
    link.answered()
    directory, place = response_directory.ResponseDirectory(link), StoredResponse(pool="demo", instance="d", epoch=1)

    async def found() -> list[str]:
        return [name for name in ("a0", "b0", "c0", *(f"m{n}" for n in range(7))) if await directory._read(name)]

    for key, name in [("a", "a0"), ("", "b0"), *(("m", f"m{n}") for n in range(7))]:
        directory.kept(key, name, place)
        await directory.write()
    assert await found() == ["a0", "b0", "m5", "m6"]
    for key, name in [("c", "c0"), ("m", "m0"), ("m", "m1")]:
        directory.kept(key, name, place)
    await directory.write()
    assert await found() == ["a0", "b0", "c0", "m1"]
    sizes = dict(await link.client.zrange(redis_keys.RESPONSES, 0, -1, withscores=True))
    assert sizes == {redis_keys.responses_key(key).encode(): 1 for key in ("a", "", "c", "m")}
    for key in (redis_keys.RESPONSES, redis_keys.responses_key("m"), redis_keys.response_key("m1")):
        assert 0 < await link.client.ttl(key) <= redis_keys.RESPONSE_TTL_S
    clock = itertools.count(1_700_000_000 + redis_keys.RESPONSE_TTL_S + 60)
    directory.kept("n", "n0", place)
    await directory.write()
    assert await link.client.zrange(redis_keys.RESPONSES, 0, -1) == [redis_keys.responses_key("n").encode()]
    await link.close()


async def test_without_redis_a_router_continues_with_what_it_knows(four, monkeypatch):
    name = await first(four)

    async def fails(*_: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr(four.router.source.link, "get", fails)
    assert (await further(four, name)).status_code == 200
    assert error(await further(four, "resp_unknown"))[:2] == (404, "previous_response_not_found")


@pytest.mark.parametrize("value", [b"", b"{}", b'{"schema":9}', b'{"schema":1,"pool":7}'])
async def test_an_unreadable_stored_value_counts_as_missing(four, value):
    four.published.client.set(redis_keys.response_key(name_of("", "resp_odd")), value)
    assert error(await further(four, "resp_odd"))[:2] == (404, "previous_response_not_found")


async def test_a_response_with_store_false_is_not_remembered(four):
    await first(four, store=False)
    assert len(four.router.source.responses) == 0
    await first(four, store=True)
    assert len(four.router.source.responses) == 1


async def test_an_engine_that_forgot_a_response_says_so_itself_and_is_not_at_fault(four):
    name = await first(four)
    owner = next(i for i, e in enumerate(four.engines) if e.received)
    four.engines[owner].behaviour = stores()
    for _ in range(8):
        answer = await further(four, name)
        assert (answer.status_code, answer.json()) == (404, {"error": {"message": "not found"}})
    assert sum(len(e.received) for e in four.engines) == 9
    assert four.router.pools.get("demo").endpoints[f"demo-{owner}"].breaker.opened_at is None


@pytest.mark.parametrize("status", [200, 404])
async def test_an_engine_that_hangs_does_not_keep_a_client_of_a_stored_response_waiting(four, monkeypatch, status):
    async def half(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, status, "content-type: application/json", "content-length: 100")
        writer.write(b'{"id": "half')
        await writer.drain()
        await asyncio.sleep(0.02)
        for _ in range(130):
            four.router.proxy.stalls.check()
        await engine.release.wait()

    monkeypatch.setattr(stored_calls, "FIRST_BYTE_S", 0.5)
    name = await first(four)
    for one in four.engines:
        one.behaviour = half
    if status == 200:
        with pytest.raises(httpx.RemoteProtocolError):
            await four.client.get(f"{PATH}/{name}")
    else:
        assert error(await four.client.get(f"{PATH}/{name}"))[:2] == (504, "upstream_timeout")
    assert not four.router.proxy.stalls._limits


async def test_without_keys_the_engine_alone_decides(world):
    w = await world(stores({"resp_before": {}}))
    assert (await further(w, "resp_before")).status_code == 200
    assert (await w.client.get(f"{PATH}/resp_before")).status_code == 200
    assert (await w.client.get(f"{PATH}/resp_other")).status_code == 404
    await keyed(w)
    assert error(await further(w, "resp_before", headers=bearer(ALICE)))[:2] == (404, "previous_response_not_found")


async def test_a_name_of_two_pools_goes_to_the_pool_that_stores_the_response(world):
    w = await world(stores())
    split = [{"pool": "demo", "model": "llama", "weight": 50}, {"pool": "spot", "model": "llama", "weight": 50}]
    async with engine(stores()) as spot:
        await second(w, spot)
        await known(w, {"chat": {"split": split}})
        for number in range(12):
            name = await first(w, model="chat", instructions=f"{number} is a number")
            assert (await further(w, name, model="chat")).status_code == 200
        assert spot.received
        assert w.engines[0].received
        answer = await further(w, name, headers={"x-weir-pool": "demo"})
        other = await further(w, name, headers={"x-weir-pool": "spot"})
        assert sorted(one.status_code for one in (answer, other)) == [200, 404]


async def test_a_stored_response_names_the_model_as_its_client_did(four, redis_url):
    async def named(engine: Engine, request: Received, writer: Writer) -> None:
        name = request.target.removeprefix(f"{PATH}/").partition("/")[0]
        made = {"id": name if request.target != PATH else f"resp_{next(numbers)}", "model": "llama", "usage": USAGE}
        located = {"kv_transfer_params": {"remote_host": "10.0.0.7"}}
        await reply({**made, **located, "object": "response", "status": "completed"})(engine, request, writer)

    for one in four.engines:
        one.behaviour = named
    four.published.fleet(*(entry(f"demo-{n}", one.url, connector="nixl") for n, one in enumerate(four.engines)))
    endpoints = four.router.pools.get("demo").endpoints.values()
    await four.until(lambda: {one.connector for one in endpoints} == {"nixl"}, "the fleet")
    await known(four, {"chat": {"pool": "demo"}})
    name = await first(four, model="chat")
    async with running(redis_url, "router-2") as (_, other):
        for client, method, path in (
            (four.client, "GET", f"{PATH}/{name}"),
            (four.client, "POST", f"{PATH}/{name}/cancel"),
            (other, "GET", f"{PATH}/{name}"),
        ):
            answer = await client.request(method, path)
            assert (answer.status_code, answer.json()["id"], answer.json()["model"]) == (200, name, "chat")
            assert answer.json()["kv_transfer_params"] is None
    plain = await first(four)
    assert (await four.client.get(f"{PATH}/{plain}")).json()["model"] == "llama"


async def test_a_background_response_continues_unless_it_must_be_charged(four):
    w = await keyed(four)
    assert (await w.ask(PATH, input="x", background=True, headers=bearer(ALICE))).status_code == 200
    w.published.keys(key_entry(ALICE, tokens_per_min=1_000_000), key_entry(BOB))
    await w.until(lambda: w.router.pools.auth.ring.holder(ALICE.encode()).tokens_per_min)
    for background in (True, 1, "true"):
        answer = await w.ask(PATH, input="x", background=background, headers=bearer(ALICE))
        assert error(answer)[:2] == (400, "background_not_metered")
    assert (await w.ask(PATH, input="x", background=False, headers=bearer(ALICE))).status_code == 200


# Reading the id in an answer


class Client:
    extra = b""

    def __init__(self) -> None:
        self.takes_chunks, self.gone, self.on_room = True, False, None
        self.sent = b""

    async def read(self) -> bytes:
        return b""

    def start(self, status: int, lines: bytes) -> None: ...

    def write(self, data: bytes) -> bool:
        self.sent += data
        return False

    def write_chunk(self, chunk: bytes) -> bool:
        self.sent += chunk
        return True

    def end(self, data: bytes = b"") -> None:
        self.sent += data


def noted(*parts: bytes, streams: bool, last: bytes = b"") -> tuple[list[str], bytes, bool]:
    client, names = Client(), []
    through = IdNoted(client, names.append, streams=streams)
    for part in parts:
        through.write(part)
    through.end(last)
    return names, client.sent, through.write == client.write


CREATED = b'event: response.created\r\ndata: {"response":{"tools":[{"id":"no"}],"id":"resp_1"}}\r\n\r\n'


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_id_of_a_stream_comes_from_its_first_event(size: int) -> None:
    stream = b": ping\n\n" * 2 * EVENTS + CREATED + b'data: {"response":{"id":"resp_2"}}\n\n'
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert noted(*parts, streams=True) == (["resp_1"], stream, True)


def test_the_id_of_an_answer_is_the_top_level_one() -> None:
    body = b'{"output":[{"id":"msg_1"}],"text":"\\"id\\":\\"no\\"","id":"resp_1"}'
    assert noted(streams=False, last=body) == (["resp_1"], body, True)
    assert noted(body[:9], body[9:], streams=False) == (["resp_1"], body, True)


@pytest.mark.parametrize(
    ("answer", "streams"),
    [
        (b"", False),
        (b"no json", False),
        (b'{"id":7}', False),
        (b'{"id":"a b"}', False),
        (b'{"id":"%b"}' % (b"x" * 129), False),
        (b'{"id":' + b"[" * 5000, False),
        (b'{"id":"\xff"}', False),
        (b'data: {"response":{"id":"\xff"}}\n\n', True),
        (b"data: [DONE]\n\n", True),
        (b'data: {"response":7}\n\n', True),
        (b'data: {"response":{"id":null}}\n\n', True),
        (b'data: {"delta":"x"}\n\n' * 20, True),
    ],
)
def test_an_answer_without_an_id_passes_unchanged(answer: bytes, streams: bool) -> None:
    names, sent, _ = noted(answer, streams=streams)
    assert (names, sent) == ([], answer)


def test_an_answer_that_is_too_large_is_passed_on_without_being_kept() -> None:
    part = b"x" * (LARGEST // 2 + 1)
    names, sent, through = noted(part, part, streams=False, last=b'"id":"resp_1"}')
    assert (names, len(sent), through) == ([], 2 * len(part) + 14, True)


def test_a_key_with_many_responses_evicts_none_of_other_keys() -> None:
    kept = FairlyKept[int](4)
    names = [("a", "a0"), ("", "b0"), *(("m", f"m{n}") for n in range(5)), ("m", "m3"), ("c", "c0")]
    for number, (key, name) in enumerate(names):
        kept.put(key, name, number)
    assert [(key, name) for key, name, _ in kept.first(9)] == [("a", "a0"), ("", "b0"), ("m", "m3"), ("c", "c0")]
    assert (len(kept), kept.get("m", "m3"), kept.get("m", "m4"), kept.get("c", "m3")) == (4, 7, None, None)
    for key, name in [("m", "m3"), ("m", "m3"), ("x", "x0")]:
        kept.remove(key, name)
    assert (len(kept), len(kept.first(2))) == (3, 2)


def test_no_two_keys_get_the_same_name() -> None:
    names = [name_of(key, response) for key, response in (("", "a"), ("a", ""), ("a", "b"), ("", "a\0b"), ("a\0b", ""))]
    assert len(set(names)) == len(names)


async def test_a_stored_response_is_requested_with_the_engines_key(world, monkeypatch):
    async def guarded(engine: Engine, request: Received, writer: Writer) -> None:
        shown = request.headers.get("authorization") == "Bearer sk-engine-1"
        await (stored_there if shown else reply({"error": "Unauthorized"}, 401))(engine, request, writer)

    stored_there = stores()
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    w = await world(guarded)
    w.published.fleet(entry("demo-0", w.engines[0].url, engine_key="env:QWEN_API_KEY"))
    await w.until(lambda: w.router.pools.get("demo").endpoints["demo-0"].engine_key, "the key is published")
    name = await first(w)
    assert (await w.client.get(f"{PATH}/{name}", headers={"authorization": "Bearer mine"})).status_code == 200
    assert (await further(w, name)).status_code == 200
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-2")
    told = "demo-0 answered 401 to its engine key"
    assert error(await w.client.get(f"{PATH}/{name}")) == (502, "upstream_failed", told)


async def test_an_engine_key_that_is_missing_here_is_nobodys_fault(world, tmp_path, monkeypatch):
    monkeypatch.setattr(whereabouts, "LOOK_S", 0.0)
    path = tmp_path / "key"
    path.write_text("sk-engine-1")
    w = await world(stores())
    w.published.fleet(entry("demo-0", w.engines[0].url, engine_key=f"file:{path}"))
    endpoint = w.router.pools.get("demo").endpoints["demo-0"]
    await w.until(lambda: w.router.pools.get("demo").endpoints["demo-0"].engine_key, "the key is published")
    name = await first(w)
    path.unlink()
    for answer in (
        *[await w.client.request(method, f"{PATH}/{name}") for method in ("GET", "DELETE")],
        await w.client.post(f"{PATH}/{name}/cancel"),
        await w.client.get(f"{PATH}/{name}/input_items"),
        await further(w, name),
        await w.ask(PATH, input="x"),
    ):
        assert error(answer)[:2] == (503, "no_instance_ready")
        assert answer.headers["retry-after"]
    assert endpoint.breaker.failures == 0
    path.write_text("sk-engine-1")
    assert (await w.client.get(f"{PATH}/{name}")).status_code == 200
