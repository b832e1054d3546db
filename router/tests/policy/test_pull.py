"""Decides when the instance that holds more of a prompt computes its remainder for another instance."""

from typing import Any

import orjson
import pytest

from router.policy.candidates import Candidates
from router.policy.columns import RecordedColumns
from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import Decision, InstanceState, Rates, RoutingRequest
from router.policy.value import replace

# 10,000 tokens take 1 s to compute and 0.1 s to move at 1 GB/s
RATES = Rates(prefill_tokens_per_s=10_000.0, kv_bytes_per_token=10_000.0)
PROMPT = 10_000


def made(name: str, **state: Any) -> InstanceState:
    return InstanceState(name, **{"connector": "nixl", **state})


def decided(
    here: InstanceState, *peers: InstanceState, rates: Rates = RATES, pull: float = 1.0, **asked: Any
) -> Decision:
    """Decide with `random`, which takes the first instance by id."""
    policy = document.parse({"strategy": {"name": "random"}, "flow": {"pull_gb_per_s": pull}})
    request = RoutingRequest(**{"prompt_tokens": PROMPT, "rates": rates, **asked})
    decision = decide(request, [here, *peers], policy, 0.0)
    assert decision.instance == here.id
    return decision


def test_the_peer_that_holds_most_computes_the_remainder_and_the_receipt_has_the_expected_time() -> None:
    near, nearer = made("b", cached_tokens=6_000), made("c", cached_tokens=9_000)
    decision = decided(made("a"), near, nearer)
    assert (decision.prefill, decision.flow, decision.prefill_new_tokens) == ("c", "offload", 1_000)
    assert decision.pull_ms == pytest.approx(200)
    assert decision.reasons[-1] == (
        "pull: c holds 9,000 tokens: 200 ms, 100 of them to move the KV, against 1,000 ms to compute it on a"
    )
    assert decision.pull_tokens == 2_000  # a is busy for as long as computing 2,000 tokens takes


def test_by_default_nothing_is_pulled() -> None:
    assert document.parse(document.default())["flow.pull_gb_per_s"] == 0
    decision = decided(made("a"), made("b", cached_tokens=9_000), pull=0.0)
    assert (decision.prefill, decision.pull_ms) == ("", None)


HOLDER = made("b", cached_tokens=9_000)


@pytest.mark.parametrize(
    ("here", "peer", "asked", "why"),
    [
        (made("a"), HOLDER, {"rates": Rates(kv_bytes_per_token=1.0)}, "how fast prompts are computed is not known yet"),
        (made("a"), HOLDER, {"rates": Rates(9_000.0)}, "the size of a token's KV is not known yet"),
        (made("a", kv_usage=0.95, kv_tokens=100_000), HOLDER, {}, "a has no room for the prompt's KV"),
        (made("a"), made("b", cached_tokens=9_000, prefill_tokens=8_000), {}, "against 1,000 ms on a"),
        (made("a"), HOLDER, {"rates": Rates(10_000.0, 10_000.0, 1e8)}, "against 1,000 ms on a"),
        (made("a", cached_tokens=9_500), HOLDER, {}, None),
        (made("a"), made("b", cached_tokens=9_000, connector="mooncake_p2p"), {}, None),
        (made("a"), made("b", cached_tokens=9_000, refused="draining"), {}, None),
        (made("a", connector=""), HOLDER, {}, None),
        (made("a", connector="mooncake_store"), made("b", cached_tokens=9_000, connector="mooncake_store"), {}, None),
        (made("a"), HOLDER, {"indivisible": "echo"}, None),
    ],
)
def test_nothing_is_pulled_if_it_takes_longer_or_is_impossible(
    here: InstanceState, peer: InstanceState, asked: dict[str, Any], why: str | None
) -> None:
    decision = decided(here, peer, **asked)
    assert (decision.prefill, decision.flow, decision.pull_ms) == ("", "colocated", None)
    told = [reason for reason in decision.reasons if "pull" in reason]
    assert told == [] if why is None else told[0].endswith(why)


def test_a_peer_with_a_full_cache_sends_only_if_no_other_instance_has_capacity() -> None:
    full = made("b", cached_tokens=9_000, kv_usage=0.99)
    assert decided(made("a", kv_usage=0.99), full).prefill == "b"
    assert decided(made("a", kv_usage=0.9), full, made("c", kv_usage=0.5)).prefill == ""
    assert decided(made("a", kv_usage=0.9), full, made("c", kv_usage=0.5, cached_tokens=8_000)).prefill == "c"


def test_queued_prompts_and_measured_rates_are_considered() -> None:
    slow = Rates(10_000.0, 10_000.0, 1e8)  # 1 s to move
    assert decided(made("a"), HOLDER, rates=slow).prefill == ""
    assert decided(made("a", decodes=9), HOLDER, rates=slow).prefill == ""
    assert decided(made("a", prefill_tokens=2_000), HOLDER, rates=slow).prefill == "b"


def test_pulls_from_one_peer_share_its_link_and_pulls_that_an_instance_awaits_leave_its_gpu_free() -> None:
    measured = Rates(10_000.0, 10_000.0, 2e8)  # 0.5 s to move
    busy = replace(HOLDER, pulls=1)
    assert decided(made("a"), HOLDER, rates=measured).prefill == "b"
    shared = decided(made("a"), busy, rates=measured)
    assert shared.prefill == ""
    assert shared.reasons[-1].endswith(
        "500 of them to move the KV alone and 1 further from there, against 1,000 ms on a"
    )
    assert decided(made("a"), busy, replace(HOLDER, id="c"), rates=measured).prefill == "c"
    waits = {"prefill_tokens": 4_000, "pull_tokens": 4_000}
    assert decided(made("a", **waits), busy, rates=measured).prefill == ""
    assert decided(made("a"), made("b", cached_tokens=9_000, **waits), rates=measured).prefill == "b"


def test_the_extra_time_of_pulls_counts_but_not_the_time_of_each_prompt() -> None:
    late = Rates(10_000.0, 10_000.0, 2e8, pull_extra_s=0.5)
    assert decided(made("a"), HOLDER, rates=late).prefill == ""
    short_prompts = Rates(2_000.0, 10_000.0, 5e7, compute_tokens_per_s=10_000.0)  # 2 s to move, 1 s to compute
    assert decided(made("a"), HOLDER, rates=short_prompts).prefill == ""


def test_only_one_pull_is_allowed_until_one_has_been_measured() -> None:
    another = made("c", prefill_tokens=400, pull_tokens=400)
    assert decided(made("a"), HOLDER, another).reasons[-1].startswith("no pull: the first one is under way")
    assert decided(made("a"), HOLDER, made("c", pulls=1)).prefill == "b"  # another router started c's pull
    assert decided(made("a"), HOLDER, another, rates=Rates(10_000.0, 10_000.0, 1e9)).prefill == "b"


def test_replaying_a_receipt_repeats_the_routers_decision() -> None:
    peers = HOLDER, made("c", cached_tokens=9_500, pulls=2)
    decision = decided(made("a", prefill_tokens=300, pull_tokens=200), *peers, rates=Rates(10_000.0, 10_000.0, 2e8))
    assert isinstance(decision.candidates, Candidates)
    kept = RecordedColumns(orjson.loads(orjson.dumps(decision.candidates.columns())))
    again = [replace(one, cached_tokens=held) for one, held in zip(kept.instances(), kept.held().values(), strict=True)]
    assert decided(*again, rates=Rates(10_000.0, 10_000.0, 2e8)) == decision


def test_of_equal_peers_the_less_loaded_one_sends() -> None:
    assert (
        decided(made("a"), made("b", cached_tokens=9_000, prefill_tokens=500), made("c", cached_tokens=9_000)).prefill
        == "c"
    )
