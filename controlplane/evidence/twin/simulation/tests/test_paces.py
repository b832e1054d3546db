"""A fleet of unequal GPUs in the twin: the gain from dividing tokens by each instance's speed."""

import random
from dataclasses import replace

import pytest

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.tests.builders import LAW, MODEL, asks, play, policy
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.engine.engine_model import TransferModel

# NVIDIA's data sheets: an H100 SXM has 989 TFLOPS (dense, BF16) and 3.35 TB/s, an A100 SXM 312 TFLOPS and 2.04 TB/s.
COMPUTE, MEMORY = 989 / 312, 3.35 / 2.04
A100 = replace(
    LAW,
    compute_s_per_token=LAW.compute_s_per_token * COMPUTE,
    attention_s_per_pair=LAW.attention_s_per_pair * COMPUTE,
    weights_s=LAW.weights_s * MEMORY,
    kv_s_per_token=LAW.kv_s_per_token * MEMORY,
)
MIXED = TwinFleet({f"chat-{place}": replace(MODEL, law=law) for place, law in enumerate((LAW, A100, LAW, A100))})
MEAN_TOKENS, LOAD = 6_000, 0.75


def traffic(count: int, seed: int) -> list[TraceRequest]:
    """Long prompts of random lengths, with Poisson arrivals at a share of what the four instances can compute."""
    draw = random.Random(seed)
    capacity = sum(1 / one.law.prefill_s(MEAN_TOKENS) for one in MIXED.instances.values())
    at, asked = 0.0, []
    for index in range(count):
        at += draw.expovariate(capacity * LOAD)
        asked.append(asks(index, at, tokens=draw.randrange(512, 2 * MEAN_TOKENS - 512), output=8))
    return asked


def ttft_p90(outcome: TwinOutcome, after: int) -> float:
    """Return the TTFT p90 of the requests sent once the speeds were known."""
    served = sorted(one.ttft_s for one in outcome.requests[after:] if one.ttft_s is not None)
    assert len(served) == len(outcome.requests) - after
    return served[int(0.9 * len(served))]


@pytest.mark.parametrize("strategy", ["adaptive_v1", "cache_aware"])
def test_two_fast_and_two_slow_gpus_answer_sooner_if_their_speed_is_counted(
    strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = traffic(300, seed=3)
    paced = play(asked, fleet=MIXED, policy=policy(strategy))
    monkeypatch.setattr(SimEndpoint, "take_pace", lambda endpoint, pace: None)
    even = play(asked, fleet=MIXED, policy=policy(strategy))
    print(strategy, ttft_p90(paced, 50), ttft_p90(even, 50))
    assert ttft_p90(paced, 50) <= 0.8 * ttft_p90(even, 50)


def test_a_published_strategy_counts_the_speed_if_its_policy_says_so() -> None:
    asked = traffic(300, seed=3)
    published = play(asked, fleet=MIXED, policy=policy("lpwl"))
    paced = play(asked, fleet=MIXED, policy=policy("lpwl", load__by_pace="on"))
    print("lpwl", ttft_p90(paced, 50), ttft_p90(published, 50))
    assert ttft_p90(paced, 50) <= 0.8 * ttft_p90(published, 50)


def test_an_even_fleet_is_played_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    even = TwinFleet({name: MODEL for name in MIXED.instances})
    asked = traffic(60, seed=5)
    paced = play(asked, fleet=even)
    monkeypatch.setattr(SimEndpoint, "take_pace", lambda endpoint, pace: None)
    assert play(asked, fleet=even).requests == paced.requests


def test_a_strategy_that_weighs_a_transfer_knows_the_kv_size_of_a_token_before_the_first_transfer():
    moves = replace(MODEL, connector="nixl", transfers=TransferModel(bytes_per_token=131_072.0))
    fleet = TwinFleet({f"chat-{place}": moves for place in range(3)})

    def moved(assumed_gb_s: float) -> int:
        rule = policy(
            "conditional_offload", classes__heavy_new_tokens=6_000, strategy__assumed_transfer_gb_per_s=assumed_gb_s
        )
        return sum(one.transfers for one in play(traffic(200, 1), fleet=fleet, policy=rule).requests)

    assert moved(0.0) == 0
    assert moved(9.7) > 0


def test_attention_has_the_cost_of_the_engines_law_or_of_the_policy_if_that_is_unknown() -> None:
    asked = traffic(200, seed=1)

    def played(equal_cost_tokens: int, **law: float) -> list[str]:
        even = TwinFleet({name: replace(MODEL, law=replace(LAW, **law)) for name in MIXED.instances})
        rule = policy("priced", strategy__equal_cost_tokens=equal_cost_tokens)
        return [one.instance for one in play(asked, fleet=even, policy=rule).requests]

    assert played(1_000) == played(10_000_000)
    assert played(1_000, attention_s_per_pair=0.0) != played(10_000_000, attention_s_per_pair=0.0)
