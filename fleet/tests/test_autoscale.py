"""The autoscaler's advice: targets and limits, patience, steps and pauses, and convergence."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.plan.autoscale import EVERY_S, Advice, LoadPoint, advise, saturation
from fleet.spec.sections import Autoscale, autoscale_of

NOW = 100_000.0
SPEC = {"min": 1, "max": 10, "target_queue": 4, "target_kv": 0.6, "slo_ttft_p90_ms": {"warm": 300}}


def spec(**changes: Any) -> Autoscale:
    return autoscale_of({**SPEC, **changes})


def points(for_s: float = 400, ready: int = 4, until: float = NOW, **figures: Any) -> list[LoadPoint]:
    values = {"running": 8.0, "waiting": 16.0, "kv": 0.6, **figures}
    count = int(for_s / EVERY_S)
    return [LoadPoint(at=until - EVERY_S * back, ready=ready, **values) for back in range(count, -1, -1)]


def advice(seen: list[LoadPoint], replicas: int = 4, changed_at: float = 0.0, **changes: Any) -> Advice:
    return advise(seen, spec(**changes), replicas, changed_at, NOW)


@pytest.mark.parametrize(
    ("figures", "replicas", "words"),
    [
        ({}, 4, "the load fits the current size"),
        ({"waiting": 28.0}, 7, "7.0 requests wait per instance, the target is 4"),
        ({"kv": 0.9}, 6, "KV usage is 90 %, the target is 60 %"),
        ({"ttft_p90_ms": {"warm": 900.0}}, 5, "TTFT p90 of warm requests is 900 ms, the limit is 300 ms"),
        ({"waiting": 900.0}, 8, "225.0 requests wait"),  # a step at most doubles the pool
        ({"waiting": 0.0, "kv": 0.05}, 3, "1 would have been enough for 300 s"),  # a step removes at most a quarter
        ({"waiting": 0.0, "kv": 0.05, "ttft_p90_ms": {"warm": 250.0}}, 4, "the load fits"),  # near its limit
        ({"waiting": 0.0, "kv": 0.05, "ttft_p90_ms": {"warm": 50.0}}, 3, "would have been enough"),
        ({"waiting": 17.0}, 4, "the load fits"),  # within the tolerance
    ],
)
def test_the_highest_demand_decides(figures: dict[str, Any], replicas: int, words: str) -> None:
    found = advice(points(**figures))
    assert found.replicas == replicas
    assert words in found.why


def test_a_short_peak_changes_nothing() -> None:
    seen = [*points(until=NOW - 10), *points(for_s=5, waiting=90.0)]
    assert advice(seen).replicas == 4


def test_a_short_lull_changes_nothing() -> None:
    seen = [*points(until=NOW - 65), *points(for_s=60, waiting=0.0, kv=0.0)]
    assert advice(seen).replicas == 4


def test_each_step_is_followed_by_a_pause() -> None:
    found = advice(points(waiting=90.0), changed_at=NOW - 30)
    assert found == Advice(4, "cooldown of 60 s after the last step")


@pytest.mark.parametrize("seen", [[], points(for_s=5)])
def test_without_measurements_there_is_no_advice(seen: list[LoadPoint]) -> None:
    assert advice(seen) == Advice(4, "not enough load data yet")


def test_without_a_ready_instance_nothing_is_measured() -> None:
    assert advice(points(ready=0)).replicas == 4


def test_the_limits_take_precedence() -> None:
    assert advice([], replicas=12) == Advice(10, "allowed: 1 to 10")
    assert advice(points(ready=10, waiting=900.0), replicas=10).why.endswith("the maximum is 10")
    assert advice(points(ready=1, waiting=0.0, kv=0.0), replicas=1).replicas == 1


IDLE = {"running": 0.0, "waiting": 0.0, "kv": 0.0}
TO_ZERO = {"min": 0, "idle_s": 200, "cooldown_s": 0, "mode": "automatic"}


@pytest.mark.parametrize(
    ("seen", "replicas", "then"),
    [
        (points(**IDLE), 1, 0),
        (points(**IDLE), 4, 0),
        (points(for_s=100, **IDLE), 1, 1),  # not idle for long enough
        (points(for_s=400, ready=0, **IDLE), 1, 1),  # the instance is loading, which does not count as idle
        ([*points(for_s=400, **IDLE)[:-20], *points(for_s=95, **{**IDLE, "running": 1.0})], 1, 1),
        ([*points(until=NOW - 60, **IDLE), *points(for_s=5, ready=0, until=NOW - 50), *points(for_s=40, **IDLE)], 1, 1),
        (points(**IDLE, answers_per_s=0.1, ready=1), 1, 1),  # short requests that were never sampled as running
        (points(**IDLE, held=1, ready=1), 1, 1),  # a request arrived while the last instance drained
        (points(ready=0, **IDLE), 0, 0),
        (points(ready=0, **IDLE, held=50), 0, 1),  # however many wait, one instance is started
        ([], 0, 0),
    ],
)
def test_an_idle_pool_scales_to_zero_and_a_waiting_request_brings_it_back(
    seen: list[LoadPoint], replicas: int, then: int
) -> None:
    assert advice(seen, replicas, **TO_ZERO).replicas == then
    assert advice(seen, max(replicas, 1), **{**TO_ZERO, "min": 1}).replicas >= 1


def test_saturation_is_the_highest_measure_and_unknown_without_any() -> None:
    (busy,) = points(for_s=0, waiting=20.0, kv=0.9, ttft_p90_ms={"warm": 150.0})
    assert saturation(busy, spec()) == pytest.approx(1.5)
    assert saturation(busy, spec(slo_ttft_p90_ms={"warm": 50})) == pytest.approx(3.0)
    assert saturation(busy, autoscale_of({"min": 0})) is None
    assert saturation(points(for_s=0, ready=0)[0], spec()) is None


@given(
    st.integers(1, 10),
    st.lists(st.tuples(st.integers(0, 9), st.floats(0, 500), st.floats(0, 1)), max_size=70),
    st.floats(0, 200),
)
def test_the_advice_is_always_within_its_limits_and_one_step_from_the_current_size(
    replicas: int, looks: list[tuple[int, float, float]], age: float
) -> None:
    seen = [
        LoadPoint(at=NOW - EVERY_S * (len(looks) - n), ready=ready, running=0, waiting=waiting, kv=kv)
        for n, (ready, waiting, kv) in enumerate(looks)
    ]
    found = advice(seen, replicas=replicas, changed_at=NOW - age)
    assert 1 <= found.replicas <= 10
    assert replicas - max(1, replicas // 4) <= found.replicas <= 2 * replicas
    assert found.why


@settings(max_examples=15)
@given(st.floats(0.2, 9), st.integers(1, 10))
def test_under_constant_load_the_autoscaler_settles(load: float, replicas: int) -> None:
    """The `load` is the number of KV caches that it fills; each instance holds an equal share."""
    now, changed_at, seen, steps = 0.0, -1000.0, [], []
    for _ in range(400):
        now += EVERY_S
        seen = [*seen[-65:], LoadPoint(at=now, ready=replicas, running=0, waiting=0, kv=min(1.0, load / replicas))]
        found = advise(seen, spec(target_queue=None, slo_ttft_p90_ms={}), replicas, changed_at, now)
        if found.replicas != replicas:
            replicas, changed_at = found.replicas, now
            steps.append(now)
    assert all(now - at > 300 for at in steps), "still going up and down"
    assert replicas == 10 or load / replicas <= 0.6 * 1.1
