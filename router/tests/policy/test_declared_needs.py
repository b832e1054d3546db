"""Compares a strategy's declarations with the inputs that change its choices."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.types import InstanceState, ParsedPolicy, Rates, RoutingRequest

SITUATIONS = 150
RATES = Rates(10_000.0, 100_000.0, 3e9, 0.01)
OWN: dict[str, dict[str, object]] = {"weighted": {"weight_prefill": 1.0}}
Change = Callable[[random.Random, InstanceState], InstanceState]


def fleet(rng: random.Random, kv_tokens: int) -> list[InstanceState]:
    """Return a fleet that differs in few figures, so that a small difference decides."""
    return [
        InstanceState(
            f"i-{number}",
            cached_tokens=rng.choice([0, 0, 9_000]),
            running=rng.choice([1, 1, 2]),
            waiting=rng.choice([0, 0, 1]),
            decodes=1,
            prefill_tokens=rng.choice([0, 30_000, 30_000, 90_000]),
            kv_usage=rng.choice([0.1, 0.9]),
            kv_tokens=kv_tokens,
            connector="nixl",
        )
        for number in range(4)
    ]


def moves(policy: ParsedPolicy, change: Change, kv_tokens: int = 100_000) -> bool:
    """Return, for each instance, whether changing it changes the choice among them."""
    rng = random.Random(7)
    for turn in range(SITUATIONS):
        bound, prompt = rng.choice([None, "i-0"]), rng.choice([2_000, 60_000])
        request = RoutingRequest(prompt, rates=RATES, session="s", bound_to=bound, turn=turn)
        before, draw = fleet(rng, kv_tokens), rng.random()
        first = decide(request, before, policy, draw)
        second = decide(request, [change(rng, one) for one in before], policy, draw)
        if (first.instance, first.prefill) != (second.instance, second.prefill):
            return True
    return False


def other_usage(rng: random.Random, instance: InstanceState) -> InstanceState:
    return replace(instance, kv_usage=rng.choice([0.05, 0.5, 0.94]))


def other_pace(rng: random.Random, instance: InstanceState) -> InstanceState:
    return replace(instance, pace=rng.choice([0.4, 1.0, 2.5]))


def parsed(strategy: str, by_pace: str = "off", **own: object) -> ParsedPolicy:
    given = {"strategy": {"name": strategy} | OWN.get(strategy, {}) | own, "load": {"by_pace": by_pace}}
    return document.parse(document.default(strategy) | given)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_declares_whether_kv_usage_changes_its_choice(name: str) -> None:
    policy, strategy = parsed(name), STRATEGIES[name]
    assert moves(policy, other_usage) == strategy.reads_kv(policy)
    if strategy.kv_optional:
        assert not moves(policy, other_usage, kv_tokens=0)


@pytest.mark.parametrize(("name", "weight"), [("llm_d", "kv_weight"), ("weighted", "weight_kv_free")])
def test_a_strategy_without_a_kv_weight_does_not_read_kv_usage(name: str, weight: str) -> None:
    policy = parsed(name, **{weight: 0})
    assert (moves(policy, other_usage), STRATEGIES[name].reads_kv(policy)) == (False, False)


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_declares_whether_and_when_unequal_instances_matter(name: str) -> None:
    strategy = STRATEGIES[name]
    assert moves(parsed(name), other_pace) == strategy.by_pace
    if not strategy.by_pace:
        assert moves(parsed(name, "on"), other_pace) == strategy.as_published
