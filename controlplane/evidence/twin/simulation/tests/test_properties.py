"""Properties of every trace, fleet and policy."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.tests.builders import asks, fleet, play, policy
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.engine.engine_model import TransferModel

STRATEGIES = ("adaptive_v1", "session_sticky", "lpwl", "smetric", "round_robin", "power_of_two", "llm_d", "prefix_hash")

plans = st.lists(
    st.tuples(
        st.floats(0, 3),  # arrival
        st.integers(1, 9_000),  # prompt
        st.integers(1, 60),  # answer
        st.sampled_from(["", "a", "b"]),  # session
        st.integers(1, 3),  # family
    ),
    min_size=1,
    max_size=14,
)
ways = st.fixed_dictionaries(
    {
        "strategy": st.sampled_from(STRATEGIES),
        "pacing": st.sampled_from(["timestamps", "closed_loop"]),
        "room": st.integers(1, 4),  # most requests on one instance
        "kv_blocks": st.sampled_from([200, 700, 25_000]),
        "kv_events": st.booleans(),
        "together": st.sampled_from(["", "ranks"]),
    }
)


def trace(plan: list[tuple[float, int, int, str, int]]) -> list[TraceRequest]:
    return [
        asks(index, at_s, tokens=tokens, output=output, session=session, family=family, shared=tokens // 128 * 64)
        for index, (at_s, tokens, output, session, family) in enumerate(sorted(plan))
    ]


def given_of(way: Mapping[str, Any]) -> dict[str, Any]:
    narrow = policy(
        way["strategy"], admission__max_inflight_per_instance=way["room"], admission__max_queue_warm=way["room"]
    )
    engines = fleet(3, kv_blocks=way["kv_blocks"], kv_events=way["kv_events"], together=way["together"])
    return {"fleet": engines, "policy": narrow, "pacing": way["pacing"]}


@settings(max_examples=60, deadline=None)
@given(plans, ways)
def test_every_request_ends_exactly_once_and_keeps_its_tokens(plan: Any, way: Any) -> None:
    requests = trace(plan)
    outcome = play(requests, **given_of(way))
    assert [one.index for one in outcome.requests] == [one.index for one in requests]
    for asked, one in zip(requests, outcome.requests, strict=True):
        assert (one.input_tokens, one.output_tokens) == (asked.input_tokens, asked.output_tokens)
        assert one.outcome in ("ok", "refused", "client_error", "error")
        assert (one.code == "") == (one.outcome == "ok")
        assert (one.ttft_s is None) == (one.outcome != "ok")
        assert 0 <= one.cached_tokens < one.input_tokens
        assert (one.instance in given_of(way)["fleet"].instances) == (one.outcome != "refused")
    assert outcome.virtual_s == max(one.sent_s + (one.e2e_s or 0.0) for one in outcome.requests)


@settings(max_examples=60, deadline=None)
@given(plans, ways)
def test_nothing_begins_before_its_time(plan: Any, way: Any) -> None:
    requests = trace(plan)
    for asked, one in zip(requests, play(requests, **given_of(way)).requests, strict=True):
        if way["pacing"] == "timestamps":
            assert one.sent_s == asked.at_s
        if one.ttft_s is not None and one.e2e_s is not None:
            assert 0 <= one.queued_s < one.ttft_s <= one.e2e_s


@settings(max_examples=40, deadline=None)
@given(plans, ways, st.integers(0, 9))
def test_the_same_arguments_give_the_same_outcome(plan: Any, way: Any, seed: int) -> None:
    requests, options = trace(plan), given_of(way)
    assert play(requests, seed=seed, **options) == play(requests, seed=seed, **options)


@settings(max_examples=40, deadline=None)
@given(plans, ways, st.booleans())
def test_engines_that_are_not_sampled_keep_their_last_figures(plan: Any, way: Any, offloads: bool) -> None:
    requests, options = trace(plan), given_of(way)
    if offloads:
        moved = TransferModel(bytes_per_token=1e5, hold_s=0.7)
        options["fleet"] = fleet(3, kv_blocks=way["kv_blocks"], transfers=moved, connector="nixl")
        options["policy"] = policy("adaptive_offload", classes__heavy_new_tokens=2_000, classes__warm_new_tokens=100)
    few = play(requests, **options)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimEndpoint, "is_settled", False)
        assert play(requests, **options) == few


@settings(max_examples=40, deadline=None)
@given(plans, ways)
def test_a_shadow_that_equals_the_live_policy_changes_nothing(plan: Any, way: Any) -> None:
    requests, options = trace(plan), given_of(way)
    alone, shadowed = play(requests, **options), play(requests, shadow=options["policy"], **options)
    assert not any(one.shadow_changed for one in shadowed.requests)
    assert shadowed.requests == alone.requests


@settings(max_examples=40, deadline=None)
@given(plans, ways, st.sampled_from(STRATEGIES))
def test_shadow_decisions_have_no_effect(plan: Any, way: Any, other: str) -> None:
    requests, options = trace(plan), given_of(way)
    shadowed = play(requests, shadow=policy(other), **options).requests
    seen = [replace(one, shadow_changed=False) for one in shadowed]
    assert seen == list(play(requests, **options).requests)


@settings(max_examples=40, deadline=None)
@given(plans, ways)
def test_the_order_in_which_equal_instances_are_given_does_not_matter(plan: Any, way: Any) -> None:
    """Ties are broken by the order of their ids."""
    requests, options = trace(plan), given_of(way)
    turned = {**options, "fleet": TwinFleet(dict(reversed(options["fleet"].instances.items())))}
    assert play(requests, **options) == play(requests, **turned)


@settings(max_examples=40, deadline=None)
@given(plans, ways.filter(lambda way: way["strategy"] != "prefix_hash" and way["strategy"] != "session_sticky"))
def test_renaming_equal_instances_changes_nothing_but_the_names(plan: Any, way: Any) -> None:
    requests, options = trace(plan), given_of(way)
    names = dict(zip(options["fleet"].instances, ("x", "y", "z"), strict=True))
    renamed = TwinFleet({names[name]: model for name, model in options["fleet"].instances.items()})
    before, after = play(requests, **options), play(requests, **{**options, "fleet": renamed})
    assert [replace(one, instance=names.get(one.instance, "")) for one in before.requests] == list(after.requests)


def test_a_shadow_counts_requests_that_it_would_route_elsewhere() -> None:
    """With four requests on the first instance, a cache-aware policy stays there and a load-aware one chooses
    another."""
    requests = [asks(at, at * 0.001, tokens=6_400, output=400, family=1, shared=6_400) for at in range(6)]
    outcome = play(requests, policy=policy("cache_aware"), shadow=policy("least_requests"))
    assert [one.shadow_changed for one in outcome.requests] == [False] + [True] * 5


@settings(max_examples=60, deadline=None)
@given(plans, st.sampled_from([150, 300, 25_000]), st.floats(0.05, 5))
def test_offloaded_requests_end_however_little_room_there_is(plan: Any, kv_blocks: int, hold: float) -> None:
    """Two requests that wait for each other's blocks would wait forever if blocks were not released in time."""
    moves = TransferModel(bytes_per_token=131_072, hold_s=hold)
    joined = fleet(3, kv_blocks=kv_blocks, connector="nixl", transfers=moves)
    eager = policy("adaptive_offload", classes__heavy_new_tokens=300, classes__warm_new_tokens=100)
    requests = trace(plan)
    outcome = play(requests, fleet=joined, policy=eager)
    assert [one.index for one in outcome.requests] == [one.index for one in requests]
    assert {one.outcome for one in outcome.requests} <= {"ok", "client_error", "error"}
