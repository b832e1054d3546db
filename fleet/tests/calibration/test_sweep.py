"""The sweep finds the constants of a simulated engine, within the given time."""

import asyncio
import re
import time
from dataclasses import replace

import httpx
import pytest

from fleet.calibration.engine_facts import EngineFacts, engine_facts
from fleet.calibration.measure import Calibrated, CannotCalibrate, MeasuredEngine, measure, measure_traffic
from fleet.calibration.plan import SweepLoad, plan_loads
from fleet.calibration.streamed_request import NotAnswered, NotStreamed, TokenTimes, stream_completion
from fleet.calibration.sweep import Sweep, sample
from fleet.calibration.traffic.traffic_fit import TooFewRequests
from fleet.engine.law import API_S, API_S_PER_TOKEN, law_of
from fleet.engine.profiles import profile
from fleet.kinds.sim.sim import SIM, SimSpec
from fleet.tests.calibration.virtual import URL, InProcess, run, sim_engine
from router.contract.metrics.engine_metrics import VLLM_SCRAPE
from router.contract.redis.receipt import Receipt

TARGET = MeasuredEngine("chat-0", URL, "m", SIM, SimSpec())
QUIET = lambda text: None  # noqa: E731


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the sweep to one round, as in virtual time one round gives the same as nine."""
    monkeypatch.setattr("fleet.calibration.sweep.MOST_ROUNDS", 1)


async def measured(seconds: float = 120, **flags: object) -> Calibrated:
    return await measure(TARGET, seconds, QUIET, anyway=False, transport=sim_engine(**flags))


def test_the_constants_of_an_engine_are_found_by_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(monkeypatch, measured)
    law, found = law_of(profile()), made.fitted.law
    assert made.fitted.ttft_error < 0.01
    assert made.fitted.tpot_error < 0.01
    assert made.fitted.api_s == pytest.approx(API_S, rel=0.05)
    assert found.step_s(1, 0, 0, 1) == pytest.approx(law.step_s(1, 0, 0, 1), rel=0.02)
    tokenizing_s = 6000 * API_S_PER_TOKEN  # inseparable from the steps in a sweep
    assert found.prefill_s(6000) == pytest.approx(law.prefill_s(6000) + tokenizing_s, rel=0.02)
    assert found.step_s(20, 0, 30_000, 20) == pytest.approx(law.step_s(20, 0, 30_000, 20), rel=0.02)
    assert made.notes == ()


def test_an_engine_in_scaled_time_is_measured_in_its_own_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(monkeypatch, lambda: measured(time_scale=1.5))
    assert made.fitted.law.step_s(1, 0, 0, 1) == pytest.approx(law_of(profile()).step_s(1, 0, 0, 1), rel=0.05)


def test_the_engine_reports_its_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    made = run(monkeypatch, lambda: measured(kv_blocks=500, block_size=32, max_model_len=4096))
    assert (made.limits.kv_blocks, made.limits.block_size, made.limits.window) == (500, 32, 4096)
    assert max(point.prompt_tokens for point in made.points) < 4096


def test_a_sweep_ends_in_time_with_the_points_measured_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    async def made() -> tuple[float, int]:
        async with httpx.AsyncClient(base_url=URL, transport=sim_engine()) as client:
            began = time.monotonic()
            points = await Sweep(client, "m", 5, 1.0).run(plan_loads(131_072, None, 256))
            return time.monotonic() - began, len(points)

    took, points = run(monkeypatch, made)
    assert took <= 5
    assert 0 < points < len(plan_loads(131_072, None, 256))


def test_no_two_prompts_have_the_same_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hits() -> str:
        transport = sim_engine()
        await measure(TARGET, 30, QUIET, anyway=False, transport=transport)
        async with httpx.AsyncClient(base_url=URL, transport=transport) as client:
            return (await client.get("/metrics")).text

    page = run(monkeypatch, hits)
    assert 'vllm:prefix_cache_hits_total{model_name="m",engine="0"} 0.0' in page


async def beside_another(anyway: bool) -> Calibrated:
    """Measure while someone else's long answer is being generated."""
    transport = sim_engine()
    async with httpx.AsyncClient(base_url=URL, transport=transport) as client:
        other = asyncio.create_task(stream_completion(client, "m", "somebody's " * 2_000, 20_000))
        await asyncio.sleep(1)
        try:
            return await measure(TARGET, 20, QUIET, anyway=anyway, transport=transport)
        finally:
            other.cancel()


def test_a_busy_engine_is_not_measured_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CannotCalibrate, match="1 request runs on chat-0 and would distort the measurement: drain it"):
        run(monkeypatch, lambda: beside_another(anyway=False))


def test_a_busy_engine_is_measured_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, lambda: beside_another(anyway=True)).points


def test_requests_that_others_sent_in_the_meantime_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def made() -> Calibrated:
        transport = sim_engine()
        async with httpx.AsyncClient(base_url=URL, transport=transport) as client:
            sweep = asyncio.create_task(measure(TARGET, 20, QUIET, anyway=False, transport=transport))
            await asyncio.sleep(1)
            await stream_completion(client, "m", "somebody's long prompt " * 6_000, 4)
            return await sweep

    note, *_ = run(monkeypatch, made).notes
    assert note.endswith("of the prompt tokens in that time were from other clients")


def times(*marks: tuple[float, int], sent_at: float = 0.0, prompt: int = 100) -> TokenTimes:
    return TokenTimes(sent_at, prompt, marks)


def test_the_time_per_token_counts_only_while_all_of_a_group_decoded() -> None:
    early = times((1.0, 1), (2.0, 11), (3.0, 12), (4.0, 13), (5.0, 14))
    late = times((2.0, 1), (3.0, 2), (4.0, 3), (5.0, 4), (6.0, 5))
    found = sample([early, late], 1.0)
    assert found.tpot_s == pytest.approx(1.0)  # the ten tokens of the first second belong to a single request
    assert found.context == 100 + 12.5 + 100 + 2.5
    assert found.ttft_s is None


def test_an_answer_in_one_piece_gives_no_times() -> None:
    late = [(1.0 + 1e-5 * token, token) for token in range(1, 25)]
    found = sample([times(*late)], 1.0)
    assert (found.ttft_s, found.tpot_s) == (None, None)


def test_a_load_that_takes_too_long_is_neither_repeated_nor_followed_by_a_larger_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def made() -> list[tuple[int, int]]:
        async with httpx.AsyncClient(base_url=URL, transport=sim_engine()) as client:
            plan = [SweepLoad(1, 16, 24), SweepLoad(1, 16_384, 24), SweepLoad(1, 30_000, 24)]
            return [(point.prompt_tokens, point.n) for point in await Sweep(client, "m", 7, 1.0).run(plan)]

    monkeypatch.setattr("fleet.calibration.sweep.MOST_ROUNDS", 3)
    points = run(monkeypatch, made)
    assert [n for _, n in points] == [3, 1]
    assert points[1][0] == pytest.approx(16_384, rel=0.05)


def answering(status: int, kind: str, body: bytes) -> InProcess:
    async def app(scope: object, receive: object, send: object) -> None:
        head = {"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode())]}
        await send(head)  # type: ignore[operator]
        await send({"type": "http.response.body", "body": body})  # type: ignore[operator]

    return InProcess(app)


@pytest.mark.parametrize(
    ("status", "kind", "body", "error", "says"),
    [
        (404, "application/json", b'{"detail":"no such model"}', NotAnswered, "answers 404: .*no such model"),
        (200, "application/json", b'{"choices":[]}', NotStreamed, "does not stream"),
        (200, "text/event-stream", b"data: [DONE]\n\n", NotStreamed, "no tokens"),
        (200, "text/event-stream", b'data: {"error":{"message":"worn out"}}\n\n', NotAnswered, "failed: .*worn out"),
        (200, "text/event-stream", b'event: error\ndata: {"message":"worn out"}\n\n', NotAnswered, "failed: worn out"),
        (
            200,
            "text/event-stream",
            b'data: {"choices":[{"text":"a","finish_reason":"abort"}]}\n\n',
            NotAnswered,
            "abandoned the answer: finish_reason abort",
        ),
        (
            200,
            "text/event-stream",
            b'data: {"choices":[{"text":"a"}],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\n',
            NotAnswered,
            "cut after 2 tokens: it has neither a finish_reason nor .DONE.",
        ),
        (500, "text/plain", b"x" * 10_000_000, NotAnswered, "answers 500: x{200}$"),
        (200, "text/event-stream", b"data: " + b"x" * 2_000_000, NotStreamed, "longer than 1048576 bytes"),
        (200, "text/event-stream", b"data: {\n\n", NotStreamed, "no JSON object: {"),
        (200, "text/event-stream", b"data: [1]\n\n", NotStreamed, "no JSON object"),
        (
            200,
            "text/event-stream",
            b'data: {"usage":{"prompt_tokens":1e300}}\n\n',
            NotStreamed,
            "allowed: 0 to 1000000000",
        ),
        (200, "text/event-stream", b'data: {"usage":[1]}\n\n', NotStreamed, "usage.prompt_tokens is None"),
    ],
)
async def test_an_answer_that_is_not_a_stream_of_tokens_is_reported_as_such(
    status: int, kind: str, body: bytes, error: type[Exception], says: str
) -> None:
    async with httpx.AsyncClient(base_url=URL, transport=answering(status, kind, body)) as client:
        with pytest.raises(error, match=says):
            await stream_completion(client, "m", "hello", 4)


async def test_an_engine_that_counts_only_at_the_end_is_counted_by_its_chunks() -> None:
    chunk = b'data: {"choices":[{"text":"a"}]}\n\n'
    end = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
    transport = answering(200, "text/event-stream; charset=utf-8", chunk * 3 + end)
    async with httpx.AsyncClient(base_url=URL, transport=transport) as client:
        found = await stream_completion(client, "m", "hello", 3)
    assert (found.prompt_tokens, [tokens for _, tokens in found.marks]) == (7, [1, 2, 3])


@pytest.mark.parametrize(
    ("end", "usage"), [(b"\n\n", b""), (b"\r\n\r\n", b', "usage": {"prompt_tokens":7,"completion_tokens":%d}')]
)
async def test_events_without_content_do_not_count_as_the_first_token(end: bytes, usage: bytes) -> None:
    texts = (b"", b"", b"a", b"", b"b")
    told = [usage % max(0, number - 1) if usage else b"" for number in range(5)]
    chunks = [b'data: {"choices":[{"text":"%b"}]%b}' % both for both in zip(texts, told, strict=True)]
    last = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}'
    body = end.join([b": ping", *chunks, last, b"data: [DONE]", b""])
    async with httpx.AsyncClient(base_url=URL, transport=answering(200, "text/event-stream", body)) as client:
        found = await stream_completion(client, "m", "hello", 3)
    assert (found.prompt_tokens, [tokens for _, tokens in found.marks]) == (7, [1, 2, 3])


async def test_an_unreachable_engine_is_reported_as_such() -> None:
    says = "http://127.0.0.1:1 does not answer: All connection attempts failed"
    async with httpx.AsyncClient(base_url="http://127.0.0.1:1") as client:
        with pytest.raises(NotAnswered, match=re.escape(says)):
            await stream_completion(client, "m", "hello", 4)
    with pytest.raises(NotAnswered, match=re.escape(says)):
        await measure(replace(TARGET, url="http://127.0.0.1:1"), 5, QUIET, anyway=False)


def pages(models: bytes, metrics: bytes, drip: bool = False) -> InProcess:
    async def app(scope: dict[str, object], receive: object, send: object) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
        body = models if scope["path"] == "/v1/models" else metrics
        while drip:
            await send({"type": "http.response.body", "body": b" ", "more_body": True})  # type: ignore[operator]
            await asyncio.sleep(0.02)
        await send({"type": "http.response.body", "body": body})  # type: ignore[operator]

    return InProcess(app)


async def facts(transport: httpx.AsyncBaseTransport) -> EngineFacts:
    async with httpx.AsyncClient(base_url=URL, transport=transport) as client:
        return await engine_facts(client, "m", "/v1/models", "/metrics", VLLM_SCRAPE)


@pytest.mark.parametrize("window", [b"-1", b"1e999", b'"many"', b"true", b"99999999999999999999999", b"null", b"[]"])
async def test_an_impossible_window_is_unknown(window: bytes) -> None:
    found = await facts(pages(b'{"data":[{"id":"m","max_model_len":%b}]}' % window, b""))
    assert found.window is None


@pytest.mark.parametrize("models", [b"", b"{", b"[]", b'{"data":{}}', b'{"data":[1]}', b"[" * 100_000])
async def test_models_that_cannot_be_read_name_no_window(models: bytes) -> None:
    assert (await facts(pages(models, b""))).window is None


@pytest.mark.parametrize("scale", [b"0", b"-1", b"1.2.3", b"e", b"1e999"])
async def test_an_impossible_time_scale_counts_as_real_time(scale: bytes) -> None:
    assert (await facts(pages(b"{}", b"weir_sim_time_scale %b\n" % scale))).time_scale == 1.0


@pytest.mark.parametrize(
    ("answer", "version"),
    [
        (b'{"version":"0.13.1"}', (0, 13)),
        (b'{"version":"0.24.0+weir.sim"}', (0, 24)),
        (b'{"version":"0.1.dev1+g0123456"}', None),  # built from source without tags
        (b'{"version":7}', None),
        (b'{"detail":"Not Found"}', None),
        (b"[1]", None),
        (b"<html>", None),
    ],
)
async def test_the_version_of_an_engine_is_read_where_it_names_one(
    answer: bytes, version: tuple[int, int] | None
) -> None:
    assert (await facts(pages(b"{}", answer))).version == version


VLLM_SAYS = (
    b'{"vllm_config":{"scheduler_config":{"max_num_seqs":64,"max_num_batched_tokens":2048,"async_scheduling":true}}}'
)
SGLANG_SAYS = b'{"max_running_requests":48,"chunked_prefill_size":4096,"disable_overlap_schedule":true}'


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (VLLM_SAYS, (64, 2048, True)),
        (SGLANG_SAYS, (48, 4096, False)),
        (b'{"max_running_requests":null,"chunked_prefill_size":-1,"disable_overlap_schedule":0}', (None, None, None)),
        (b'{"vllm_config":"model=..."}', (None, None, None)),
        (b"[1]", (None, None, None)),
        (b"<html>", (None, None, None)),
    ],
)
async def test_the_scheduling_of_an_engine_is_read_if_it_reports_it(answer: bytes, told: tuple[object, ...]) -> None:
    found = await facts(pages(b"{}", answer))
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.async_scheduling) == told


async def test_endless_pages_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotAnswered, match="GET /metrics answers with more than 4194304 bytes"):
        await facts(pages(b"{}", b"x" * 5_000_000))
    monkeypatch.setattr("fleet.calibration.engine_facts.ANSWER_S", 0.2)
    with pytest.raises(NotAnswered, match=r"GET /v1/models took longer than 0\.2 s"):
        await facts(pages(b"{}", b"", drip=True))


def test_a_fit_to_traffic_reads_only_the_facts_of_the_engine() -> None:
    receipts = [Receipt(request_id=str(number), at=float(number), instance="chat-0") for number in range(3)]

    async def made() -> Calibrated:
        return await measure_traffic(TARGET, receipts, [], QUIET, transport=sim_engine(kv_blocks=500))

    with pytest.raises(TooFewRequests, match="0 recorded requests"):
        asyncio.run(made())
