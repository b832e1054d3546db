"""The collector gets one trace from the client through the router to the engines."""

import gzip
import json
import re
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from router.spans import names, outbox
from router.spans.settings import SpanSettings
from router.telemetry import tracer
from router.tests.conftest import World, entry
from router.tests.engine import ANSWER, Engine, engine, hang_up, reply

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = {"traceparent": f"00-{TRACE}-{SPAN}-01", "tracestate": "a=1"}
CHAT = "/v1/chat/completions"
TAKEN = reply({})


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(tracer, "MAKE_S", 0.01)
    async with engine(TAKEN) as made:
        yield made


def settings(collector: Engine, **changes: Any) -> SpanSettings:
    return SpanSettings(collector.url + "/v1/traces", delay_s=0.02, **{"ratio": 0.0, **changes})


async def exported(world: World, collector: Engine, count: int) -> dict[str, dict[str, Any]]:
    """Wait for the given number of spans of a trace; return them by name."""
    found: list[dict[str, Any]] = []

    def read() -> bool:
        bodies = [one.document["resourceSpans"][0] for one in collector.received]
        found[:] = [span for one in bodies for span in one["scopeSpans"][0]["spans"]]
        return len(found) >= count

    await world.until(read, f"{count} spans")
    assert len({span["traceId"] for span in found}) == 1
    return {span["name"]: span | {"attributes": attributes(span)} for span in found}


def attributes(span: dict[str, Any]) -> dict[str, Any]:
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


def parent(engine: Engine, request: int = 0) -> tuple[str, str, str]:
    """Return (trace, span, flags) as sent to an engine."""
    _, trace, span, flags = engine.received[request].headers["traceparent"].split("-")
    return trace, span, flags


async def test_a_sampled_stream_is_exported_from_its_arrival_to_its_last_byte(world: Any, collector: Engine) -> None:
    w = await world(None, spans=settings(collector))
    words = [{"role": "user", "content": "a secret"}]
    response = await w.ask(CHAT, messages=words, stream=True, user="alice", headers=SAMPLED)
    spans = await exported(w, collector, 4)
    server, chat, decode = spans[f"POST {CHAT}"], spans["chat llama"], spans["decode"]
    assert list(spans) == [f"POST {CHAT}", "decide", "chat llama", "decode"]
    assert [span["kind"] for span in spans.values()] == [2, 1, 3, 1]
    assert {span["traceId"] for span in spans.values()} == {TRACE}
    assert (server["parentSpanId"], server["traceState"], server["flags"]) == (SPAN, "a=1", 0x301)
    assert [spans[name]["parentSpanId"] for name in ("decide", "chat llama", "decode")] == [
        *(server["spanId"], server["spanId"], chat["spanId"])
    ]
    assert parent(w.engines[0]) == (TRACE, chat["spanId"], "01")
    assert w.engines[0].received[0].headers["tracestate"] == "a=1"
    assert server["attributes"] == {
        "http.request.method": "POST",
        "http.route": CHAT,
        "http.response.status_code": "200",
        "weir.request_id": response.headers["x-request-id"],
        "weir.pool": "demo",
        "weir.class": "warm",
        "weir.policy": "default",
        "weir.policy.version": "1",
        "weir.flow": "colocated",
    }
    assert spans["decide"]["attributes"].items() >= {"weir.strategy": "round_robin", "weir.candidates": "1"}.items()
    first = chat["attributes"].pop(names.FIRST_CHUNK)
    assert 0 < first < 5
    assert chat["attributes"] == {
        names.OPERATION: "chat",
        names.PROVIDER: "sim",
        names.MODEL: "llama",
        names.STREAM: True,
        names.INPUT: "100",
        names.CACHED: "64",
        names.OUTPUT: "3",
        names.CONVERSATION: (await w.receipt(response))["session"],
        "weir.instance": "demo-0",
        "http.response.status_code": "200",
        "server.address": "127.0.0.1",
        "server.port": str(w.engines[0].port),
    }
    times = [int(chat["startTimeUnixNano"]), int(decode["startTimeUnixNano"]), int(decode["endTimeUnixNano"])]
    assert int(server["startTimeUnixNano"]) < times[0] < times[1] <= times[2] <= int(server["endTimeUnixNano"])
    assert (server["status"], chat["status"]) == ({}, {})
    assert all(word not in one.body.decode() for one in collector.received for word in ("secret", "alice"))
    about = {
        one["key"]: one["value"] for one in collector.received[0].document["resourceSpans"][0]["resource"]["attributes"]
    }
    assert about["service.instance.id"] == {"stringValue": "router-1"}
    await w.until(lambda: w.router.recorder.spans["sent"] == 4)
    page = (await w.client.get("/metrics")).text
    assert 'weir_router_spans_total{result="sent"} 4.0' in page


async def test_each_attempt_is_a_span_and_the_parent_of_its_engine(world: Any, collector: Engine) -> None:
    w = await world(hang_up, None, spans=settings(collector, gzip=True), failure__retries=3)
    assert (await w.ask(headers=SAMPLED)).status_code == 200
    await w.until(lambda: w.router.recorder.spans["sent"] >= 5)
    sent = json.loads(gzip.decompress(collector.received[0].body))["resourceSpans"][0]["scopeSpans"][0]["spans"]
    attempts = [span for span in sent if span["name"] == "text_completion llama"]
    engines = {f"demo-{i}": one for i, one in enumerate(w.engines) if one.received}
    tried = {attributes(span)["weir.instance"]: span for span in attempts}
    assert tried.keys() == engines.keys()
    assert {name: span["spanId"] for name, span in tried.items()} == {
        name: parent(one)[1] for name, one in engines.items()
    }
    failed = [span for span in attempts if span["status"] == {"code": 2}]
    assert [attributes(span)["error.type"] for span in failed] == ["upstream_failed"] * (len(attempts) - 1)
    times = [(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])) for span in attempts]
    assert times == sorted(times)
    assert all(before[1] <= after[0] for before, after in pairwise(times))


async def test_a_failed_attempt_within_a_200_is_an_error_but_the_request_is_not(world: Any, collector: Engine) -> None:
    dead = reply({"error": {"message": "EngineCore is dead", "code": 500}})
    w = await world(dead, None, spans=settings(collector), failure__retries=3)
    w.router.pools.get("demo").endpoints["demo-1"].requests += 1  # so that the other engine is chosen first
    assert (await w.ask(headers=SAMPLED)).status_code == 200
    await w.until(lambda: w.router.recorder.spans["sent"] >= 5)
    sent = collector.received[0].document["resourceSpans"][0]["scopeSpans"][0]["spans"]
    attempts = [span for span in sent if span["name"] == "text_completion llama"]
    told = [(span["status"], attributes(span).get("error.type")) for span in attempts]
    assert told == [({"code": 2}, "failed_before_content"), ({}, None)]
    assert [span["status"] for span in sent if span["kind"] == 2] == [{}]


async def test_a_clients_mistake_is_not_an_error_of_the_server_span(world: Any, collector: Engine) -> None:
    w = await world(reply({"error": "too long"}, 400), spans=settings(collector, ratio=1.0))
    assert (await w.ask()).status_code == 400
    spans = await exported(w, collector, 3)
    assert spans["POST /v1/completions"]["status"] == {}
    assert spans["text_completion llama"]["attributes"]["error.type"] == "400"


async def test_an_offload_shows_prefill_and_decoder(world: Any, collector: Engine) -> None:
    held = ANSWER | {"usage": {"prompt_tokens": 100}, "kv_transfer_params": {"do_remote_prefill": True}}
    w = await world(reply(held), None, strategy="adaptive_v1", spans=settings(collector), **OFFLOADED)
    kv = {"connector": "nixl", "kv": {"bytes_per_token": 10}}
    roles = ("prefill", "decode")
    w.published.fleet(*(entry(f"demo-{i}", w.engines[i].url, role=role, **kv) for i, role in enumerate(roles)))
    await w.until(lambda: w.router.pools.get("demo").endpoints["demo-1"].role == "decode")
    response = await w.ask(prompt="the quick brown fox " * 400, stream=True, headers=SAMPLED)
    assert response.headers["x-weir-flow"] == "offload_nixl"
    spans = await exported(w, collector, 6)
    prefill, answer, transfer = spans["prefill"], spans["text_completion llama"], spans["transfer"]
    assert (parent(w.engines[0])[1], parent(w.engines[1])[1]) == (prefill["spanId"], answer["spanId"])
    assert (prefill["kind"], transfer["kind"], transfer["parentSpanId"]) == (3, 1, answer["spanId"])
    assert prefill["attributes"].items() >= {"weir.instance": "demo-0", "weir.connector": "nixl"}.items()
    assert int(transfer["attributes"]["weir.transfer_bytes"]) > 0
    assert int(prefill["endTimeUnixNano"]) <= int(answer["startTimeUnixNano"])


OFFLOADED = {"flow__heavy": "offload", "classes__heavy_new_tokens": 1000, "classes__warm_new_tokens": 100}


@pytest.mark.parametrize(
    ("given", "changes", "forwarded"),
    [
        ({}, {}, None),
        ({"traceparent": f"00-{TRACE}-{SPAN}-00"}, {"ratio": 1.0}, f"00-{TRACE}-{SPAN}-00"),
        (SAMPLED, {"sampler": "always_off"}, f"00-{TRACE}-{SPAN}-00"),
        ({"traceparent": f"00-{TRACE.upper()}-{SPAN}-01", "tracestate": "a=1"}, {}, None),
        ([("traceparent", f"00-{TRACE}-{SPAN}-01"), ("traceparent", f"00-{TRACE}-{SPAN}-01")], {}, None),
    ],
    ids=["no header", "unsampled", "not taken", "malformed", "repeated"],
)
async def test_engines_of_an_unsampled_request_are_asked_to_sample_nothing(
    world: Any, collector: Engine, given: Any, changes: dict[str, Any], forwarded: str | None
) -> None:
    w = await world(None, spans=settings(collector, **changes))
    await w.ask(headers=given)
    headers = w.engines[0].received[0].headers
    if forwarded is not None:
        assert headers["traceparent"] == forwarded
    else:
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-00", headers["traceparent"])
        assert TRACE not in headers["traceparent"]
        assert "tracestate" not in headers
    assert w.router.recorder.spans == {}


async def test_a_client_cannot_buy_more_samples_than_the_limit(world: Any, collector: Engine) -> None:
    w = await world(None, spans=settings(collector, per_s=1))
    for _ in range(3):
        await w.ask(headers=SAMPLED)
    assert [parent(w.engines[0], i)[2] for i in range(3)] == ["01", "00", "00"]
    assert parent(w.engines[0], 1)[:2] == (TRACE, SPAN)


async def test_failed_requests_are_also_sampled_if_configured(world: Any, collector: Engine) -> None:
    w = await world(hang_up, spans=settings(collector, errors=True), failure__retries=0)
    assert (await w.ask()).status_code == 502
    assert parent(w.engines[0])[2] == "00"
    spans = await exported(w, collector, 3)
    server = spans["POST /v1/completions"]
    assert (server["status"], server["attributes"]["error.type"]) == ({"code": 2}, "upstream_failed")
    assert "parentSpanId" not in server


async def test_a_refused_request_is_not_an_error_of_the_server(world: Any, collector: Engine) -> None:
    w = await world(None, spans=settings(collector, ratio=1.0))
    assert (await w.ask(model="other")).status_code == 404
    span = (await exported(w, collector, 1))["POST /v1/completions"]
    assert (span["status"], span["attributes"]["error.type"]) == ({}, "model_not_found")


async def test_without_spans_a_clients_header_passes_unchanged(world: Any) -> None:
    w = await world(None)
    odd = {"traceparent": "whatever", "tracestate": "a=1"}
    await w.ask(headers=odd)
    assert w.engines[0].received[0].headers.items() >= odd.items()


async def test_while_the_collector_is_unreachable_the_newest_spans_wait_and_the_rest_are_counted(
    world: Any, collector: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(outbox, "LONGEST_PAUSE_S", 0.05)
    away = settings(collector, sampler="always_on", per_s=1000, most=9, batch=6)
    collector.script[:] = [hang_up, reply({}, 503, "retry-after: 0"), *[hang_up] * 1000]
    w = await world(None, spans=away)
    asked, results = 20, w.router.recorder.spans
    for _ in range(asked):
        assert (await w.ask()).status_code == 200
    await w.until(lambda: len(collector.received) >= 3 and results["dropped"] == 3 * asked - away.most)
    assert results["sent"] == 0
    collector.script[:] = []
    await w.until(lambda: results["sent"] == away.most)
    assert results == {"dropped": 3 * asked - away.most, "sent": away.most, "rejected": 0}


def test_names_of_conventions_in_development_are_in_one_table() -> None:
    code = Path(names.__file__).resolve().parents[2]
    found = [
        path.relative_to(code).as_posix()
        for folder in ("router", "controlplane", "fleet")
        for path in (code / folder).rglob("*.py")
        if "gen_ai." in path.read_text() and "tests" not in path.parts
    ]
    assert found == ["router/spans/names.py"]
