"""Loads, receipts, guards, paces, spans and recorded traffic end a prefill at the first content, whichever it is."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from router.pool.load.pace import Pace
from router.spans import names
from router.telemetry import tracer
from router.tests.deliveries import split
from router.tests.engine import Behaviour, Engine, Received, Writer, engine, write_chunk, write_head
from router.tests.liar.plans import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from router.tests.spans.test_requests import SAMPLED, TAKEN, exported, settings
from router.tests.test_traffic import recorded

PAUSE_S = 0.05
TOKENS = 3_000
WORDS = "word " * TOKENS
USED = {"prompt_tokens": TOKENS, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 0}}
RESPONSE_USED = {"input_tokens": TOKENS, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 0}}
MESSAGE_USED = {"input_tokens": TOKENS, "output_tokens": 1, "cache_read_input_tokens": 0}
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": WORDS}]},
    COMPLETIONS: {"prompt": WORDS},
    MESSAGES: {"messages": [{"role": "user", "content": WORDS}], "max_tokens": 9},
    RESPONSES: {"input": WORDS},
}


def delta(**fields: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": fields}]}


def text(said: str) -> dict[str, Any]:
    return {"choices": [{"index": 0, "text": said}]}


def block(kind: str, **part: Any) -> dict[str, Any]:
    return {"type": f"content_block_{kind}", "index": 0, "delta" if kind == "delta" else "content_block": part}


CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
STARTED = {"type": "message_start", "message": {"role": "assistant", "content": [], "usage": MESSAGE_USED}}
CREATED = {"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}}
IN_PROGRESS = {**CREATED, "type": "response.in_progress"}
ROLE = delta(role="assistant", content="")
ENDS: dict[str, list[Any]] = {
    CHAT: [{"choices": [{"delta": {}, "finish_reason": "stop"}]}, {"choices": [], "usage": USED}, "[DONE]"],
    COMPLETIONS: [{"choices": [{"text": "", "finish_reason": "stop"}]}, {"choices": [], "usage": USED}, "[DONE]"],
    MESSAGES: [
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ],
    RESPONSES: [
        {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "usage": RESPONSE_USED}}
    ],
}
# (API, events before the first content, the first content)
CASES: dict[str, tuple[str, list[Any], Any]] = {
    "chat, text": (CHAT, [ROLE, delta(content=None, tool_calls=[])], delta(content="w")),
    "chat, reasoning": (CHAT, [ROLE, delta(reasoning="")], delta(reasoning="w")),
    "chat, SGLang's reasoning": (CHAT, [ROLE, delta(reasoning_content=None)], delta(reasoning_content="w")),
    "chat, tool call": (CHAT, [ROLE, delta(content="")], delta(tool_calls=[CALL])),
    "chat, refusal": (CHAT, [ROLE, delta(refusal=None)], delta(refusal="w")),
    "completions, text": (COMPLETIONS, [text(""), text("")], text("w")),
    "messages, text": (
        MESSAGES,
        [STARTED, {"type": "ping"}, block("start", type="text", text="")],
        block("delta", type="text_delta", text="w"),
    ),
    "messages, thinking": (
        MESSAGES,
        [STARTED, block("start", type="thinking", thinking="")],
        block("delta", type="thinking_delta", thinking="w"),
    ),
    "messages, tool call": (
        MESSAGES,
        [STARTED, {"type": "ping"}],
        block("start", type="tool_use", id="toolu_1", name="look", input={}),
    ),
    "responses, text": (
        RESPONSES,
        [CREATED, IN_PROGRESS, {"type": "response.output_item.added", "item": {"type": "message", "content": []}}],
        {"type": "response.output_text.delta", "delta": "w"},
    ),
    "responses, reasoning": (
        RESPONSES,
        [CREATED, IN_PROGRESS, {"type": "response.output_item.added", "item": {"type": "reasoning"}}],
        {"type": "response.reasoning_text.delta", "delta": "w"},
    ),
    "responses, summary": (
        RESPONSES,
        [CREATED, IN_PROGRESS, {"type": "response.reasoning_summary_part.added", "part": {"text": ""}}],
        {"type": "response.reasoning_summary_text.delta", "delta": "w"},
    ),
    "responses, tool call": (
        RESPONSES,
        [CREATED, IN_PROGRESS],
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "look", "arguments": ""}},
    ),
}


def event(document: Any) -> bytes:
    return b"data: %b\n\n" % (document if isinstance(document, str) else json.dumps(document)).encode()


def slow(before: list[Any], parts: list[Any], seen: list[tuple[int, bool]], loads: Any) -> Behaviour:
    """Pause after each event before the content, and record the loads there and after the content."""

    async def behave(engine: Engine, request: Received, writer: Writer) -> None:
        write_head(writer, 200, "content-type: text/event-stream", "transfer-encoding: chunked")
        for number, part in enumerate((*before, *parts)):
            write_chunk(writer, event(part))
            await writer.drain()
            if number <= len(before):
                await asyncio.sleep(PAUSE_S)
                seen.append(loads())
        writer.write(b"0\r\n\r\n")

    return behave


@pytest.fixture
async def collector(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Engine]:
    monkeypatch.setattr(tracer, "MAKE_S", 0.01)
    async with engine(TAKEN) as made:
        yield made


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int, float]]:
    """The prompts reported to the pace, as (new tokens, cached tokens, seconds)."""
    told: list[tuple[int, int, float]] = []
    learn = Pace.prefill

    def prefill(pace: Pace, tokens: int, cached: int, seconds: float, *of: str) -> bool:
        told.append((tokens, cached, seconds))
        return learn(pace, tokens, cached, seconds, *of)

    monkeypatch.setattr(Pace, "prefill", prefill)
    return told


@pytest.mark.parametrize("name", CASES)
async def test_the_first_content_ends_the_prefill_for_everything_that_measures_it(
    world: Any, collector: Engine, learned: list[tuple[int, int, float]], name: str
) -> None:
    path, before, content = CASES[name]
    w = await world(None, spans=settings(collector))
    await split(w, 1.0)
    at = w.router.pools.get("demo").endpoints["demo-0"]
    seen: list[tuple[int, bool]] = []
    guard = w.router.recorder.delivery(w.router.pools.get("demo"))

    def loads() -> tuple[int, bool]:
        guard.look(time.perf_counter())
        return at.decodes, at.prefill_tokens > 0

    w.engines[0].behaviour = slow(before, [content, *ENDS[path]], seen, loads)
    body = {"model": "llama", "stream": True, **BODIES[path]}
    response = await w.client.post(path, json=body, headers=SAMPLED)
    receipt = await w.receipt(response)
    assert receipt["result"] == "served"
    assert seen == [*[(0, True)] * len(before), (1, False)]

    ttft_s, least_s = receipt["ttft_ms"] / 1000, (len(before) - 0.5) * PAUSE_S
    assert ttft_s > receipt["first_byte_ms"] / 1000 + least_s
    assert receipt["ttft_ms"] + 2 * receipt["tpot_ms"] <= receipt["e2e_ms"] + 1
    (cell,) = guard.read("candidate", receipt["class"]).values()
    assert (cell.ttft.n, math.exp(cell.ttft.y)) == (1, pytest.approx(receipt["ttft_ms"], rel=0.01))
    assert learned == [(TOKENS, 0, pytest.approx(ttft_s, rel=0.2))]
    assert learned[0][2] > least_s
    spans = await exported(w, collector, 4)
    chat = next(span for title, span in spans.items() if names.FIRST_CHUNK in span["attributes"])
    assert chat["attributes"][names.FIRST_CHUNK] > least_s
    starts = [int(span["startTimeUnixNano"]) / 1e9 for span in (chat, spans["decode"])]
    assert starts[1] - starts[0] > least_s
    (entry,) = await recorded(w)
    assert entry["ttft_ms"] == pytest.approx(receipt["ttft_ms"], rel=0.01)
