"""Under every strategy and in every pool, an instance of unknown load is the last choice."""

import json

import pytest

from router.policy.decide import decide
from router.policy.replay import situation
from router.policy.schema import document
from router.policy.strategies import STRATEGIES
from router.policy.strategies.strategy import COMPARED
from router.policy.types import KV_UNKNOWN, InstanceState, ParsedPolicy, RoutingRequest
from router.pool.endpoint import Endpoint
from router.pool.fleet_view import FleetView
from router.tests.conftest import instance
from router.tests.policy.test_replay import receipt

REQUEST = RoutingRequest(40_000, session="s", bound_to="lost", held={"lost": 32_000}, prefix_key=7)
LOST = InstanceState("lost", kv_usage=KV_UNKNOWN, kv_tokens=100_000, connector="nixl")
BUSY = InstanceState("busy", running=9, waiting=3, prefill_tokens=5_000, kv_usage=0.9, kv_tokens=100_000)
WHY = "its load is not known: its last figures are too old, stand still, or hid that it was full"


def policy(strategy: str, **sections: dict[str, object]) -> ParsedPolicy:
    return document.parse(document.default(strategy) | sections)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_busiest_instance_is_chosen_before_one_of_unknown_load(strategy: str) -> None:
    decision = decide(REQUEST, [LOST, BUSY], policy(strategy), 0.5)
    assert (decision.instance, decision.candidates[0].refused) == ("busy", WHY)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_instances_of_unknown_load_serve_if_there_are_no_others(strategy: str) -> None:
    full = InstanceState("full", running=100_000)
    assert decide(REQUEST, [LOST], policy(strategy), 0.5).instance == "lost"
    assert decide(REQUEST, [full, LOST], policy(strategy), 0.5).instance == "lost"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_prompt_for_a_decoder_is_computed_where_the_load_is_known(strategy: str) -> None:
    lost = InstanceState("p-lost", role="prefill", connector="nixl", kv_usage=KV_UNKNOWN)
    busy = InstanceState("p-busy", role="prefill", connector="nixl", prefill_tokens=90_000, running=5)
    decoder, rules = InstanceState("d", role="decode", connector="nixl"), policy(strategy, flow={"heavy": "offload"})
    assert decide(RoutingRequest(40_000), [lost, busy, decoder], rules, 0.5).prefill == "p-busy"
    assert decide(RoutingRequest(40_000), [lost, decoder], rules, 0.5).prefill == "p-lost"


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_large_pool_also_leaves_out_instances_of_unknown_load(strategy: str) -> None:
    endpoints = {name: Endpoint(instance(name, "http://127.0.0.1:1")) for name in map(str, range(COMPARED + 30))}
    for endpoint in list(endpoints.values())[:-5]:
        endpoint.kv_usage = KV_UNKNOWN
    view = FleetView(endpoints)
    chosen = {
        view.decide(RoutingRequest(900, turn=turn), policy(strategy), turn / 40, {}, 0.0, 10.0).instance
        for turn in range(40)
    }
    assert chosen <= set(list(endpoints)[-5:])


def test_a_receipt_records_the_unknown_load_and_repeats_its_decision() -> None:
    kept = receipt(REQUEST, decide(REQUEST, [LOST, BUSY], policy("priced"), 0.5))
    written = json.loads(json.dumps(kept.candidates))
    assert (written["kv_usage"], written["waiting"]) == ([None, 0.9], [None, 3])
    again = situation(kept)
    assert again.instances[0].known == {"kv_usage": None, "waiting": None}
    assert again.decide(policy("priced")).instance == "busy"


def test_a_receipt_says_once_that_no_load_is_known() -> None:
    kept = receipt(REQUEST, decide(REQUEST, [LOST], policy("priced"), 0.5))
    assert (kept.candidates["kv_usage"], kept.candidates["waiting"]) == (None, None)
    assert situation(kept).instances[0].kv_usage == KV_UNKNOWN
