"""KV below HBM in the twin: loads, a store that engines share, and requests whose loads do not fit."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.evidence.twin.simulation.kv_event_view import KvEventView
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.simulate import Simulation, simulate
from controlplane.evidence.twin.simulation.tests.builders import BLOCK, LAW, MODEL, api_s, asks, fleet, play, policy
from controlplane.evidence.twin.simulation.tier_facts import tier_facts
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from fleet.engine.engine_model import TransferLink, TransferModel
from fleet.engine.profiles import profile
from fleet.engine.request import EngineRequest
from fleet.engine.tiers.devices import DEVICES
from fleet.engine.tiers.model import TierModel, TiersModel
from fleet.engine.tiers.shared import StoreModel
from fleet.engine.tiers.sizes import layout_of

LAYOUT = layout_of(profile())
DOCUMENT = 6_400
SMALL = 8_000 // 16  # KV blocks: one document


def tiers(*names: str, **given: Any) -> TiersModel:
    return TiersModel(
        layout=LAYOUT, tiers=tuple(TierModel(DEVICES[name], 1e12) for name in names), always_load=True, **given
    )


def documents(count: int, times: int = 2, *, every_s: float = 2.0) -> list[Any]:
    return [
        asks(number, number * every_s, tokens=DOCUMENT + BLOCK, output=2, family=number % count + 1, shared=DOCUMENT)
        for number in range(count * times)
    ]


def loaded(outcome: TwinOutcome) -> list[int]:
    return [sum(one.cached_from[1:]) for one in outcome.requests]


@pytest.mark.parametrize("events", [False, True])
def test_a_document_evicted_from_hbm_is_loaded_again(events: bool) -> None:
    with_tiers = play(documents(3), fleet=fleet(1, kv_blocks=SMALL, tiers=tiers("dram"), kv_events=events))
    without = play(documents(3), fleet=fleet(1, kv_blocks=SMALL, kv_events=events))
    assert loaded(with_tiers) == [0, 0, 0, DOCUMENT, DOCUMENT, DOCUMENT]
    assert loaded(without) == [0] * 6
    assert with_tiers.requests[5].cached_from == (0, DOCUMENT, 0, 0)
    assert [one.cached_tokens for one in without.requests] == [0] * 6
    assert with_tiers.requests[5].ttft_s < without.requests[5].ttft_s / 2  # type: ignore[operator]
    (use,) = with_tiers.instances.values()
    assert use.tiers is not None
    assert use.tiers.tiers[0].hit_tokens == 3 * DOCUMENT
    assert without.instances["chat-0"].tiers is None


def test_tiers_hold_the_same_amount_whatever_the_block_size_of_the_trace() -> None:
    outcome = play(documents(1, 1), fleet=fleet(1, kv_blocks=SMALL, tiers=tiers("ssd")))
    stats = outcome.instances["chat-0"].tiers
    assert stats is not None
    assert stats.tiers[0].capacity_tokens == int(1e12 / 131_072)
    assert stats.tiers[0].written_bytes == DOCUMENT * 131_072 + BLOCK * 131_072


def test_a_request_whose_load_does_not_fit_is_an_error_and_the_next_one_is_served() -> None:
    model = tiers("ssd-gds", staging_bytes=0.45 * LAYOUT.bytes(3_000))
    outcome = play(documents(2, 2), fleet=fleet(1, kv_blocks=SMALL, tiers=model, kv_events=True))
    assert [(one.outcome, one.code) for one in outcome.requests] == [
        ("ok", ""),
        ("ok", ""),
        ("error", "out_of_memory"),
        ("ok", ""),
    ]


def with_store(size: int, **given: Any) -> TwinFleet:
    link = TransferLink(setup_s=1e-3, idle_bytes_per_s=10e9, busy_bytes_per_s=10e9)
    model = fleet(size, **given)
    return TwinFleet(model.instances, StoreModel(1e12, link, 131_072))


def test_blocks_computed_by_one_instance_are_pulled_by_others_from_the_store() -> None:
    shared = with_store(2)
    outcome = simulate(shared, policy("round_robin"), documents(1, 4), pacing="timestamps", seed=1)
    assert [one.instance for one in outcome.requests] == ["chat-0", "chat-1"] * 2
    assert loaded(outcome) == [0, DOCUMENT, 0, 0]  # afterwards each has it in its own cache
    assert outcome.store is not None
    assert (outcome.store.hit_tokens, outcome.store.loads) == (DOCUMENT, 1)
    assert outcome.store.load_s == pytest.approx(1e-3 + DOCUMENT * 131_072 / 10e9)
    alone = simulate(fleet(2), policy("round_robin"), documents(1, 4), pacing="timestamps", seed=1)
    assert alone.requests[1].cached_tokens == 0
    assert alone.store is None


def test_transfers_from_the_store_share_its_bandwidth() -> None:
    requests = [*documents(1, 1), *(asks(n, 5.0, tokens=6_464, output=2, family=1, shared=DOCUMENT) for n in (1, 2, 3))]
    outcome = simulate(with_store(4), policy("round_robin"), requests, pacing="timestamps", seed=1)
    first, second, third = (one.ttft_s for one in outcome.requests[1:])
    assert outcome.store is not None
    assert first < second < third  # type: ignore[operator]
    assert outcome.store.load_s == pytest.approx(3e-3 + 6 * DOCUMENT * 131_072 / 10e9)


@pytest.mark.parametrize("gb_per_s", [3, 40])
def test_an_offload_through_the_store_moves_at_its_bandwidth(gb_per_s: float) -> None:
    """The bandwidth between two instances changes nothing."""
    moves = TransferModel(bytes_per_token=131_072, idle_bytes_per_s=1e6, busy_bytes_per_s=1e6)
    models = fleet(2, transfers=moves, connector="mooncake_store").instances
    link = TransferLink(setup_s=1e-3, idle_bytes_per_s=gb_per_s * 1e9, busy_bytes_per_s=1.0)
    asked = [asks(0, tokens=DOCUMENT + 10, output=2)]
    rule = policy("round_robin", flow__heavy="offload", classes__heavy_new_tokens=500, classes__warm_new_tokens=100)
    shared = TwinFleet(models, StoreModel(1e12, link, 131_072))
    outcome = simulate(shared, rule, asked, pacing="timestamps", seed=1)
    (one,) = outcome.requests
    assert outcome.store is not None
    assert outcome.store.hit_tokens == one.cached_tokens == DOCUMENT
    assert (one.transfers, one.cached_from.pulled) == (1, DOCUMENT)
    moved_s = 1e-3 + DOCUMENT * 131_072 / (gb_per_s * 1e9)
    alone_s = LAW.prefill_s(DOCUMENT + 10) + LAW.prefill_s(10, DOCUMENT)
    assert one.ttft_s == pytest.approx(2 * api_s(DOCUMENT + 10) + alone_s + moved_s, rel=1e-6)
    assert one.kv_s == pytest.approx(api_s(DOCUMENT + 10) + moved_s, rel=1e-6)


def test_with_an_offload_and_a_tier_the_prefill_loads_its_blocks_and_transfers_the_rest_to_the_decoder() -> None:
    """Works as in vLLM with `kv: [nixl, offload-dram]`."""
    moves = TransferModel(bytes_per_token=131_072)
    made = fleet(2, kv_blocks=3 * SMALL, transfers=moves, connector="nixl", kv_events=True, tiers=tiers("dram"))
    roles = {
        name: replace(one, role="decode" if name == "chat-1" else "prefill") for name, one in made.instances.items()
    }
    rule = policy(flow__heavy="offload", classes__heavy_new_tokens=500, classes__warm_new_tokens=100)
    asked = documents(4)
    outcome = simulate(TwinFleet(roles), rule, asked, pacing="timestamps", seed=1)
    first, again = outcome.requests[:4], outcome.requests[4:]
    assert {one.outcome for one in outcome.requests} == {"ok"}
    assert {one.instance for one in outcome.requests} == {"chat-1"}
    assert all(one.transfers == 1 for one in first)
    assert all(one.cached_from.pulled >= DOCUMENT for one in first)
    below = outcome.instances["chat-0"].tiers
    assert below is not None
    assert below.tiers[0].hit_tokens >= DOCUMENT
    assert max(one.ttft_s or 9.0 for one in again) < min(one.ttft_s or 0.0 for one in first)


def test_tiers_of_the_engine_are_searched_before_the_store() -> None:
    shared = with_store(1, kv_blocks=SMALL, tiers=tiers("dram"))
    outcome = simulate(shared, policy("round_robin"), documents(3), pacing="timestamps", seed=1)
    assert loaded(outcome)[3:] == [DOCUMENT] * 3
    assert outcome.store is not None
    assert outcome.store.hit_tokens == 0


def test_the_facts_of_a_run_are_summed_over_instances_by_tier() -> None:
    shared = with_store(2, kv_blocks=SMALL, tiers=tiers("dram", "ssd-tutti"))
    outcome = simulate(shared, policy("round_robin"), documents(3, 3), pacing="timestamps", seed=1)
    found, loading = tier_facts(outcome)
    assert set(found) == {"dram", "ssd-tutti", "remote"}
    dram, ssd = found["dram"], found["ssd-tutti"]
    assert dram["hit_tokens"] == sum(loaded(outcome)) - found["remote"]["hit_tokens"] > 0
    assert dram["read_gb"] == pytest.approx(dram["hit_tokens"] * 131_072 / 1e9, abs=1e-4)
    assert "dwpd" not in dram
    assert ssd["dwpd"] == pytest.approx(ssd["written_gb"] * 86_400 / outcome.virtual_s / 2000, rel=1e-2)
    assert loading["bubble_s"] > 0
    assert loading["failed"] == 0
    assert tier_facts(play(documents(1, 1))) is None


@pytest.mark.parametrize(("below", "expected"), [(("dram",), (1, 6, 0)), (("ssd",), (1, 0, 6)), ((), (1, 0, 0))])
def test_the_router_in_the_twin_knows_the_tier_of_each_block(below: tuple[str, ...], expected: tuple[int, ...]) -> None:
    model = replace(MODEL, kv_blocks=8, kv_events=True, tiers=tiers(*below) if below else None)
    endpoint = SimEndpoint("chat-0", 0, model, model)
    for number, chain in enumerate(([1, 2, 3, 4, 5, 6, 7], [11, 12, 13, 14, 15, 16, 17])):
        endpoint.engine.add_request(EngineRequest(str(number), 7 * 16, 1, chain), number)
        endpoint.engine.advance(number + 0.9)
    call: Any = SimpleNamespace(chain=[1, 2, 3, 4, 5, 6, 7, 8], request=SimpleNamespace(input_tokens=8 * 16 + 1))
    tokens, by_tier = KvEventView([endpoint], 16).held(call)
    assert tokens == {"chat-0": sum(expected) * 16}
    assert by_tier == ({"chat-0": tuple(16 * blocks for blocks in expected)} if below else None)


def test_equal_arguments_give_equal_outcomes() -> None:
    models = tiers("dram", "ssd-tutti", prefetch=True)
    once, again = (
        play(documents(3, 4, every_s=0.1), fleet=fleet(2, MODEL, kv_blocks=SMALL, tiers=models)) for _ in "ab"
    )
    assert once == again


def test_a_failed_pull_from_a_tier_no_longer_counts_as_load() -> None:
    model = tiers("ssd-gds", staging_bytes=0.45 * LAYOUT.bytes(3_000))
    link = TransferModel(bytes_per_token=131_072, idle_bytes_per_s=40e9, busy_bytes_per_s=12.4e9)
    pair = fleet(2, kv_blocks=SMALL, tiers=model, kv_events=True, transfers=link, connector="nixl")
    chosen = policy("round_robin", flow__pull_gb_per_s=12.4)
    run = Simulation(pair, chosen, documents(3), None, "timestamps", 1)
    outcomes = [(one.outcome, one.code) for one in run.outcome().requests]
    assert outcomes.count(("error", "out_of_memory")) == 2
    assert outcomes.count(("ok", "")) == 4
    assert [(one.pulls, one.pull_tokens, one.prefill_tokens) for one in run._endpoints] == [(0, 0, 0)] * 2
