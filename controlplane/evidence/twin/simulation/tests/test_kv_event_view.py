"""The part of a prompt that instances with KV events hold: with many instances, the router tracks it; with few, it
asks each.
"""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.evidence.twin.simulation import kv_event_view
from controlplane.evidence.twin.simulation.kv_event_view import Holders
from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, play, policy
from fleet.engine.engine_model import TransferModel
from fleet.engine.profiles import profile

CHAIN = range(100, 112)
PREFIXES = st.lists(st.integers(0, len(CHAIN)), min_size=1, max_size=8)


def followed(prefixes: Sequence[int]) -> Holders:
    holders = Holders()
    for place, blocks in enumerate(prefixes):
        holders.add(CHAIN[:blocks], 1 << place)
    return holders


@given(PREFIXES, PREFIXES)
def test_each_instance_holds_what_was_stored_there_and_not_removed(stored: list[int], left: list[int]) -> None:
    holders = followed(stored)
    for place, (before, after) in enumerate(zip(stored, left, strict=False)):
        for block in CHAIN[min(before, after) : before]:
            holders.discard(block, 1 << place)
    kept = [min(pair) for pair in zip(stored, left, strict=False)] + stored[len(left) :]
    levels = holders.held(CHAIN) or []
    assert [blocks for blocks, _ in levels] == sorted({blocks for blocks in kept if blocks})
    for place, blocks in enumerate(kept):
        assert [level for level, mask in levels if mask & 1 << place] == [blocks] * (blocks > 0)


def test_no_instance_holds_an_unknown_prompt() -> None:
    assert followed([3]).held(range(5)) == []
    assert followed([3]).held(()) == []


def test_a_gap_in_the_blocks_of_an_instance_is_reported() -> None:
    holders = followed([2, 4])
    holders.add([CHAIN[4]], 1)
    assert holders.held(CHAIN) is None


@pytest.mark.parametrize("pulls", [False, True])
def test_maintaining_the_view_changes_no_decision(monkeypatch: pytest.MonkeyPatch, pulls: bool) -> None:
    """With evictions, on instances that share prompts."""
    draw = random.Random(3)
    trace = [
        asks(n, n * 0.05, tokens=3_000 + draw.randrange(3_000), output=20, family=1 + draw.randrange(6), shared=2_560)
        for n in range(240)
    ]
    link = TransferModel(
        bytes_per_token=profile().sizes.kv_bytes_per_token, idle_bytes_per_s=40e9, busy_bytes_per_s=12.4e9
    )
    model = {"kv_blocks": 800, "kv_events": True, **({"transfers": link, "connector": "nixl"} if pulls else {})}
    chosen = policy("cache_aware", **({"flow__pull_gb_per_s": 12.4} if pulls else {}))
    outcomes = []
    for above in (0, 10):
        monkeypatch.setattr(kv_event_view, "FOLLOWED_ABOVE", above)
        outcomes.append(play(trace, fleet=fleet(5, **model), policy=chosen).requests)
    assert outcomes[0] == outcomes[1]
    assert len({one.instance for one in outcomes[0]}) == 5
