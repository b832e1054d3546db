"""The constants of an engine are found from requests that routers recorded."""

from dataclasses import astuple, replace

import pytest

from fleet.calibration.traffic import blocks, traffic_fit
from fleet.calibration.traffic.physical import KNOWN, MEASURED, UNKNOWN, physical_starts
from fleet.calibration.traffic.recorded import RecordedRequest, requests_of
from fleet.calibration.traffic.replayed import EngineConstants, errors_of, replay
from fleet.calibration.traffic.traffic_fit import FitStart, TooFewRequests, fit_traffic
from fleet.engine.law import law_of
from fleet.engine.profiles import FITS, profile
from fleet.tests.calibration.traffic import CPU, LIMITS, traffic
from router.contract.redis.receipt import Receipt

QWEN = law_of(profile("h100_sxm", "Qwen3-8B"))
SLOW = replace(
    QWEN,
    fixed_s=QWEN.fixed_s * 2,
    weights_s=QWEN.weights_s * 3,
    compute_s_per_token=QWEN.compute_s_per_token * 5,
    kv_s_per_token=QWEN.kv_s_per_token * 3,
    decode_s=QWEN.decode_s * 4,
)


@pytest.mark.slow
@pytest.mark.parametrize(("law", "rate", "ahead"), [(QWEN, 8, True), (SLOW, 2, False), (CPU, 5, True)])
def test_recorded_requests_give_the_times_of_the_next_two_hundred_within_the_stated_error(
    law: object, rate: float, ahead: bool
) -> None:
    """The times are known to 5 % only, and the engine's model is unknown."""
    limits = replace(LIMITS, async_scheduling=ahead)
    requests = traffic(law, rate, 630, limits=limits)  # type: ignore[arg-type]
    made = fit_traffic(requests[:430], LIMITS, physical_starts("unknown", None))
    stated, real = made.held_out, errors_of(replay(requests, made.constants, made.limits).pairs[430:])
    assert (made.fitted, stated.n, stated.blocks) == (400, 400, 4)
    for name, least in (("ttft_mean", 0.05), ("tpot_mean", 0.02), ("e2e_mean", 0.02)):
        assert abs(getattr(real, name)) < 1.5 * max(abs(getattr(stated, name)), least)
        assert abs(getattr(stated, name)) < 0.1
    assert abs(stated.ttft_p99 or 1) < 0.2


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use fewer requests and rounds."""
    for name, value in {"LEAST": 60, "ROUNDS": 3, "AGAIN": 1}.items():
        monkeypatch.setattr(traffic_fit, name, value)
    monkeypatch.setattr(blocks, "SIZE", 20)


@pytest.mark.usefixtures("brief")
def test_a_fit_is_better_than_its_start_and_stays_physical() -> None:
    """Constants that the requests do not determine stay near their start."""
    requests = traffic(SLOW, 2, 75)
    start = EngineConstants(QWEN, 0.01, 0.0)
    made = fit_traffic(requests, LIMITS, [FitStart(start, UNKNOWN)])
    before, after = (errors_of(replay(requests, one, LIMITS).pairs[10:]) for one in (start, made.constants))
    assert (made.fitted, made.held_out.n, made.held_out.blocks) == (60, 60, 3)
    assert before.tpot is not None
    assert after.tpot is not None
    assert after.tpot < before.tpot / 5
    assert made.held_out.ttft_p99 is None  # too few requests in a block
    law = made.constants.law
    for name in traffic_fit.SPREAD.keys() - {traffic_fit.API}:
        assert 0.5 < getattr(law, name) / getattr(QWEN, name) < 10, name


@pytest.mark.usefixtures("brief")
def test_with_an_exact_start_there_is_nothing_to_improve() -> None:
    """Requests that were not measured add to the load but give no point."""
    requests = traffic(QWEN, 4, 95, noise=0.0)
    unmeasured = [
        replace(one, ttft_s=None, tpot_s=None) if number % 4 == 3 else one for number, one in enumerate(requests)
    ]
    made = fit_traffic(unmeasured, LIMITS, [FitStart(EngineConstants(QWEN, 0.01, 0.0), MEASURED)])
    assert made.limits.async_scheduling
    # The arrival of a request is known only to within a step, because blocks begin after others.
    assert made.held_out.ttft_mean == pytest.approx(0, abs=0.05)
    assert made.held_out.tpot_mean == pytest.approx(0, abs=0.02)
    told = fit_traffic(unmeasured, LIMITS, [FitStart(EngineConstants(QWEN, 0.01, 0.0), MEASURED)], either=(False,))
    assert not told.limits.async_scheduling  # as the engine reported


@pytest.mark.usefixtures("brief")
def test_only_continued_fits_find_what_each_constant_contributes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most starts, common factors and shorter steps are tried and dropped."""
    replays, taken_apart = [], set()
    replay, of = traffic_fit.replay, traffic_fit._Parts._of
    monkeypatch.setattr(traffic_fit, "replay", lambda *given: replays.append(given) or replay(*given))
    monkeypatch.setattr(traffic_fit._Parts, "_of", lambda parts, step: taken_apart.add(parts) or of(parts, step))
    starts = [FitStart(EngineConstants(law_of(profile(*known)), 0.01, 0.0), UNKNOWN) for known in [*FITS][:4]]
    fit_traffic(traffic(SLOW, 2, 75), LIMITS, starts)
    scaled = len(starts) * (1 + len(traffic_fit.SCALED))
    assert 0 < len(taken_apart) < len(replays) - scaled


def test_blocks_are_consecutive_and_record_concurrent_requests() -> None:
    requests = traffic(QWEN, 8, 360)
    first, second, third = found = blocks.blocks_of(requests)
    assert [*first.counted, *second.counted, *third.counted] == requests[60:]
    under_way = next(number for number, one in enumerate(requests) if _ends(one) > requests[60].sent_s)
    assert all(_ends(one) <= requests[under_way].sent_s for one in requests[: first.first])
    assert _ends(first.requests[0]) > requests[under_way].sent_s
    assert requests[second.end : second.last][0] == third.counted[0]
    assert second.load == pytest.approx(8 * 900, rel=0.5)
    assert {one.span for one in blocks.joined(found)} == {(first.first, len(requests))}
    assert blocks.joined([first]) == [first]


def test_the_newest_blocks_and_blocks_of_other_loads_are_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "SIZE", 20)
    calm, busy, newest = traffic(QWEN, 2, 150), traffic(QWEN, 30, 20), traffic(QWEN, 2, 100)
    at_s, requests = 0.0, []
    for part in (calm, busy, newest):
        requests += [replace(one, sent_s=one.sent_s + at_s) for one in part]
        at_s = requests[-1].sent_s
    found = blocks.blocks_of(requests)
    assert len(found) == blocks.MOST
    assert found[-1].counted[-1] == requests[-1]
    assert max(one.load for one in found) > 3 * found[-1].load
    assert blocks.blocks_of(requests[:12]) == []


def _ends(one: RecordedRequest) -> float:
    return one.sent_s + (one.e2e_s or 0.0)


@pytest.mark.parametrize(
    ("model", "parallel", "expected"),
    [
        ("Qwen/Qwen3-32B", 2, {"Qwen3-32B"}),
        ("meta-llama/Llama-3.1-8B-Instruct", None, {"Llama-3.1-8B"}),
        ("/models/Qwen3-30B-A3B-FP8/", 1, {"Qwen3-30B-A3B"}),
        ("Qwen3-3", 1, None),
    ],
)
def test_a_fit_starts_at_the_profiles_of_the_served_model(
    model: str, parallel: int | None, expected: set[str] | None
) -> None:
    starts = physical_starts(model, parallel)
    assert {one.spread for one in starts} == {UNKNOWN if expected is None else KNOWN}
    if expected is None:
        assert len(starts) == len(FITS)
    else:
        laws = {law_of(profile("h100_sxm", name, parallel or 1)) for name in expected}
        assert laws <= {one.constants.law for one in starts}


def test_too_few_requests_are_refused_with_the_required_number() -> None:
    unmeasured = RecordedRequest(0.0, 100, 0, 10, None, None)
    too_long = [RecordedRequest(float(number), 400_000, 0, 2, 0.1, 0.1) for number in range(60)]
    with pytest.raises(TooFewRequests, match="99 recorded requests with a TTFT, the fit and its test need 150"):
        fit_traffic([unmeasured, *traffic(QWEN, 8, 99), *too_long], LIMITS, [])


def test_a_request_that_the_cache_cannot_hold_is_left_out() -> None:
    requests = [
        replace(one, prompt_tokens=400_000 if number == 1 else 100, cached_tokens=0)
        for number, one in enumerate(traffic(QWEN, 8, 3))
    ]
    assert [one.measured for one in replay(requests, EngineConstants(QWEN, 0.01, 0.0), LIMITS).pairs] == [
        requests[0],
        requests[2],
    ]


def test_cached_tokens_are_not_computed() -> None:
    def ttft_s(cached: int) -> float:
        (one,) = replay(
            [RecordedRequest(0.0, 8_000, cached, 2, None, None)], EngineConstants(QWEN, 0.01, 0.0), LIMITS
        ).pairs
        assert one.modelled.ttft_s is not None
        return one.modelled.ttft_s

    assert ttft_s(4_000) == pytest.approx(0.01 + QWEN.prefill_s(4_000, cached_tokens=4_000))
    assert ttft_s(0) == pytest.approx(0.01 + QWEN.prefill_s(8_000))


def test_errors_are_computed_for_each_request_and_for_the_means() -> None:
    requests = traffic(QWEN, 8, 120, noise=0.0)
    slower = [replace(one, ttft_s=(one.ttft_s or 0) * 2, tpot_s=(one.tpot_s or 0) * 2) for one in requests]
    found = errors_of(replay(slower, EngineConstants(QWEN, 0.01, 0.0), LIMITS).pairs)
    assert (found.n, found.ttft, found.ttft_mean, found.ttft_p99) == pytest.approx((120, 0.5, -0.5, -0.5))
    assert (found.tpot, found.tpot_mean, found.e2e_mean) == pytest.approx((0.5, -0.5, -0.5))
    assert errors_of([]).ttft is None


RECEIPT = {
    "request_id": "r",
    "at": 1000.0,
    "instance": "chat-0",
    "outcome": "ok",
    "prompt_tokens": 90,
    "actual_prompt_tokens": 100,
    "cached_tokens": 32,
    "output_tokens": 11,
    "queue_ms": 500.0,
    "ttft_ms": 700.0,
    "tpot_ms": 20.0,
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, RecordedRequest(1000.5, 100, 32, 11, 0.2, 0.02)),
        ({"actual_prompt_tokens": None, "cached_tokens": None}, RecordedRequest(1000.5, 90, 0, 11, 0.2, 0.02)),
        ({"cached_tokens": 100}, RecordedRequest(1000.5, 100, 99, 11, 0.2, 0.02)),
        ({"ttft_ms": None, "tpot_ms": None}, RecordedRequest(1000.5, 100, 32, 11, None, None)),  # not streamed
        ({"retries": 1}, RecordedRequest(1000.5, 100, 32, 11, None, None)),
        ({"outcome": "cancelled"}, RecordedRequest(1000.5, 100, 32, 11, None, None)),
        ({"instance": "chat-1", "prefill_instance": "chat-0"}, RecordedRequest(1000.5, 100, 32, 1, None, None)),
        ({"prefill_instance": "chat-1"}, RecordedRequest(1000.5, 100, 32, 11, None, None)),
        ({"output_tokens": None}, None),
    ],
)
def test_a_receipt_is_a_request_of_its_engine(changed: dict[str, object], expected: RecordedRequest | None) -> None:
    found = requests_of([Receipt(**{**RECEIPT, **changed})], "chat-0", 1.0)  # type: ignore[arg-type]
    assert [tuple(map(repr, map(_rounded, astuple(one)))) for one in found] == (
        [] if expected is None else [tuple(map(repr, astuple(expected)))]
    )


def _rounded(value: float | None) -> float | None:
    return round(value, 6) if isinstance(value, float) else value


def test_scaled_time_is_the_engines_own() -> None:
    (one,) = requests_of([Receipt(**RECEIPT)], "chat-0", 10.0)  # type: ignore[arg-type]
    assert (one.sent_s, one.ttft_s, one.tpot_s) == pytest.approx((10_005.0, 2.0, 0.2))
