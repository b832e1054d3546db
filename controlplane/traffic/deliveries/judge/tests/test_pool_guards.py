import pytest

from controlplane.traffic.deliveries.judge.pool_guards import METRICS, judge, measure
from controlplane.traffic.deliveries.plan.types import POOL_METRICS, PoolGuard
from router.contract.redis.router_status import Window
from router.contract.values import sketch


def latencies(*values: float) -> dict[int, int]:
    found: dict[int, int] = {}
    for value in values:
        sketch.add(found, value)
    return found


SLOW = Window(n=100, error=5, refused=10, ttft=latencies(*[100.0] * 80, *[900.0] * 20), tpot=latencies(20.0))
QUICK = Window(n=300, ttft=latencies(*[100.0] * 300))


def guard(metric: str = "pool.ttft_p90_ms", above: float = 800.0) -> PoolGuard:
    return PoolGuard(metric, above, 30, "pause", "warm")


def test_there_is_a_measure_for_every_metric_of_a_plan() -> None:
    assert METRICS.keys() == POOL_METRICS.keys()


@pytest.mark.parametrize(
    ("metric", "value"),
    [
        ("pool.ttft_p90_ms", 900),
        ("pool.ttft_p99_ms", 900),
        ("pool.tpot_p90_ms", 20),
        ("pool.errors_share", 0.05),
        ("pool.refused_share", 0.1),
    ],
)
def test_metrics_are_those_of_the_last_minute(metric: str, value: float) -> None:
    assert measure(guard(metric), [SLOW]).value == pytest.approx(value, rel=0.03)


def test_figures_of_routers_are_summed() -> None:
    assert measure(guard(), [SLOW, QUICK]).value == pytest.approx(100, rel=0.03)
    assert measure(guard("pool.errors_share"), [SLOW, QUICK]).value == pytest.approx(5 / 400)


@pytest.mark.parametrize(("since", "verdict"), [(None, "fine"), (71.0, "fine"), (70.0, "fail"), (0.0, "fail")])
def test_a_pool_guard_fails_after_long_enough_above_its_limit(since: float | None, verdict: str) -> None:
    found = judge(guard(), [SLOW], since, 100.0)
    assert (found.verdict, found.effect) == (verdict, "pause")


def test_the_sentence_has_value_limit_and_time() -> None:
    found = judge(guard(), [SLOW], 90.0, 100.0)
    assert found.text.startswith("warm ttft p90 of the pool is 9")
    assert found.text.endswith("ms over 100 requests of the last minute, limit 800 ms, above for 10 of 30 s")
    shares = judge(guard("pool.errors_share", 0.1), [SLOW], None, 100.0)
    assert shares.text == "warm errors share of the pool is 5.0 % over 100 requests of the last minute, limit 10.0 %"


@pytest.mark.parametrize("windows", [[], [Window()]])
def test_zero_requests_count_as_no_data(windows: list[Window]) -> None:
    for metric in METRICS:
        assert judge(guard(metric), windows, 0.0, 100.0).verdict == "no_data"
