"""An engine that holds requests and produces nothing is left out, reported and probed, even if it looks healthy."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from router.contract.redis import redis_keys
from router.policy.types import KV_UNKNOWN
from router.pool.endpoint import Endpoint
from router.pool.health.progress import CONFIRM_S, LEAST_S, SERVED, UNMOVED_READINGS
from router.tests.conftest import World, entry, key_entry
from router.tests.engine import (
    ANSWER,
    Engine,
    Received,
    Writer,
    events,
    first_then_wait,
    hang,
    reply,
    write_chunk,
    write_head,
)
from router.tests.values import loaded

Build = Callable[..., Awaitable[World]]
DOORS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hello"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
    "/v1/messages": {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 5},
    "/v1/responses": {"input": "hello"},
    "/v1/embeddings": {"input": "hello"},
}
COMPLETION = {"choices": [{"text": "1"}]}
PREFILLED = {"kv_transfer_params": {"do_remote_prefill": True, "remote_engine_id": "e"}, **COMPLETION}


def endpoint(w: World, name: str = "demo-0") -> Endpoint:
    pool = w.router.pools.get("demo")
    assert pool is not None
    return pool.endpoints[name]


def let_pass(w: World, seconds: float) -> None:
    """Run the number of connection checks that this time would bring, in addition to the router's own."""
    for _ in range(int(seconds)):
        w.router._check_connections()


async def proven(w: World, *names: str) -> None:
    """Let each of the instances answer once."""
    for name in names:
        await w.ask()
        await w.until(lambda name=name: endpoint(w, name).progress.is_proven or w.router._check_connections())


def tasks(w: World, count: int, path: str = "/v1/completions", **body: Any) -> "list[asyncio.Task[Any]]":
    return [asyncio.create_task(w.ask(path, **body)) for _ in range(count)]


async def end(*running: "asyncio.Task[Any]") -> None:
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def stalled(w: World, path: str = "/v1/completions", **body: Any) -> "list[asyncio.Task[Any]]":
    """Let `demo-0` hang on a request for longer than allowed."""
    w.engines[0].behaviour = hang
    asked = tasks(w, 2, path, **body)
    others = len(w.engines) > 1
    await w.until(lambda: sum(task.done() for task in asked) == others, "a request at the engine that hangs alone")
    await w.until(lambda: endpoint(w).requests, "a request at the engine that hangs")
    let_pass(w, LEAST_S + CONFIRM_S + 1)
    assert endpoint(w).progress.stalled
    return asked


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DOORS)
async def test_an_engine_that_hangs_is_left_out_at_every_door(world: Build, path: str, stream: bool) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    body = DOORS[path] | ({} if path == "/v1/embeddings" else {"stream": stream})
    asked = await stalled(w, path, **body)
    answers = [await w.ask(path, **body) for _ in range(4)]
    assert {answer.headers["x-weir-instance"] for answer in answers} == {"demo-1"}
    await end(*asked)


async def test_health_metrics_and_errors_name_a_stalled_engine(world: Build) -> None:
    w = await world(None)
    await proven(w, "demo-0")
    asked = await stalled(w)
    why = "stalled: no token for 14 s with requests (limit 10 s)"
    health = (await w.client.get("/healthz")).json()
    assert health["status"] == "degraded"
    assert f"pool demo: demo-0 is {why}" in health["degraded"]
    assert health["pools"]["demo"]["ready"] == 0
    metrics = (await w.client.get("/metrics")).text.splitlines()
    assert 'weir_router_stalled{instance="demo-0",pool="demo"} 1.0' in metrics
    assert 'weir_router_stalls_total{pool="demo"} 1.0' in metrics
    refused = await w.ask()
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_instance_ready")
    assert why in refused.json()["error"]["message"]
    await end(*asked)


async def test_the_control_plane_reports_a_stalled_engine_with_its_process(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    key = redis_keys.router_key("router-1")

    def told() -> dict[str, Any]:
        return loaded(w.published.client.get(key))["stalled"]

    await w.until(told, "the report")
    why = "stalled: no token for 14 s with requests (limit 10 s)"
    assert told() == {"demo-0": {"epoch": 1, "why": why, "proven": True}}
    await end(*asked)


async def test_a_stalled_engine_returns_once_it_answers_a_probe(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    received = len(w.engines[0].received)
    w.engines[0].script.append(reply(COMPLETION))
    w.router._stall_probes.step()
    await w.until(lambda: len(w.engines[0].received) > received)
    assert w.engines[0].received[received].document == {"model": "llama", "prompt": "1", "max_tokens": 1}
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    await end(*asked)


async def test_a_stalled_engine_returns_once_it_recovers_by_itself(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    w.engines[0].release.set()
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    assert [task.result().status_code for task in [await _done(task) for task in asked]] == [200, 200]


async def _done(task: "asyncio.Task[Any]") -> "asyncio.Task[Any]":
    await task
    return task


async def test_an_engine_that_hangs_gets_one_probe_at_a_time_and_no_request(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    held = endpoint(w).requests
    for _ in range(5):
        w.router._stall_probes.step()
        await w.ask()
    await w.until(lambda: len([one for one in w.engines[0].received if one.document.get("max_tokens") == 1]) == 1)
    assert endpoint(w).requests == held
    await end(*asked)


async def test_an_error_in_answer_to_the_probe_does_not_bring_the_engine_back(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    w.engines[0].behaviour = reply({"error": {"message": "the engine is dead"}})
    w.router._stall_probes.step()
    await asyncio.gather(*w.router._stall_probes._asked)
    let_pass(w, 3)
    assert endpoint(w).progress.stalled
    assert not endpoint(w).progress.by_requests
    await end(*asked)


async def test_an_engine_without_a_probe_is_tried_with_one_request(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    w.engines[0].script += [reply({"error": {"message": "no"}}, 404)] * 2
    w.router._stall_probes.step()
    await w.until(lambda: endpoint(w).progress.by_requests)
    before = len(w.engines[0].received)
    trials = tasks(w, 6)
    await w.until(lambda: sum(task.done() for task in trials) == 5)
    assert len(w.engines[0].received) == before + 1
    w.engines[0].release.set()
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    assert [(await task).status_code for task in trials] == [200] * 6
    await end(*asked)


async def answers_probes_alone(engine: Engine, request: Received, writer: Writer) -> None:
    of_router = request.document.get("max_tokens") == 1 or request.document.get("input") == "1"
    await (reply(COMPLETION) if of_router else hang)(engine, request, writer)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", DOORS)
async def test_an_engine_that_answers_only_probes_is_left_out_by_every_path(
    world: Build, path: str, stream: bool
) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    w.engines[0].behaviour = answers_probes_alone
    stream = stream and path != "/v1/embeddings"
    body = DOORS[path] | ({"stream": True} if stream else {})
    asked = tasks(w, 2, path, **body)
    await w.until(lambda: endpoint(w).requests and sum(task.done() for task in asked) == 1, "one that hangs")
    for _ in range(310):
        let_pass(w, 1)
        w.router._stall_probes.step()
        await asyncio.gather(*w.router._stall_probes._asked)
    assert "tokens of the router's own requests alone" in endpoint(w).progress.stalled
    before = len(w.engines[0].received)
    trials = tasks(w, 4, path, **body)
    await w.until(lambda: sum(task.done() for task in trials) == 3)
    w.router._stall_probes.step()
    assert len(w.engines[0].received) == before + 1
    w.engines[0].release.set()
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    assert [(await task).status_code for task in [*asked, *trials]] == [200] * 6


async def hold_s(w: World, seconds: int) -> None:
    """Wait while the engine answers every probe and counts its tokens."""
    for _ in range(seconds):
        let_pass(w, 1)
        w.router._stall_probes.step()
        await asyncio.gather(*w.router._stall_probes._asked)
        endpoint(w).progress.read(1, float(len(w.engines[0].received)))


@pytest.mark.parametrize(
    ("kind", "limit_s"), [("vllm", 45), ("sglang", 300), ("trtllm", 300), ("external", 300), ("openai", 300), ("", 300)]
)
async def test_engines_whose_counters_may_move_only_at_an_answers_end_get_the_time_of_an_answer(
    world: Build, kind: str, limit_s: int
) -> None:
    w = await world(None)
    await proven(w, "demo-0")
    w.published.fleet(entry("demo-0", w.engines[0].url, kind=kind))
    await w.until(lambda: endpoint(w).kind == kind)
    w.engines[0].behaviour = answers_probes_alone
    asked = tasks(w, 1)
    await w.until(lambda: endpoint(w).requests)
    await hold_s(w, 1)
    endpoint(w).progress.came()
    await hold_s(w, limit_s - 4)
    assert not endpoint(w).progress.stalled
    await hold_s(w, 9)
    assert endpoint(w).progress.stalled
    await end(*asked)


async def loses_a_prompt(engine: Engine, request: Received, writer: Writer) -> None:
    await (hang if request.document["prompt"] == "bad" else reply())(engine, request, writer)


async def mallory(w: World) -> dict[str, Any]:
    """Return a request that hangs on `demo-0`, a vLLM that has proven itself."""
    await proven(w, "demo-0")
    w.published.fleet(entry("demo-0", w.engines[0].url, kind="vllm"))
    w.published.keys(key_entry("sk-weir-1-mallory"))
    auth = w.router.pools.auth
    await w.until(lambda: endpoint(w).kind == "vllm" and auth.ring is not None and auth.ring.by_hash)
    return {"prompt": "bad", "headers": {"x-api-key": "sk-weir-1-mallory"}}


async def test_a_client_whose_requests_hang_does_not_keep_others_from_the_engine(world: Build) -> None:
    w = await world(loses_a_prompt)
    mallorys = await mallory(w)
    asked = tasks(w, 1, **mallorys)
    await w.until(lambda: endpoint(w).requests)
    await hold_s(w, 50)
    assert endpoint(w).progress.stalled
    asked += tasks(w, 1, **mallorys)
    await w.until(lambda: endpoint(w).requests == 2, "another try of hers")
    refused = await w.ask(**mallorys)
    assert (refused.status_code, "its requests" in refused.json()["error"]["message"]) == (503, True)
    assert (await w.ask()).status_code == 200
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    await end(*asked)


async def test_a_lost_request_does_not_keep_its_own_client_from_the_engine(world: Build) -> None:
    w = await world(loses_a_prompt)
    mallorys = await mallory(w)
    asked = tasks(w, 1, **mallorys)
    await w.until(lambda: endpoint(w).requests)
    await hold_s(w, 50)
    assert endpoint(w).progress.stalled
    assert (await w.ask(**mallorys | {"prompt": "good"})).status_code == 200
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    await end(*asked)


VIDEO = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}}]}]


@pytest.mark.parametrize("answers_probes", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        *((path, {}) for path in ("/v1/images/generations", "/v1/audio/speech", "/v1/audio/transcriptions")),
        *((path, {"messages": VIDEO}) for path in ("/v1/chat/completions", "/v1/embeddings")),
        ("/v1/responses", {"input": VIDEO}),
        ("/v1/score", {"text_1": VIDEO[0], "text_2": "x"}),
    ],
)
async def test_an_image_sound_or_video_has_the_time_limit_of_a_first_byte(
    world: Build, path: str, body: dict[str, Any], answers_probes: bool
) -> None:
    w = await world(None)
    await proven(w, "demo-0")
    w.published.fleet(entry("demo-0", w.engines[0].url, kind="vllm"))
    await w.until(lambda: endpoint(w).kind == "vllm")
    w.engines[0].behaviour = answers_probes_alone if answers_probes else hang
    asked = tasks(w, 1, path, **body)
    await w.until(lambda: endpoint(w).requests)
    hold = hold_s if answers_probes else hold_mute_s
    await hold(w, 1)
    endpoint(w).progress.came()
    await hold(w, 290)
    assert not endpoint(w).progress.stalled
    await hold(w, 20)
    assert endpoint(w).progress.stalled
    w.engines[0].release.set()
    assert (await asyncio.gather(*asked))[0].status_code == 200


async def hold_mute_s(w: World, seconds: int) -> None:
    let_pass(w, seconds)


@pytest.mark.parametrize("status", [400, 404, 429, 500])
async def test_an_engine_that_refuses_requests_counts_as_answering_its_clients(world: Build, status: int) -> None:
    w = await world(None)
    await proven(w, "demo-0")
    w.engines[0].behaviour = answers_probes_alone
    asked = tasks(w, 1)
    await w.until(lambda: endpoint(w).requests)
    await hold_s(w, 40)
    w.engines[0].script.append(reply({"error": {"message": "no"}}, status))
    assert (await w.ask()).status_code == status
    await hold_s(w, 40)
    assert not endpoint(w).progress.stalled
    await end(*asked)


async def test_an_engine_published_as_stalled_is_tried_with_a_request_if_no_probe_can_tell(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w)
    await end(*asked)
    w.engines[0].script += [reply({"error": {"message": "no"}}, 404)] * 2
    w.router._stall_probes.step()
    await w.until(lambda: endpoint(w).progress.by_requests)
    out = {"state": "unreachable", "routable": False, "reason": "stalled: no token"}
    well = entry("demo-1", w.engines[1].url)
    w.published.fleet(entry("demo-0", w.engines[0].url, **out), well)
    await w.until(lambda: not endpoint(w).routable)
    w.engines[0].behaviour = reply()
    answers = [(await w.ask()).headers["x-weir-instance"] for _ in range(4)]
    assert answers.count("demo-0") == 1
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    assert {(await w.ask()).headers["x-weir-instance"] for _ in range(2)} == {"demo-1"}


@pytest.mark.parametrize("holds", [False, True])
async def test_an_engine_that_refuses_probes_is_not_judged_by_requests_of_other_routers(
    world: Build, holds: bool
) -> None:
    async def refuses_probes(engine: Engine, request: Received, writer: Writer) -> None:
        is_probe = request.document.get("max_tokens") == 1 or request.document.get("input") == "1"
        await (reply({"error": {"message": "no"}}, 404) if is_probe else hang)(engine, request, writer)

    w = await world(None)
    await proven(w, "demo-0")
    w.engines[0].behaviour = refuses_probes
    asked = tasks(w, 1) if holds else []
    await w.until(lambda: endpoint(w).requests == holds)
    before = len(w.engines[0].received)
    for _ in range(60):
        endpoint(w).progress.read(1, 7.0, 7.0)
        let_pass(w, 1)
        w.router._stall_probes.step()
        await asyncio.gather(*w.router._stall_probes._asked)
    assert len(w.engines[0].received) > before, "probes"
    assert bool(endpoint(w).progress.stalled) is holds
    await end(*asked)


async def test_an_engine_without_completions_is_asked_for_an_embedding(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    asked = await stalled(w, "/v1/embeddings", input="hello")
    w.engines[0].script += [reply({"error": {"message": "no"}}, 404), reply(ANSWER)]
    w.router._stall_probes.step()
    await w.until(lambda: not endpoint(w).progress.stalled or w.router._check_connections(), "taken back")
    assert [one.target for one in w.engines[0].received[-2:]] == ["/v1/completions", "/v1/embeddings"]
    assert w.engines[0].received[-1].document == {"model": "llama", "input": "1"}
    await end(*asked)


@pytest.mark.parametrize("status", [503, 429])
async def test_an_engine_that_only_refuses_is_left_out(world: Build, status: int) -> None:
    w = await world(reply({"error": {"message": "full"}}, status), None)
    endpoint(w).progress.came()
    let_pass(w, 1)
    for _ in range(int(LEAST_S + CONFIRM_S) + 1):
        await w.ask()
        await w.ask()
        let_pass(w, 1)
    assert [bool(endpoint(w, f"demo-{at}").progress.stalled) for at in range(2)] == [True, False]


@pytest.mark.parametrize(
    ("path", "early"),
    [
        ("/v1/chat/completions", b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'),
        ("/v1/responses", b'event: response.created\ndata: {"type":"response.created","response":{"id":"r"}}\n\n'),
        ("/v1/messages", b'event: message_start\ndata: {"type":"message_start","message":{"content":[]}}\n\n'),
    ],
)
async def test_a_first_chunk_before_the_prefill_is_not_a_token(world: Build, path: str, early: bytes) -> None:
    async def greet(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        write_chunk(writer, early)
        await writer.drain()
        await engine.release.wait()

    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    w.engines[0].behaviour = greet
    asked = []
    for _ in range(int(LEAST_S + CONFIRM_S) + 2):
        seen = len(w.engines[0].received)
        asked += tasks(w, 2, path, stream=True, **DOORS[path])
        await w.until(lambda seen=seen: len(w.engines[0].received) > seen or endpoint(w).progress.stalled)
        await asyncio.sleep(0.02)
        let_pass(w, 1)
    assert endpoint(w).progress.stalled
    await end(*asked)


async def test_pings_of_an_api_server_do_not_count_as_tokens_of_its_engine(world: Build) -> None:
    async def pings(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        write_chunk(writer, events()[0])
        while not engine.release.is_set():
            await writer.drain()
            write_chunk(writer, b": ping\n\n")
            await asyncio.sleep(0.01)

    w = await world(pings, None)
    asked = tasks(w, 2, stream=True)
    await w.until(lambda: endpoint(w).decodes, "a stream that has begun")
    for _ in range(int(LEAST_S + CONFIRM_S) + 3):
        await asyncio.sleep(0.03)
        let_pass(w, 1)
    assert endpoint(w).progress.stalled
    await end(*asked)


async def test_a_stream_that_continues_counts_as_progress_for_all_requests_of_its_engine(world: Build) -> None:
    async def tokens(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        while not engine.release.is_set():
            write_chunk(writer, events()[0])
            await writer.drain()
            await asyncio.sleep(0.005)
        writer.write(b"0\r\n\r\n")

    w = await world(tokens)
    asked = tasks(w, 1, stream=True)
    await w.until(lambda: endpoint(w).decodes, "a stream that has begun")
    w.engines[0].behaviour = hang
    asked += tasks(w, 3)
    await w.until(lambda: endpoint(w).requests == 4)
    for _ in range(40):
        await asyncio.sleep(0.02)
        let_pass(w, 1)
    assert not endpoint(w).progress.stalled
    await end(*asked)


async def test_a_stream_that_stops_after_its_first_token_is_detected_too(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    w.engines[0].behaviour = first_then_wait
    asked = tasks(w, 2, stream=True)
    await w.until(lambda: endpoint(w).decodes)
    let_pass(w, LEAST_S + CONFIRM_S + 2)
    assert endpoint(w).progress.stalled
    await end(*asked)


async def test_requests_that_clients_abandon_do_not_hide_the_silence(world: Build) -> None:
    w = await world(None, None)
    await proven(w, "demo-0", "demo-1")
    w.engines[0].behaviour = hang
    for _ in range(4):
        asked = tasks(w, 2)
        await w.until(lambda: endpoint(w).requests)
        let_pass(w, 4)
        await end(*asked)
        await w.until(lambda: not endpoint(w).requests)
    assert endpoint(w).progress.stalled


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize", "/v1/messages/count_tokens"])
async def test_tokens_counted_by_an_api_server_are_not_counted_for_its_engine(world: Build, path: str) -> None:
    async def answers_alone(engine: Engine, request: Received, writer: Writer) -> None:
        await (hang if request.target in DOORS else reply({"count": 1}))(engine, request, writer)

    w = await world(None)
    await proven(w, "demo-0")
    w.engines[0].behaviour = answers_alone
    asked = tasks(w, 1)
    await w.until(lambda: endpoint(w).requests, "a request at the engine that hangs")
    answers = 0
    while not endpoint(w).progress.stalled and answers < 12:
        answers += (await w.ask(path)).status_code == 200
        let_pass(w, 2)
    assert (bool(endpoint(w).progress.stalled), answers > 2) == (True, True)
    await end(*asked)


async def test_figures_of_an_engine_that_only_counts_tokens_are_trusted(world: Build) -> None:
    w = await world(None)
    for _ in range(UNMOVED_READINGS + 1):
        for _ in range(SERVED):
            assert (await w.ask("/v1/messages/count_tokens")).status_code == 200
        endpoint(w).progress.read(0, 7.0, 5.0)
    assert not endpoint(w).progress.is_unmoved
    await w.until(lambda: not endpoint(w).unheld, "the end of the last one")


async def test_an_engine_that_only_counts_tokens_and_fails_at_everything_else_is_shut_out(world: Build) -> None:
    async def counts_alone(engine: Engine, request: Received, writer: Writer) -> None:
        await (reply({"no": 1}, 500) if request.target in DOORS else reply({"count": 1}))(engine, request, writer)

    w = await world(counts_alone, None, failure__breaker_failures=3, failure__retries=1)
    for path in ("/tokenize", "/v1/completions", "/v1/completions") * 6:  # the two engines take turns
        assert (await w.ask(path)).status_code == 200
    assert endpoint(w).breaker.state == "open"


async def test_a_prefill_that_hangs_counts_against_its_own_instance_and_not_the_decoder(world: Build) -> None:
    w = await world(None, None, None, flow__heavy="offload")
    w.published.fleet(
        entry("demo-0", w.engines[0].url, role="prefill", connector="nixl"),
        entry("demo-1", w.engines[1].url, role="decode", connector="nixl"),
        entry("demo-2", w.engines[2].url, role="decode", connector="nixl"),
    )
    await w.until(lambda: endpoint(w).role == "prefill")
    for name in ("demo-0", "demo-1", "demo-2"):
        endpoint(w, name).progress.came()
    let_pass(w, 1)
    w.engines[0].behaviour = hang
    asked = tasks(w, 2, prompt="hello " * 4000)
    await w.until(lambda: endpoint(w).requests == 2 and endpoint(w, "demo-1").requests, "prefills under way")
    let_pass(w, 3 * LEAST_S)
    assert [bool(endpoint(w, f"demo-{at}").progress.stalled) for at in range(3)] == [True, False, False]
    await end(*asked)
    await w.until(lambda: [endpoint(w, f"demo-{at}").unheld for at in range(3)] == [0, 0, 0])


async def test_a_decoder_that_hangs_is_detected_after_its_prefill(world: Build) -> None:
    w = await world(None, None, flow__heavy="offload")
    w.published.fleet(
        entry("demo-0", w.engines[0].url, role="prefill", connector="nixl"),
        entry("demo-1", w.engines[1].url, role="decode", connector="nixl"),
    )
    await w.until(lambda: endpoint(w).role == "prefill")
    for name in ("demo-0", "demo-1"):
        endpoint(w, name).progress.came()
    let_pass(w, 1)
    w.engines[0].behaviour = reply(PREFILLED)
    w.engines[1].behaviour = hang
    asked = tasks(w, 2, prompt="hello " * 4000)
    await w.until(lambda: len(w.engines[1].received) == 2, "decodes under way")
    let_pass(w, 3 * LEAST_S)
    assert [bool(endpoint(w, f"demo-{at}").progress.stalled) for at in range(2)] == [False, True]
    await end(*asked)


async def test_an_instance_of_unknown_load_prefills_only_if_no_other_can(world: Build) -> None:
    w = await world(None, None, None, flow__heavy="offload")
    w.published.fleet(
        entry("demo-0", w.engines[0].url, role="prefill", connector="nixl"),
        entry("demo-1", w.engines[1].url, role="prefill", connector="nixl"),
        entry("demo-2", w.engines[2].url, role="decode", connector="nixl"),
    )
    await w.until(lambda: endpoint(w, "demo-1").role == "prefill")
    endpoint(w).kv_usage = KV_UNKNOWN
    endpoint(w).touch()
    w.engines[1].behaviour = reply(PREFILLED)
    receipt = await w.receipt(await w.ask(prompt="hello " * 4000))
    assert receipt["prefill_instance"] == "demo-1"
