"""Learn prefill rate, transfer rate and setup time from a pool's answers."""

import pytest

from router.contract.redis.published import FleetValue
from router.policy.types import Decision, Rates
from router.pool.health.progress import EQUAL_COST_TOKENS
from router.pool.load.pace import FORGET, PROMPTS, LinearFit, Pace
from router.pool.pool import Pool
from router.request.call import Call
from router.request.offload import Offload
from router.telemetry.rates import RateEstimates, lone_prefill
from router.tests.conftest import fleet, instance
from router.upstream.answer.used import Usage


def pool() -> Pool:
    made = Pool("demo")
    entries = [instance("demo-0", "http://127.0.0.1:1", kv={"bytes_per_token": 100})]
    made.take_fleet(fleet(*entries))
    return made


def answered(
    tokens: int, ttft_ms: float, *, alone: bool = True, cached: int | None = 0, foreseen: int | None = None
) -> Call:
    """Record an answer. `foreseen`: cached tokens predicted by the decision; None: no decision."""
    call = Call("r", "/v1/completions", 0.0, 0.0, pool=pool())
    if foreseen is not None:
        call.decision = Decision("demo-0", "warm", "colocated", "lpwl", "", (), foreseen, tokens - foreseen, ())
    call.outcome.alone, call.outcome.ttft_ms, call.outcome.usage = alone, ttft_ms, Usage(tokens, cached, 10)
    return call


def moved(size: int, seconds: float, outcome: str = "ok", **changes: object) -> Call:
    call = Call("r", "/v1/completions", 0.0, 0.0, pool=pool())
    offload = call.outcome.offload = Offload(
        "nixl", "demo-0", outcome=outcome, sent=1.0, arrived=1.0 + seconds, transfer_bytes=size
    )
    for name, value in changes.items():
        setattr(offload, name, value)
    return call


def test_nothing_is_known_at_first() -> None:
    assert RateEstimates().rates.prefill_tokens_per_s == 0
    assert LinearFit().fitted() == (0.0, 0.0)


def test_the_prefill_rate_is_the_median_of_long_prompts_that_ran_alone() -> None:
    seen = RateEstimates()
    for tokens, ttft_ms in ((1000, 100), (2000, 100), (4000, 100)):
        seen.ended(answered(tokens, ttft_ms))
    assert seen.rates.prefill_tokens_per_s == 20_000
    assert seen.rates.kv_bytes_per_token == 100


@pytest.mark.parametrize(
    "call",
    [
        answered(1000, 100, alone=False),
        answered(100, 100),
        answered(1000, 100, cached=900),
        answered(1000, 100, cached=None, foreseen=900),
    ],
    ids=["others ran beside it", "too short", "most of it was cached", "a hit is foreseen that is not reported"],
)
def test_prompts_that_report_nothing_are_passed_over(call: Call) -> None:
    seen = RateEstimates()
    seen.ended(call)
    assert seen.rates.prefill_tokens_per_s == 0


def test_old_prefills_are_forgotten() -> None:
    seen = RateEstimates()
    seen.ended(answered(1000, 1))
    for _ in range(PROMPTS):
        seen.ended(answered(1000, 1000))
    assert seen.rates.prefill_tokens_per_s == 1000


def test_cached_tokens_of_prompts_that_ran_alone_are_counted_separately() -> None:
    assert lone_prefill(answered(3_000, 100, cached=1_000)) == (2_000, 1_000, 0.1)
    elsewhere = moved(100, 0.1, alone=True, prefill_ms=500.0, prefill_usage=Usage(1_000))
    elsewhere.outcome.usage = Usage(1_200, 0, 10)
    assert lone_prefill(elsewhere) == (1_000, 200, 0.5)


@pytest.mark.parametrize(("cached", "foreseen"), [(None, 0), (None, None), (0, 900)])
def test_a_prompt_counts_without_a_predicted_hit_or_with_a_report(cached: int | None, foreseen: int | None) -> None:
    assert lone_prefill(answered(3_000, 100, cached=cached, foreseen=foreseen)) == (3_000, 0, 0.1)


def test_a_prefill_that_ran_alone_elsewhere_counts_as_well() -> None:
    seen = RateEstimates()
    seen.ended(moved(100, 0.1, alone=True, prefill_ms=500.0, prefill_usage=Usage(1_000)))
    assert seen.rates.prefill_tokens_per_s == 2000


def test_a_transfer_begins_when_the_prompt_is_computed_and_the_decoder_has_the_request() -> None:
    """Both requests may be sent at once, as with Mooncake P2P, or one after the other, as with NIXL."""
    at_once = Offload("mooncake_p2p", "demo-0", began=1.0, prefill_ms=2_000.0, sent=1.0, arrived=3.25)
    in_turn = Offload("nixl", "demo-0", began=1.0, prefill_ms=2_000.0, sent=3.1, arrived=3.25)
    assert at_once.transfer_ms == pytest.approx(250)
    assert in_turn.transfer_ms == pytest.approx(150)


def test_setup_and_rate_of_transfers_are_separated_by_their_sizes() -> None:
    seen = RateEstimates()
    for size in (1_000_000, 2_000_000, 8_000_000):
        seen.ended(moved(size, 0.020 + size / 1e8))
    assert seen.rates.transfer_setup_s == pytest.approx(0.020)
    assert seen.rates.transfer_bytes_per_s == pytest.approx(1e8)


def test_transfers_of_equal_size_have_no_separate_setup_time() -> None:
    line = LinearFit()
    for _ in range(5):
        line.add(1_000_000, 0.5)
    assert line.fitted() == pytest.approx((0.0, 2_000_000))


def test_an_implausible_fit_is_ignored() -> None:
    line = LinearFit()
    line.add(1_000_000, 0.5)
    line.add(9_000_000, 0.1)
    setup_s, rate = line.fitted()
    assert setup_s == 0
    assert rate > 0


def test_recent_transfers_outweigh_older_ones() -> None:
    line = LinearFit()
    for _ in range(100):
        line.add(1_000_000, 0.1)
    for _ in range(100):
        line.add(1_000_000, 1.0)
    assert line.fitted()[1] == pytest.approx(1_000_000, rel=10 * FORGET**100)


@pytest.mark.parametrize("outcome", ["fallback", "failed", "ineligible", ""])
def test_requests_without_a_transfer_do_not_change_the_transfer_rate(outcome: str) -> None:
    seen = RateEstimates()
    seen.ended(moved(1_000_000, 0.1, outcome))
    assert seen.rates.transfer_bytes_per_s == 0


def test_context_costs_count_as_work_where_a_rate_is_asked_in_work() -> None:
    pace = Pace()
    assert pace.rates(0.0, 10_000.0).work_tokens_per_s == 0
    for _ in range(3):
        pace.prefill(2_000, 9_000, 1.0)  # work: 2000 + 2000 * 10000/10000
        assert pace.rates(0.0, 10_000.0).work_tokens_per_s == 4_000
    assert pace.rates(0.0, 10_000.0).prefill_tokens_per_s == 2_000
    assert pace.rates(0.0, 0.0).work_tokens_per_s == pytest.approx(2_000 + 2_000 * 10_000 / EQUAL_COST_TOKENS)


def test_the_published_law_is_kept_beside_measured_rates() -> None:
    pool = Pool("demo")
    for context_cost, equal_cost_tokens in ((0.002, 9_900.0), (0.001, 9_900.0), (0.001, 0.0)):
        law = {"context_cost": context_cost, "equal_cost_tokens": equal_cost_tokens}
        pool.take_fleet(FleetValue(pool="demo", model="m", at=1.0, instances=(), **law))
        pool.measured(Rates(20_000.0, 100.0))
        assert pool.rates == Rates(20_000.0, 100.0, **law)
