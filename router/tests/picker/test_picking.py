"""The picker's answers to a gateway and their receipts; test_envoy.py tests the gRPC server."""

import asyncio
import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from router.contract.redis import redis_keys
from router.http.clients import ClientConnections
from router.limits.api_key_auth import _used
from router.picker import stream
from router.picker.picking import Picking
from router.pool.health.progress import Progress
from router.pool.health.stall_watch import look, stalled
from router.tests.conftest import World, entry, key_entry
from router.tests.engine import reply
from router.tests.picker.asking import Asking, Read, body, headers, metadata, modes, read, trailers
from router.tests.test_aliases import put
from router.tests.test_limits import calls
from router.tests.values import loaded

DOCUMENT = {"model": "llama", "prompt": "hello", "stream": True}


class Gateway:
    def __init__(self, world: World, **options: Any) -> None:
        self.world = world
        router = world.router
        self.picking = Picking(
            *(router.pools, router.source.sessions, router.recorder, router.pages),
            single=options.pop("single", False),
            sidecars=options.pop("sidecars", False),
        )
        self.options = options

    def begin(self, *said: bytes) -> tuple[Asking, "asyncio.Task[None]"]:
        asking = Asking(**self.options)
        asking.say(*said)

        async def work() -> None:
            incoming = await asking.stream.head()
            assert incoming is not None
            await self.picking.pick(incoming, asking.stream)
            if (refusal := asking.stream.refusal) is not None:
                await asking.write(refusal)
            asking.stream.release()

        return asking, asyncio.create_task(work())

    def ask(
        self, document: dict[str, Any] | None = None, metadata: bytes = b"", modes: bytes = modes(), **lines: str
    ) -> tuple[Asking, "asyncio.Task[None]"]:
        named = {name.replace("_", "-"): value for name, value in lines.items()}
        head = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r-1", **named}
        return self.begin(headers(head) + metadata + modes, body(orjson.dumps(document or DOCUMENT)))

    async def picked(self, *args: Any, **lines: str) -> Read:
        """Return the answer to the head, and end the stream at once."""
        asking, work = self.ask(*args, **lines)
        asking.say(None)
        await work
        return await asking.answer()

    async def receipt(self, name: str = "r-1") -> dict[str, Any]:
        client = self.world.published.client
        await self.world.until(lambda: client.exists(redis_keys.receipt_key(name)), "receipt")
        receipt = loaded(client.get(redis_keys.receipt_key(name)))
        assert receipt is not None
        return receipt

    def inflight(self) -> int:
        pool = self.world.router.pools.get("demo")
        assert pool is not None
        return sum(one.requests for one in pool.endpoints.values())


@pytest.fixture
async def three(world: Callable[..., Any]) -> World:
    made: World = await world(reply({}), reply({}), reply({}), failure__retries=1)
    return made


def ports(world: World) -> list[str]:
    return [engine.url.removeprefix("http://") for engine in world.engines]


async def test_a_request_is_picked_counted_until_its_stream_ends_and_has_a_receipt(three: World) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask()
    head, back = await asking.answer(), await asking.answer()
    first, second, _ = ports(three)
    assert (head.kind, head.endpoints, head.metadata) == ("request_headers", f"{first},{second}", f"{first},{second}")
    assert orjson.loads(back.body or b"") == DOCUMENT  # without usage, which nobody would remove again
    assert gateway.inflight() == 1
    asking.say(headers({":status": "200", "x-gateway-destination-endpoint-served": first}, kind=3))
    told = await asking.answer()
    assert told.headers is not None
    assert (told.kind, told.headers["x-weir-instance"]) == ("response_headers", "demo-0")
    assert gateway.inflight() == 1
    asking.say(None)
    await work
    assert gateway.inflight() == 0
    receipt = await gateway.receipt()
    assert (receipt["instance"], receipt["outcome"], receipt["status"]) == ("demo-0", "ok", 200)
    assert (receipt["ttft_ms"], receipt["stream"], receipt["retries"]) == (None, True, 0)


async def test_a_sidecar_receives_the_instance_that_computes_the_prompt(world: Callable[..., Any]) -> None:
    made: World = await world(reply({}), reply({}), strategy="round_robin_pd")
    nixl = [{"role": role, "connector": "nixl"} for role in ("prefill", "decode")]
    made.published.fleet(*(entry(f"demo-{i}", made.engines[i].url, **one) for i, one in enumerate(nixl)))
    pool = made.router.pools.get("demo")
    assert pool is not None
    await made.until(lambda: [one.role for one in pool.endpoints.values()] == ["prefill", "decode"], "roles")
    prefill, decode = ports(made)
    refused = await Gateway(made).picked()
    assert (refused.kind, refused.status) == ("refused", 503)
    gateway = Gateway(made, sidecars=True)
    read = await gateway.picked(x_prefiller_host_port="10.0.0.1:1", x_request_id="r-2")
    assert read.headers is not None
    assert (read.endpoints, read.headers["x-prefiller-host-port"]) == (decode, prefill)
    receipt = await gateway.receipt("r-2")
    assert (receipt["instance"], receipt["prefill_instance"], receipt["flow"]) == ("demo-1", "demo-0", "offload_nixl")
    await made.until(lambda: not gateway.inflight(), "nothing in flight")


async def test_an_endpoint_that_the_gateway_abandoned_counts_as_failed(three: World) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask()
    second = (await asking.answer()).endpoints.split(",")[1]
    asking.say(
        headers({":status": "503"}, kind=3) + metadata("envoy.lb", "x-gateway-destination-endpoint-served", second)
    )
    asking.say(None)
    await work
    sent, told = await asking.answer(), await asking.answer()
    assert (sent.kind, (told.headers or {})["x-weir-instance"]) == ("request_body", "demo-1")
    receipt = await gateway.receipt()
    assert receipt["instance"] == "demo-1"
    assert [(one["instance"], one["status"], one["error"]) for one in receipt["attempts"]] == [
        ("demo-0", None, "the gateway gave it up"),
        ("demo-1", 503, ""),
    ]
    assert (receipt["outcome"], receipt["error"]) == ("refused", "demo-1 answered 503")


async def test_an_engines_400_is_the_clients_fault_behind_a_gateway_too(three: World) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask()
    await asking.answer()
    asking.say(headers({":status": "400"}, kind=3))
    asking.say(None)
    await work
    receipt = await gateway.receipt()
    assert [receipt[key] for key in ("outcome", "result", "fault")] == ["client_error", "client_error", "client"]
    window = three.router.recorder.classes(receipt["at"] + 1)["demo"][receipt["class"]]
    assert (window.client_error, window.error, window.refused) == (1, 0, 0)


async def test_a_status_that_only_one_engine_returns_to_a_gateway_shuts_that_engine_out(three: World) -> None:
    gateway, pool, lost = Gateway(three), three.router.pools.get("demo"), ports(three)[0]
    assert pool is not None
    for turn in range(60):
        asking, work = gateway.ask(x_request_id=f"r-{turn}")
        picked = (await asking.answer()).endpoints.split(",")[0]
        asking.say(headers({":status": "404" if picked == lost else "200"}, kind=3), None)
        await work
        if pool.endpoints["demo-0"].breaker.state == "open":
            break
    assert [one.breaker.state for one in pool.endpoints.values()] == ["open", "closed", "closed"]


@pytest.mark.parametrize(
    ("asks", "kind", "result"),
    [
        (True, "application/json", "client_error"),
        (True, "Text/Event-Stream; charset=utf-8", "served"),
        (False, "text/event-stream", "failed_before_content"),
        (False, "application/json", "served"),
    ],
)
async def test_an_answer_of_another_kind_than_requested_does_not_count_as_served(
    three: World, asks: bool, kind: str, result: str
) -> None:
    gateway, pool, lost = Gateway(three), three.router.pools.get("demo"), ports(three)[0]
    assert pool is not None
    for turn in range(60):
        name = f"r-{turn}"
        asking, work = gateway.ask({**DOCUMENT, "stream": asks}, x_request_id=name)
        picked = (await asking.answer()).endpoints.split(",")[0]
        other = "text/event-stream" if asks else "application/json"
        told = kind if picked == lost else other
        asking.say(headers({":status": "200", "content-type": told}, kind=3), None)
        await work
        if picked == lost:
            assert (await gateway.receipt(name))["result"] == result
        if pool.endpoints["demo-0"].breaker.state == "open":
            break
    assert (pool.endpoints["demo-0"].breaker.state == "open") == (result != "served")


async def test_a_follow_up_goes_to_its_sessions_instance_or_is_refused(three: World) -> None:
    gateway = Gateway(three)
    paths = {":path": "/v1/responses"}
    document = {"model": "llama", "input": "more", "previous_response_id": "resp_1"}
    refused = await gateway.picked(document, **paths)
    assert refused.body is not None
    assert orjson.loads(refused.body)["error"]["code"] == "previous_response_not_found"
    first = await gateway.picked({"model": "llama", "input": "x"}, **paths, x_session_id="s")
    further = {(await gateway.picked(document, **paths, x_session_id="s")).endpoints for _ in range(4)}
    assert further == {first.endpoints.split(",")[0]}
    three.published.fleet(entry("demo-0", three.engines[0].url))
    pool = three.router.pools.get("demo")
    await three.until(lambda: pool and len(pool.endpoints) == 1, "one is left")
    assert (await gateway.picked(document, **paths)).endpoints == ports(three)[0]


async def test_a_key_in_azures_header_is_removed_and_a_salt_is_put_into_the_body(
    three: World,
) -> None:
    secret = "sk-weir-alice"
    three.published.keys(key_entry(secret), required=("demo",))
    auth = three.router.pools.auth
    await three.until(lambda: auth.ring and auth.ring.by_hash, "the key")
    gateway = Gateway(three)
    assert (await gateway.picked(api_key="sk-weir-" + "0" * 64)).status == 401
    asking, work = gateway.ask(api_key=secret, x_cache_salt="tenant", x_request_id="r-2")
    asking.say(None)
    picked, sent = await asking.answer(), await asking.answer()
    await work
    assert {"api-key", "x-cache-salt"} <= set(picked.removed)
    assert sent.body is not None
    assert orjson.loads(sent.body)["cache_salt"].startswith("weir-"), "apart by key"
    assert (await gateway.receipt("r-2"))["key"] == "alice"


@pytest.mark.parametrize("said", [(), (headers({":status": "200"}, kind=3),)], ids=["unseen", "answered"])
async def test_a_stream_behind_a_gateway_is_charged_by_its_limit_like_a_whole_answer(
    three: World, said: tuple[bytes, ...]
) -> None:
    three.published.keys(key_entry("sk-weir-alice", tokens_per_min=100_000))
    auth = three.router.pools.auth
    await three.until(lambda: auth.ring and auth.ring.by_hash, "the key")
    ended = calls(three)
    asking, work = Gateway(three).ask({**DOCUMENT, "max_tokens": 700}, authorization="Bearer sk-weir-alice")
    asking.say(*said, None)
    await work
    assert (_used(ended[0]), auth.meters["alice"].tokens) == (ended[0].prediction.prompt_tokens + 700, 0)


async def test_the_stream_of_a_gateway_that_would_send_answers_is_closed_at_the_decision(three: World) -> None:
    gateway = Gateway(three)
    _, work = gateway.ask({**DOCUMENT, "max_tokens": 5}, modes=modes(response=4))
    await work
    assert gateway.inflight() == 1
    receipt = await gateway.receipt()
    assert (receipt["outcome"], receipt["status"]) == ("picked", 0)
    await three.until(lambda: gateway.inflight() == 0, "the end that was expected")
    window = three.router.recorder.classes(receipt["at"] + 1)["demo"][receipt["class"]]
    assert (window.ok, window.n, window.e2e) == (1, 1, {})


async def test_a_client_whose_picked_requests_hang_does_not_keep_others_from_the_engine(
    world: Callable[..., Any],
) -> None:
    w: World = await world(reply({}))
    secret = "sk-weir-" + "1" * 64
    w.published.keys(key_entry(secret))
    auth, pool = w.router.pools.auth, w.router.pools.get("demo")
    assert pool is not None
    await w.until(lambda: auth.ring and auth.ring.by_hash, "the key")
    gateway, hung = Gateway(w), pool.endpoints["demo-0"]
    asked = [gateway.ask(x_request_id="r-1", api_key=secret)]
    await asked[0][0].answer()
    hung.kind, counted = "vllm", 7.0
    hung.progress.came()
    for second in range(120):
        look(pool, float(second), 1.0)
        if hung.progress.is_suspected and hung.progress.begin(probe=True):
            hung.progress.probed()
            hung.progress.end()
            counted += 2
        hung.progress.read(1, counted)
    assert hung.progress.fails_clients
    await asyncio.sleep(0.02)  # by now, the first one counts as computed
    asked.append(gateway.ask(x_request_id="r-2", api_key=secret))
    assert (await asked[1][0].answer()).endpoints
    refused = await gateway.picked(x_request_id="r-3", api_key=secret)
    assert (refused.status, b"its requests" in (refused.body or b"")) == (503, True)
    assert (await gateway.picked(x_request_id="r-4")).endpoints
    for asking, work in asked:
        asking.say(None)
        await work
    assert not hung.unseen


async def test_a_response_that_bypasses_the_picker_does_not_count_as_stalled(three: World) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask()
    await asking.answer()
    pool = three.router.pools.get("demo")
    assert pool is not None
    for second in range(200):
        look(pool, float(second), 1.0)
    assert (gateway.inflight(), stalled([pool])) == (1, [])
    asking.say(None)
    await work
    assert [one.unheld for one in pool.endpoints.values()] == [0, 0, 0]


async def test_an_engine_whose_counters_do_not_change_with_requests_is_not_picked(three: World) -> None:
    gateway = Gateway(three)
    pool = three.router.pools.get("demo")
    assert pool is not None
    pool.endpoints["demo-0"].progress.came()
    for second in range(30):
        pool.endpoints["demo-0"].progress.read(3, 7.0, 7.0)
        look(pool, float(second), 1.0)
    assert [one.id for one in stalled([pool])] == ["demo-0"]
    others = set(ports(three)[1:])
    for number in range(4):
        picked = await gateway.picked(x_request_id=f"r-{number}")
        assert set(picked.endpoints.split(",")) <= others


async def test_an_engine_that_hangs_on_picked_requests_is_detected_by_its_counters(three: World) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask()
    await asking.answer()
    pool = three.router.pools.get("demo")
    assert pool is not None
    hung = next(one for one in pool.endpoints.values() if one.unheld)
    hung.progress.came()
    for second in range(30):
        hung.progress.read(3, None, None)  # a page without counters shows nothing of requests from other routers
        look(pool, float(second), 1.0)
    assert stalled([pool]) == []
    for second in range(30):
        hung.progress.read(3, 7.0, 7.0)
        look(pool, float(second), 1.0)
    assert stalled([pool]) == [hung]
    asking.say(None)
    await work


@pytest.mark.parametrize(("kind", "tokens"), [("vllm", 0), ("vllm", 30), ("sglang", 0)])
async def test_an_engine_that_answers_only_probes_is_detected_by_counters_that_move_with_each_token(
    three: World, kind: str, tokens: int
) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask()
    await asking.answer()
    pool = three.router.pools.get("demo")
    assert pool is not None
    hung = next(one for one in pool.endpoints.values() if one.picked)
    hung.kind, counted = kind, 7.0
    hung.progress.came()
    for second in range(120):
        look(pool, float(second), 1.0)
        if hung.progress.is_suspected and hung.progress.begin(probe=True):
            hung.progress.probed()
            hung.progress.end()
            counted += 2
        counted += 0 if second % 20 else tokens
        hung.progress.read(1, counted)
    assert stalled([pool]) == ([] if tokens or kind == "sglang" else [hung])
    asking.say(None)
    await work
    assert [one.picked for one in pool.endpoints.values()] == [0, 0, 0]


@pytest.mark.parametrize("path", ["/v1/images/generations", "/v1/audio/speech"])
@pytest.mark.parametrize("answers_probes", [True, False])
async def test_an_image_or_sound_behind_a_gateway_has_the_time_limit_of_a_first_byte(
    three: World, path: str, answers_probes: bool
) -> None:
    asking, work = Gateway(three).ask({"model": "llama", "prompt": "x", "input": "x"}, **{":path": path})
    await asking.answer()
    pool = three.router.pools.get("demo")
    assert pool is not None
    busy = next(one for one in pool.endpoints.values() if one.unheld)
    busy.kind, counted = "vllm", 7.0
    busy.progress.came()
    for second in range(290):
        look(pool, float(second), 1.0)
        if answers_probes and second % 10 == 9:
            busy.progress.probed()
            counted += 2
        busy.progress.read(1, counted)
    assert (busy.picked, stalled([pool])) == (0, [])
    for second in range(290, 310):
        look(pool, float(second), 1.0)
    assert stalled([pool]) == ([] if answers_probes else [busy])
    asking.say(None)
    await work


async def test_a_request_that_the_gateway_sent_elsewhere_is_held_by_the_instance_that_serves_it(three: World) -> None:
    asking, work = Gateway(three).ask()
    await asking.answer()
    await asking.answer()
    pool = three.router.pools.get("demo")
    assert pool is not None
    assert [one.picked for one in pool.endpoints.values()] == [1, 0, 0]
    asking.say(headers({":status": "200", "x-gateway-destination-endpoint-served": ports(three)[1]}, kind=3))
    await asking.answer()
    assert [one.picked for one in pool.endpoints.values()] == [0, 1, 0]
    asking.say(None)
    await work
    assert [one.picked for one in pool.endpoints.values()] == [0, 0, 0]


async def test_a_response_in_the_background_is_no_served_answer_behind_a_gateway(
    three: World,
) -> None:
    pool = three.router.pools.get("demo")
    assert pool is not None
    pool.endpoints["demo-0"].breaker.failed(0.0, 5, "somebody else")
    document = {"model": "llama", "input": "hello", "background": True}
    asking, work = Gateway(three).ask(document, **{":path": "/v1/responses"})
    await asking.answer()
    served = {"x-gateway-destination-endpoint-served": ports(three)[0]}
    asking.say(headers({":status": "200", "content-type": "application/json", **served}, kind=3), None)
    await work
    assert (pool.endpoints["demo-0"].breaker.failures, pool.queue.drain.turn_s(0.0)) == (1, None)


@pytest.mark.parametrize(("status", "answers"), [(404, 1), (504, 0), (200, 0)])
async def test_a_client_error_alone_proves_that_an_engine_answers_clients(
    three: World, monkeypatch: pytest.MonkeyPatch, status: int, answers: int
) -> None:
    refused: list[Progress] = []
    monkeypatch.setattr(Progress, "refused", lambda progress: refused.append(progress))
    asking, work = Gateway(three).ask()
    await asking.answer()
    asking.say(headers({":status": str(status)}, kind=3), None)
    await work
    assert len(refused) == answers


async def test_only_instances_of_the_subset_are_picked(three: World) -> None:
    gateway = Gateway(three)
    last, name = ports(three)[2], "x-gateway-destination-endpoint-subset"
    for subset in (last, "127.0.0.1:1," + last):
        assert (await gateway.picked(None, metadata("envoy.lb.subset_hint", name, subset))).endpoints == last
    refused = await gateway.picked(None, metadata("envoy.lb.subset_hint", name, ["127.0.0.9"]))
    assert (refused.kind, refused.status) == ("refused", 503)
    assert orjson.loads(refused.body or b"")["error"]["code"] == "no_instance_ready"
    assert refused.headers is not None
    assert refused.headers["retry-after"]


async def test_objective_and_fairness_id_set_band_and_tenant(three: World) -> None:
    gateway = Gateway(three, objectives={"batch": -5}, single=True)
    told = await gateway.picked(x_llm_d_inference_objective="batch", x_gateway_inference_fairness_id="team-a")
    assert "," not in told.endpoints
    call = three.router.recorder.pending[-1] if three.router.recorder.pending else None
    assert call is None or call.tenant == "team-a"
    receipt = await gateway.receipt()
    assert (receipt["band"], receipt["band_asked_by"]) == (-5, "x-weir-priority")
    await gateway.picked(x_request_id="r-2", x_llm_d_inference_objective="unknown")
    assert "band" not in await gateway.receipt("r-2")


async def test_the_priority_is_removed_from_the_body_together_with_the_routers_own_headers(three: World) -> None:
    gateway = Gateway(three)
    secret = "sk-weir-team-a"
    three.published.keys(key_entry(secret))
    await three.until(lambda: three.router.pools.auth.ring and three.router.pools.auth.ring.by_hash)
    asking, work = gateway.ask({**DOCUMENT, "priority": 3}, authorization=f"Bearer {secret}", x_weir_priority="1")
    head, back = await asking.answer(), await asking.answer()
    asking.say(None)
    await work
    assert orjson.loads(back.body or b"") == DOCUMENT
    assert {"authorization", "x-weir-priority", "content-length"} <= set(head.removed)
    assert (await gateway.receipt())["key"] == "a"


@pytest.mark.parametrize("name", ["chat", "demo"])
async def test_an_alias_is_sent_under_the_name_that_the_engine_knows(three: World, name: str) -> None:
    put(three.published, {"chat": {"pool": "demo"}})
    await three.until(lambda: "chat" in three.router.pools.aliases)
    asking, work = Gateway(three).ask({**DOCUMENT, "model": name})
    await asking.answer()
    assert orjson.loads((await asking.answer()).body or b"") == DOCUMENT
    asking.say(None)
    await work


async def test_a_rank_is_named_in_a_header_without_fallbacks(three: World) -> None:
    three.published.fleet(entry("demo-0", three.engines[0].url, dp={"ranks": 2}))
    await three.until(lambda: len(three.router.pools.get("demo").endpoints) == 2)  # type: ignore[union-attr]
    told = await Gateway(three).picked()
    assert (told.endpoints, told.headers["x-data-parallel-rank"]) == (ports(three)[0], "0")
    assert re.fullmatch("r-1-[0-9a-f]{24}", told.headers["x-request-id"])


async def test_an_instance_whose_address_is_a_host_name_is_not_picked(three: World) -> None:
    url = three.engines[0].url
    three.published.fleet(entry("demo-0", url.replace("127.0.0.1", "localhost")), entry("demo-1", url))
    await three.until(lambda: len(three.router.pools.get("demo").endpoints) == 2)  # type: ignore[union-attr]
    assert (await Gateway(three).picked()).endpoints == ports(three)[0]


async def test_a_buffered_body_is_requested_and_an_incomplete_one_refused(three: World) -> None:
    gateway = Gateway(three)
    asking, work = gateway.ask(modes=modes(request=2))
    assert (await asking.answer()).endpoints == ""
    told = await asking.answer()
    assert (told.kind, told.body) == ("request_body", None)
    assert told.endpoints
    asking.say(None)
    await work
    refused = await gateway.picked(None, b"", modes(request=1))
    assert (refused.status, orjson.loads(refused.body or b"")["error"]["code"]) == (500, "gateway_misconfigured")


async def test_trailers_end_a_request_and_other_paths_use_the_instances_in_turn(three: World) -> None:
    gateway = Gateway(three)
    head = {":method": "POST", ":path": "/v1/completions"}
    asking, work = gateway.begin(
        headers(head) + modes(), body(orjson.dumps(DOCUMENT), ends=False), trailers(x_prefiller_host_port="10.0.0.1:1")
    )
    told = [await asking.answer() for _ in range(3)]
    assert [one.kind for one in told] == ["request_headers", "request_body", "request_trailers"]
    assert told[2].removed == ("x-prefiller-host-port",)
    asking.say(None)
    await work
    picked = set()
    for _ in range(3):
        asking, work = gateway.begin(headers({":method": "GET", ":path": "/health"}, ends=True) + modes())
        await work
        picked.add((await asking.answer()).endpoints)
        assert asking.unread == 0
    assert picked == set(ports(three))
    unknown = {":method": "GET", ":path": "/health", "x-weir-pool": "nowhere"}
    asking, work = gateway.begin(headers(unknown, ends=True) + modes())
    assert (await asking.answer()).status == 404


async def test_a_client_that_leaves_before_the_pick_is_cancelled(three: World) -> None:
    gateway = Gateway(three)
    head = {":method": "POST", ":path": "/v1/completions", "x-request-id": "r-3"}
    asking, work = gateway.begin(headers(head) + modes(), body(b"{", ends=False))
    asking.say(None)
    await work
    assert ((await gateway.receipt("r-3"))["outcome"], asking.unread) == ("cancelled", 0)


async def test_a_gateway_gets_the_engines_key_and_is_sent_to_no_instance_with_another_key(
    three: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QWEN_API_KEY", "sk-engine-1")
    monkeypatch.setenv("LLAMA_API_KEY", "sk-engine-2")
    keys = ("env:QWEN_API_KEY", "env:LLAMA_API_KEY", "env:QWEN_API_KEY")
    pairs = enumerate(zip(three.engines, keys, strict=True))
    three.published.fleet(*(entry(f"demo-{place}", made.url, engine_key=key) for place, (made, key) in pairs))
    pool = three.router.pools.get("demo")
    assert pool is not None
    await three.until(lambda: {one.engine_key for one in pool.endpoints.values()} == {*keys}, "the keys are published")
    shown = {"env:QWEN_API_KEY": "Bearer sk-engine-1", "env:LLAMA_API_KEY": "Bearer sk-engine-2"}
    by_port = dict(zip(ports(three), keys, strict=True))
    for _ in range(3):
        told = await Gateway(three).picked(authorization="Bearer mine")
        assert told.headers is not None
        named = [by_port[one] for one in told.endpoints.split(",")]
        assert told.headers["authorization"] == shown[named[0]]
        assert len({*named}) == 1
    monkeypatch.delenv("QWEN_API_KEY")
    monkeypatch.delenv("LLAMA_API_KEY")
    told = await Gateway(three).picked(x_request_id="r-2")
    assert (told.status, b"no_instance_ready" in (told.body or b"")) == (503, True)
    receipt = await Gateway(three).receipt("r-2")
    assert [receipt["result"], receipt["fault"], receipt["attempts"][0]["result"]] == ["refused", "nobody", "refused"]


@pytest.mark.attacks
async def test_a_body_that_does_not_arrive_is_refused_in_time(three: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "BODY_S", 0.01)
    gateway = Gateway(three)
    head = {":method": "POST", ":path": "/v1/completions"}
    asking, work = gateway.begin(headers(head) + modes(), body(b"{", ends=False))
    told = await asking.answer()
    assert (told.status, orjson.loads(told.body or b"")["error"]["code"]) == (408, "body_timeout")
    await work
    assert gateway.inflight() == 0


@pytest.mark.attacks
async def test_bodies_beyond_the_limit_of_all_together_are_refused(three: World) -> None:
    clients = ClientConnections(most_body_bytes=100_000)
    gateway = Gateway(three, clients=clients)
    held, work = gateway.ask({**DOCUMENT, "prompt": "x" * 60_000})
    assert (await held.answer()).endpoints
    assert clients.body_bytes > 60_000
    told = await gateway.picked({**DOCUMENT, "prompt": "x" * 60_000})
    assert (told.status, orjson.loads(told.body or b"")["error"]["code"]) == (503, "too_many_bodies")
    held.say(None)
    await work
    assert (clients.body_bytes, clients.shares) == (0, {})


@pytest.mark.attacks
@pytest.mark.parametrize("lines", [{f"x-{number}": "" for number in range(501)}, {"x-long": "x" * 131_072}])
async def test_a_head_of_too_many_headers_is_refused(three: World, lines: dict[str, str]) -> None:
    asking = Asking()
    asking.say(headers({":method": "POST", ":path": "/v1/completions", **lines}) + modes())
    assert await asking.stream.head() is None
    told = read(asking.stream.refusal or b"")
    assert (told.status, orjson.loads(told.body or b"")["error"]["code"]) == (431, "headers_too_large")
