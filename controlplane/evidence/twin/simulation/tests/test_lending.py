"""Decoders keep the blocks of an answer for the prefill of the next turn, as in router/request/lending.py."""

from dataclasses import replace

import pytest

from controlplane.evidence.twin.simulation.simulate import Simulation
from controlplane.evidence.twin.simulation.tests.builders import BLOCK, asks, fleet, policy
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.engine.engine_model import TransferModel
from fleet.engine.profiles import profile
from fleet.kinds import KINDS
from fleet.kinds.options.option import build
from fleet.kinds.vllm.vllm import twin_kv
from fleet.tests.test_command_lines import launch
from router.policy.types import Rates

PROMPT, REPLY = 8_000 // BLOCK * BLOCK, 4_000 // BLOCK * BLOCK  # tokens
RULE = {"flow__heavy": "offload", "classes__heavy_new_tokens": 500, "classes__warm_new_tokens": 100}
KV = profile().sizes.kv_bytes_per_token
LATER_S = 2_000.0  # by then all blocks lent before are free


def played(lend_s: float, family: int = 1, *, kv_events: bool = True) -> Simulation:
    """Two turns of a session, the second of which begins like its family; another request follows later."""
    turns = [
        asks(0, tokens=PROMPT, output=REPLY, family=1, shared=PROMPT, session="s"),
        asks(1, 200.0, tokens=PROMPT + REPLY + BLOCK, output=2, family=family, shared=PROMPT, session="s"),
        asks(2, LATER_S, tokens=PROMPT),
    ]
    moves = TransferModel(bytes_per_token=KV, idle_bytes_per_s=40e9, busy_bytes_per_s=40e9, lend_s=lend_s)
    made = fleet(2, transfers=moves, connector="nixl", kv_events=kv_events).instances
    roles = {name: replace(one, role="decode" if name == "chat-1" else "prefill") for name, one in made.items()}
    return Simulation(TwinFleet(roles), policy(**RULE), turns, None, "timestamps", 1)


def pulled(play: Simulation) -> int:
    return play._by_name["chat-0"].engine.stats().pull_hits


def held(play: Simulation) -> int:
    return play._by_name["chat-1"].engine.stats().held_blocks


def test_the_prefill_of_the_next_turn_pulls_the_answer_from_its_decoder() -> None:
    alone, lending = played(0.0), played(600.0)
    _, computed, _ = alone.outcome().requests
    _, moved, _ = lending.outcome().requests
    assert (pulled(alone), computed.transfers) == (0, 1)
    assert (pulled(lending), moved.transfers) == (REPLY - BLOCK, 2)  # whole blocks; the last token has no KV
    assert moved.ttft_s is not None
    assert computed.ttft_s is not None
    assert moved.ttft_s < 0.8 * computed.ttft_s


@pytest.mark.parametrize(("lend_s", "family", "tokens"), [(600.0, 1, REPLY - BLOCK), (1.0, 1, 0), (600.0, 2, 0)])
def test_lent_blocks_are_kept_for_their_time_for_the_same_conversation_and_then_freed(
    lend_s: float, family: int, tokens: int
) -> None:
    play = played(lend_s, family)
    play.first(1)
    assert held(play) > 0
    play.outcome()
    assert pulled(play) == tokens
    last = -(-(PROMPT + 9) // BLOCK)  # blocks lent by the later request
    assert [one.engine.stats().held_blocks for one in play._endpoints] == [0, last]


def test_engines_whose_tokens_the_router_does_not_know_keep_blocks_as_well() -> None:
    play = played(600.0, kv_events=False)
    play.first(1)
    first = held(play)
    play.first(2)
    assert 0 < first < held(play)
    assert pulled(play) == 0


@pytest.mark.parametrize("holds", [True, False])
def test_blocks_that_are_faster_to_compute_are_not_transferred_and_a_prefill_that_holds_some_frees_them(
    holds: bool,
) -> None:
    play = played(600.0)
    play.first(1)
    first = held(play)
    if not holds:
        play._by_name["chat-0"].engine.reset_cache()
    play._sim_router._rates = Rates(
        prefill_tokens_per_s=30_000.0, kv_bytes_per_token=KV, transfer_bytes_per_s=1e7, transfer_setup_s=1.0
    )
    play.first(2)
    second = -(-(PROMPT + REPLY + BLOCK + 1) // BLOCK)
    assert held(play) == (second if holds else first + second)
    assert [one.transfers for one in play.outcome().requests] == [1, 1, 1]
    assert pulled(play) == 0


@pytest.mark.parametrize(("options", "lend_s"), [({"kv": "nixl", "lend_s": 60}, 60), ({"kv": "nixl"}, 0)])
def test_a_measured_pool_lends_as_its_options_say(options: dict[str, object], lend_s: float) -> None:
    kv = twin_kv(build(KINDS["vllm"].spec, {"model": "Qwen/Qwen3-8B", **options}), launch())
    moves = kv.transfers("nixl")
    assert moves is not None
    assert moves.lend_s == lend_s
