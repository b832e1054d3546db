"""The constants of an engine are found from requests that routers recorded."""

import math
from dataclasses import astuple, replace

import pytest

from fleet.calibration import traffic_fit
from fleet.calibration.recorded import RecordedRequest, requests_of
from fleet.calibration.replayed import EngineConstants, errors_of, replay
from fleet.calibration.traffic_fit import TooFewRequests, fit_traffic
from fleet.engine.law import law_of
from fleet.engine.profiles import profile
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
def test_a_hundred_requests_give_the_times_of_the_next_two_hundred(law: object, rate: float, ahead: bool) -> None:
    """With times that are only known to 5 %."""
    limits = replace(LIMITS, async_scheduling=ahead)
    made = fit_traffic(traffic(law, rate, 330, limits=limits), LIMITS)  # type: ignore[arg-type]
    held_out = made.held_out
    assert (made.fitted, held_out.n) == (100, 200)
    assert abs(held_out.tpot_mean or 1) < 0.05
    assert abs(held_out.e2e_mean or 1) < 0.05
    assert abs(held_out.ttft_mean or 1) < 0.1
    assert abs(held_out.ttft_p99 or 1) < 0.2


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer requests, starts and rounds."""
    values = {"FITTED": 30, "HELD_OUT": 30, "LEAST": 60, "WARM_UP": 2, "ROUNDS": 1, "STARTS": 1}
    for name, value in values.items():
        monkeypatch.setattr(traffic_fit, name, value)
    monkeypatch.setattr(traffic_fit, "FITS", [("h100_sxm", "Qwen3-8B", 1)])
    monkeypatch.setattr("fleet.calibration.fit.NARROWER", 2)
    monkeypatch.setattr("fleet.calibration.fit.REWEIGHTED", 1)


@pytest.mark.usefixtures("brief")
def test_a_fit_is_better_than_its_start() -> None:
    requests = traffic(SLOW, 2, 62)
    start = EngineConstants(QWEN, 0.01, 0.0)
    made = fit_traffic(requests, LIMITS, [start])
    before = errors_of(replay(requests, start, LIMITS).pairs[32:])
    assert (made.fitted, made.held_out.n) == (24, 36)
    assert before.tpot is not None
    assert made.held_out.tpot is not None
    assert made.held_out.tpot < before.tpot / 5
    assert made.held_out.ttft_p99 is None  # too few requests
    assert all(math.isfinite(value) and value >= 0 for value in astuple(made.constants.law))


@pytest.mark.usefixtures("brief")
def test_with_an_exact_start_there_is_nothing_to_improve() -> None:
    """Also none of the requests that were not measured counts, but each is part of the load."""
    requests = traffic(QWEN, 20, 80, noise=0.0)
    unmeasured = [
        replace(one, ttft_s=None, tpot_s=None) if number % 4 == 3 else one for number, one in enumerate(requests)
    ]
    made = fit_traffic(unmeasured, LIMITS, [EngineConstants(QWEN, 0.01, 0.0)])
    assert made.limits.async_scheduling
    assert made.held_out.ttft == pytest.approx(0, abs=0.01)
    assert made.held_out.tpot == pytest.approx(0, abs=0.01)  # what ran beside the last ones is not known


def test_too_few_requests_are_named_with_how_many_it_takes() -> None:
    unmeasured = RecordedRequest(0.0, 100, 0, 10, None, None)
    too_long = [RecordedRequest(float(number), 400_000, 0, 2, 0.1, 0.1) for number in range(60)]
    with pytest.raises(TooFewRequests, match="99 recorded requests with a TTFT, the fit and its test need 150"):
        fit_traffic([unmeasured, *traffic(QWEN, 8, 99), *too_long], LIMITS)


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


def test_errors_are_of_each_request_and_of_the_means() -> None:
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
