"""Limits that no policy can exceed, in a closed loop with agents' sessions and in an open loop with conversations,
with engines whose caches are too small."""

from collections import Counter
from collections.abc import Sequence
from functools import cache

import pytest

from controlplane.evidence.traces.generated import generate
from controlplane.evidence.traces.summary import ideal_hits
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.tests.builders import LAW, fleet, policy
from controlplane.evidence.twin.simulation.tests.reproductions.conversations import likeness
from controlplane.evidence.twin.simulation.types import TwinOutcome
from router.policy.strategies import STRATEGIES

ENGINES = fleet(3, kv_blocks=8_000, kv_events=True)  # 128,000 tokens each


@cache
def sessions() -> Sequence[TraceRequest]:
    return [request for request in generate(seed=3, duration_s=90).requests if request.input_tokens < 100_000]


@cache
def conversations() -> Sequence[TraceRequest]:
    return [request for request in likeness(3) if request.at_s < 60 and request.input_tokens < 100_000]


LOADS = {"closed_loop": sessions, "timestamps": conversations}


@cache
def run(strategy: str, pacing: str) -> TwinOutcome:
    return simulate(ENGINES, policy(strategy), LOADS[pacing](), pacing=pacing, seed=1)


@pytest.mark.parametrize("pacing", LOADS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_request_ends_once_and_none_is_faster_than_its_prefill(strategy: str, pacing: str) -> None:
    outcome = run(strategy, pacing)
    assert [one.index for one in outcome.requests] == sorted(request.index for request in LOADS[pacing]())
    answered = [one for one in outcome.requests if one.outcome == "ok"]
    assert len(answered) > 0.9 * len(outcome.requests)
    for one in answered:
        assert one.ttft_s is not None
        assert one.ttft_s >= 0.999 * LAW.prefill_s(one.input_tokens - one.cached_tokens, one.cached_tokens)
        assert one.tpot_s is None or one.tpot_s >= LAW.step_s(1, 0.0, one.input_tokens, 1)
    assert all(0 <= usage <= 1 for use in outcome.instances.values() for usage in use.kv_usage)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_request_finds_more_cached_than_was_ever_sent(strategy: str) -> None:
    requests = conversations()
    outcome = run(strategy, "timestamps")
    assert sum(one.cached_tokens for one in outcome.requests) <= sum(ideal_hits(requests))


def test_prompts_with_different_beginnings_are_spread_by_their_beginning() -> None:
    """The block numbers of each session begin at a multiple of a power of two."""
    apart = [
        TraceRequest(number, 10.0 * number, "", 640, 1, (range(number << 32, (number << 32) + 10),), 64, 0.0)
        for number in range(40)
    ]
    outcome = simulate(ENGINES, policy("prefix_hash"), apart, pacing="timestamps", seed=1)
    taken = Counter(one.instance for one in outcome.requests)
    assert min(taken[name] for name in ENGINES.instances) >= 5


def test_prompts_with_equal_beginnings_go_to_one_instance() -> None:
    """The prompts agree in 256 tokens; another prompt agrees in the first 64 only."""
    alike = [
        TraceRequest(number, 10.0 * number, "", 640, 1, (range(4), range(100 * number, 100 * number + 6)), 64, 0.0)
        for number in range(1, 11)
    ]
    others = [
        TraceRequest(number, 10.0 * number, "", 640, 1, (range(1), range(100 * number, 100 * number + 9)), 64, 0.0)
        for number in range(11, 31)
    ]
    outcome = simulate(ENGINES, policy("prefix_hash"), [*alike, *others], pacing="timestamps", seed=1)
    assert len({one.instance for one in outcome.requests[:10]}) == 1
    assert len({one.instance for one in outcome.requests[10:]}) == 3
