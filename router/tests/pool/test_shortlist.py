"""A decision in a large pool compares a few instances and is as good as one that compares all."""

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import pytest

from router.policy import replay
from router.policy.candidates import Candidates
from router.policy.decide import decide
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.strategies.strategy import COMPARED, FEWER
from router.policy.types import Decision, ParsedPolicy, RoutingRequest
from router.pool import fleet_view as views
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.pool.load.load_order import Load
from router.pool.shortlist import Shortlist, Traits
from router.tests.conftest import instance
from router.tests.policy.test_replay import receipt

SIZE = 300
POLICIES = {name: document.parse(document.default(name)) for name in STRATEGIES}
LIMIT = POLICIES["adaptive_v1"]["admission.max_inflight_per_instance"]
LOADS = ("running", "decodes", "prefill_tokens", "kv_usage", "pace")
REQUEST = RoutingRequest(20_000, session="s", held={"i-7": 12_000, "i-250": 9_000})


class Fleet:
    """A fleet of endpoints with drawn loads."""

    def __init__(self, size: int = SIZE, **published: Any) -> None:
        self.draw = random.Random(1)
        self.endpoints = {
            f"i-{number}": Endpoint(instance(f"i-{number}", "http://127.0.0.1:1", **published))
            for number in range(size)
        }
        for endpoint in self.endpoints.values():
            self.load(endpoint)
        self.view = FleetView(self.endpoints)

    def load(self, endpoint: Endpoint) -> None:
        endpoint.kv_usage = self.draw.random() * 0.9
        endpoint.take_others((2 + self.draw.randrange(40), self.draw.randrange(60_000), self.draw.randrange(30)))

    def decide(self, request: RoutingRequest, policy: ParsedPolicy, draw: float = 0.3, **tried: str) -> Decision:
        return self.view.decide(request, policy, draw, tried, 0.0, 10.0)

    def whole(self, request: RoutingRequest, policy: ParsedPolicy, draw: float = 0.3) -> Decision:
        return decide(request, self.view.fleet({}, 0.0, 10.0), policy, draw)


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def listed(decision: Decision) -> list[str]:
    return [one.id for one in decision.candidates]


def columns(decision: Decision) -> dict[str, Any]:
    assert isinstance(decision.candidates, Candidates)
    return decision.candidates.columns()


def test_every_instance_of_a_small_pool_is_compared() -> None:
    decision = Fleet(COMPARED).decide(REQUEST, POLICIES["priced"])
    assert len(decision.candidates) == COMPARED
    assert "left_out" not in columns(decision)


@pytest.mark.parametrize("strategy", ["dynamo", "prefix_hash", "adaptive_v1"])
def test_a_strategy_whose_score_ignores_the_load_compares_more(fleet: Fleet, strategy: str) -> None:
    assert FEWER < len(fleet.decide(REQUEST, POLICIES[strategy]).candidates) <= COMPARED


def test_a_pool_of_unequal_instances_is_compared_as_widely_as_any_strategy_needs(fleet: Fleet) -> None:
    policy, slow = POLICIES["priced"], fleet.endpoints["i-9"]
    assert len(fleet.decide(REQUEST, policy).candidates) <= FEWER
    slow.take_pace(0.5)
    assert FEWER < len(fleet.decide(REQUEST, policy).candidates) <= COMPARED
    slow.take_pace(1.0)
    assert len(fleet.decide(REQUEST, policy).candidates) <= FEWER


def test_a_receipt_is_small_counts_the_other_instances_and_decides_the_same_again(fleet: Fleet) -> None:
    request = RoutingRequest(20_000, "s", "i-5", held={f"i-{number}": 2_000 + number for number in range(200)}, turn=3)
    for policy in POLICIES.values():
        decision = fleet.decide(request, policy)
        assert decision.instance
        assert len(decision.candidates) <= STRATEGIES[policy["strategy.name"]].shortlisting.most
        assert len(decision.candidates) + sum(columns(decision)["left_out"].values()) == SIZE
        assert len(orjson.dumps(columns(decision))) < 7_000
        kept = receipt(request, decision)
        assert replay.recorded(kept) == replay.outcome(replay.situation(kept).decide(policy))
        assert kept.candidates["left_out"] == columns(decision)["left_out"]


@pytest.mark.parametrize("homes", [40, 200])
def test_a_decision_among_the_homes_of_an_adapter_counts_the_other_instances_and_can_be_repeated(
    fleet: Fleet, homes: int
) -> None:
    request = RoutingRequest(20_000, "s", "i-5", held={f"i-{number}": 2_000 + number for number in range(9)}, turn=3)
    part = fleet.view.part({f"i-{number}" for number in range(homes)}, "no adapter")
    for policy in POLICIES.values():
        decision = part.decide(request, policy, 0.3, {}, 0.0, 10.0)
        kept = receipt(request, decision)
        assert int(decision.instance[2:]) < homes
        assert columns(decision)["left_out"]["no adapter"] == SIZE - homes
        assert len(decision.candidates) + sum(columns(decision)["left_out"].values()) == SIZE
        assert replay.recorded(kept) == replay.outcome(replay.situation(kept).decide(policy))


def test_the_cheapest_instance_is_on_the_list_although_others_have_less_load(fleet: Fleet) -> None:
    """Prices depend on the prompt: held requests weigh little for a short one, but stalls weigh much for a long one."""
    policy = POLICIES["priced"]
    for endpoint in fleet.endpoints.values():
        endpoint.kv_tokens = 100_000
        endpoint.take_others((2 + fleet.draw.randrange(9), fleet.draw.randrange(9_000), 0))
    for number in range(60):
        decision = fleet.decide(RoutingRequest(fleet.draw.choice([50, 2_000, 60_000]), held={}), policy, number / 60)
        assert isinstance(decision.candidates, Candidates)
        request, *_ = decision.candidates.situation()
        assert decision.instance == fleet.whole(request, policy, number / 60).instance


# These strategies look at one figure per instance, so the best of the pool is also the best of the list.
EXACT = ("adaptive_v1", "cache_aware", "conditional_offload", "lpwl", "least_requests", "session_sticky")


@pytest.mark.parametrize("strategy", EXACT)
def test_the_best_instance_of_the_pool_is_on_the_list(fleet: Fleet, strategy: str) -> None:
    policy = POLICIES[strategy]
    bound = RoutingRequest(500, "s", "i-280", held={"i-280": 400})
    for number in range(10):
        fleet.load(fleet.draw.choice(list(fleet.endpoints.values())))
        for asked in (REQUEST, RoutingRequest(60_000, held={}), bound):
            whole = fleet.whole(asked, policy, number / 10)
            assert fleet.decide(asked, policy, number / 10).instance == whole.instance


def test_a_prefix_goes_to_the_instance_that_hashing_over_all_would_choose(fleet: Fleet) -> None:
    policy = POLICIES["prefix_hash"]
    same = sum(
        fleet.decide(asked, policy).instance == fleet.whole(asked, policy).instance
        for key in range(50)
        for asked in [RoutingRequest(2_000, held={}, prefix_key=key)]
    )
    assert same == 50


def test_each_instance_gets_one_turn_in_as_many_turns_as_there_are_instances(fleet: Fleet) -> None:
    policy = POLICIES["round_robin"]
    chosen = [
        fleet.decide(RoutingRequest(9, held={}, turn=turn), policy).instance for turn in range(2 * SIZE, 3 * SIZE)
    ]
    assert len(set(chosen)) == SIZE


def test_each_instance_is_drawn_equally_often() -> None:
    shortlist = Shortlist([Traits(f"i-{number}", "both", "", "") for number in range(SIZE)])
    draw = random.Random(1)
    drawn = Counter(
        position for _ in range(8_000) for position in shortlist.listed(REQUEST, POLICIES["random"], {}, draw.random())
    )
    usual = 8_000 * FEWER / SIZE
    assert all(0.85 * usual < drawn[position] < 1.15 * usual for position in range(SIZE))


@pytest.mark.parametrize("strategy", ["adaptive_v1", "priced"])
def test_the_shortlist_of_many_idle_instances_varies(strategy: str) -> None:
    shortlist = Shortlist([Traits(f"i-{number}", "both", "", "") for number in range(SIZE)])
    asked, draw = RoutingRequest(9, held={}), random.Random(1)
    seen = {position for _ in range(200) for position in shortlist.listed(asked, POLICIES[strategy], {}, draw.random())}
    assert len(seen) == SIZE


@contextmanager
def taken_up(count: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "TAKEN_UP", count)
        yield


def test_the_only_instance_with_capacity_is_on_the_list(fleet: Fleet) -> None:
    failed = dict.fromkeys(set(fleet.endpoints) - {"i-99"}, "no adapter")
    for policy in POLICIES.values():
        decision = fleet.decide(REQUEST, policy, **failed)
        assert decision.instance == "i-99"
        assert columns(decision)["left_out"]["no adapter"] >= SIZE - COMPARED
    for number, policy in enumerate(POLICIES.values()):
        only = f"i-{9 * number + 7}"
        for name, endpoint in fleet.endpoints.items():
            endpoint.take_others((3 if name == only else LIMIT, 90_000 if name == only else 0, 0))
        with taken_up(1):  # only a few of the changes are known
            assert fleet.decide(REQUEST, policy).instance == only
    for name, endpoint in fleet.endpoints.items():
        endpoint.take_others((0, 0, 0))
        endpoint.routable, endpoint.state = name == "i-150", "draining"
        endpoint.touch()
    for policy in POLICIES.values():
        assert fleet.decide(REQUEST, policy).instance == "i-150"


def test_a_full_pool_chooses_no_instance_and_the_reasons_say_why(fleet: Fleet) -> None:
    for endpoint in fleet.endpoints.values():
        endpoint.take_others((LIMIT, 0, 0))
    decision = fleet.decide(REQUEST, POLICIES["adaptive_v1"])
    assert (decision.instance, decision.rule) == ("", "nobody")
    assert f"its limit of requests is reached, {LIMIT} of {LIMIT}" in decision.reasons[1]


def test_an_instance_that_failed_the_request_is_listed_with_the_error(fleet: Fleet) -> None:
    best = fleet.decide(REQUEST, POLICIES["adaptive_v1"]).instance
    decision = fleet.decide(REQUEST, POLICIES["adaptive_v1"], **{best: "it was reset"})
    assert {one.id: one.refused for one in decision.candidates}[best] == "it was reset"
    assert decision.instance != best


@pytest.mark.parametrize("strategy", ["adaptive_offload", "priced", "round_robin_pd", "ppd"])
def test_both_roles_and_the_prefill_instance_of_each_pair_are_on_the_list(strategy: str) -> None:
    endpoints = {}
    for number in range(SIZE):
        name, prefills = f"i-{number}", number % 2 == 0
        endpoint = Endpoint(instance(name, "http://127.0.0.1:1", role="prefill" if prefills else "decode"))
        endpoint.connector = "nixl"
        endpoint.kv = type(endpoint.kv)(pair="" if prefills else f"i-{number - 1}")
        endpoints[name] = endpoint
    decision = FleetView(endpoints).decide(REQUEST, POLICIES[strategy], 0.3, {}, 0.0, 10.0)
    assert endpoints[decision.instance].role == "decode"
    assert decision.prefill == endpoints[decision.instance].kv.pair


def test_the_order_maintained_over_changes_equals_a_new_sort(fleet: Fleet) -> None:
    draw = random.Random(3)
    kept = Shortlist([Traits(f"i-{number}", "both", "", "") for number in range(SIZE)])
    loads: dict[str, Load] = {}
    for step in range(60):
        changes = {
            f"i-{draw.randrange(SIZE)}": Load(
                draw.choice([0, 0, 700, 9_000]),
                draw.choice([0, 1, LIMIT]),
                draw.choice([0.1, 0.99]),
                9_000,
                draw.choice(["", "", "draining", "breaker open"]),
            )
            for _ in range(draw.choice([1, 5, 150]))
        }
        loads |= changes
        kept.take(changes.items())
        fresh = Shortlist([Traits(f"i-{number}", "both", "", "") for number in range(SIZE)])
        fresh.take(loads.items())
        assert kept.pool_load == fresh.pool_load
        for policy in (POLICIES["adaptive_v1"], POLICIES["round_robin"], POLICIES["least_requests"]):
            request = RoutingRequest(9_000, held={"i-3": 500}, turn=step)
            chosen = kept.listed(request, policy, {}, step / 60)
            assert chosen == fresh.listed(request, policy, {}, step / 60)
            assert kept.left_out(chosen, policy, {}) == fresh.left_out(chosen, policy, {})


def test_each_decision_sees_the_current_state_of_the_listed_instances(fleet: Fleet) -> None:
    draw, endpoints = random.Random(4), fleet.endpoints
    for step in range(100):
        for endpoint in draw.sample(sorted(endpoints.values(), key=lambda one: one.id), draw.choice([0, 1, 40])):
            fleet.load(endpoint)
            endpoint.take_pace(draw.choice([0.5, 1.0, 1.0]))
            endpoint.breaker.failed(float(step), failures=2)
            endpoint.touch()
        for endpoint in draw.sample(sorted(endpoints.values(), key=lambda one: one.id), 20):
            endpoint.breaker.answered()  # announces nothing: each decision asks again whether the endpoint refuses
        policy = POLICIES[draw.choice(["priced", "adaptive_v1", "round_robin"])]
        request = RoutingRequest(9_000, held={"i-3": 500}, turn=step)
        decision = fleet.view.decide(request, policy, draw.random(), {}, float(step), 10.0)
        seen = columns(decision)
        now = [endpoints[name].view(endpoints[name].refusal(float(step), 10.0)) for name in seen["id"]]
        again = columns(decide(request, now, policy, 0.5))
        assert [again.get(name) for name in LOADS] == [seen.get(name) for name in LOADS]
        assert [one.refused for one in now] == [one.refused for one in decision.candidates]
