"""Properties that hold for every strategy, fleet and request."""

from typing import Any

from hypothesis import assume, given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.policy.decide import decide
from router.policy.rules.classify import classify
from router.policy.schema import document
from router.policy.serves import able
from router.policy.strategies import STRATEGIES
from router.policy.types import CLASSES, KV_UNKNOWN, Decision, InstanceState, ParsedPolicy, Rates, RoutingRequest

NAMES = [f"demo-{number}" for number in range(8)]
POLICIES = [document.parse(document.default(strategy)) for strategy in STRATEGIES] + [
    document.parse({"strategy": {"name": "adaptive_v1", "heavy_cache_loss_max": 10_000}}),
    document.parse({"strategy": {"name": "cache_aware", "hit_weight": 3, "load_weight": 0.5}}),
    document.parse({"strategy": {"name": "session_sticky"}, "affinity": {"break_ratio": 1, "break_floor_tokens": 0}}),
    document.parse({"strategy": {"name": "least_requests"}, "flow": {"heavy": "offload"}}),
    document.parse({"strategy": {"name": "mooncake_conductor", "ttft_limit_s": 5}, "flow": {"heavy": "offload"}}),
    document.parse({"strategy": {"name": "weighted", "filter_waiting": 1, "weight_requests": 1, "weight_session": 3}}),
]
DRAWN = ("random", "power_of_two")  # strategies that choose by the random draw
# Few distinct figures, so that ties are common.
FIGURES = st.sampled_from([0, 1, 2, 700, 9_000, 30_000, 120_000])


@st.composite
def fleets(draw: st.DrawFn) -> list[InstanceState]:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=6))
    made = [
        InstanceState(
            name,
            cached_tokens=draw(FIGURES),
            running=draw(st.sampled_from([0, 1, 2, 40, 600])),
            waiting=draw(st.integers(0, 3)),
            decodes=draw(st.integers(0, 3)),
            prefill_tokens=draw(FIGURES),
            kv_usage=draw(st.sampled_from([0.0, 0.5, 0.99, KV_UNKNOWN])),
            kv_tokens=draw(st.sampled_from([0, 100_000])),
            role=draw(st.sampled_from(["both", "both", "prefill", "decode"])),
            connector=draw(st.sampled_from(["", "nixl", "mooncake_store"])),
            pair=draw(st.sampled_from(["", "", "", NAMES[0]])),
            refused=draw(st.sampled_from(["", "", "", "draining"])),
        )
        for name in names
    ]
    return [replace(one, waiting=0) if one.kv_usage == KV_UNKNOWN else one for one in made]


REQUESTS = st.builds(
    RoutingRequest,
    prompt_tokens=st.sampled_from([0, 1, 1_000, 9_001, 30_000, 200_000]),
    session=st.none() | st.sampled_from(["s", "t", "u"]),
    bound_to=st.none() | st.sampled_from(NAMES),
    history_tokens=st.sampled_from([0, 900, 20_000]),
    rates=st.sampled_from([Rates(), Rates(10_000.0), Rates(10_000.0, 100_000.0, 3e9, 0.01)]),
    prefix_key=st.sampled_from([0, 7, 65_535]),
    turn=st.integers(0, 20),
    indivisible=st.sampled_from(["", "", "several answers to one prompt"]),
    generates=st.sampled_from([True, True, False]),
)
SITUATIONS = st.tuples(REQUESTS, fleets(), st.sampled_from(POLICIES), st.floats(0, 1, exclude_max=True))
Situation = tuple[RoutingRequest, list[InstanceState], ParsedPolicy, float]


def may_take(instance: InstanceState, situation: Situation) -> bool:
    """Return whether the instance's role allows the request, by the rules in the documentation."""
    request, instances, policy, _ = situation
    if instance.role == "prefill":
        return not request.generates
    if instance.role == "both":
        return True
    offloads = STRATEGIES[policy["strategy.name"]].offloads or policy["flow.heavy"] == "offload"
    return offloads and not request.indivisible and any(sends(one, instance) for one in instances)


def sends(helper: InstanceState, decoder: InstanceState) -> bool:
    meet = helper.connector == decoder.connector != "" and decoder.pair in ("", helper.id)
    return meet and helper.role != "decode" and not helper.refused and helper.running < 512


@given(SITUATIONS)
def test_no_policy_ever_picks_an_instance_whose_role_forbids_it(situation: Situation) -> None:
    _, instances, _, _ = situation
    by_id = {instance.id: instance for instance in instances}
    decision = decide(*situation)
    if not decision.instance:
        return
    chosen = by_id[decision.instance]
    assert may_take(chosen, situation)
    if chosen.role == "decode":
        assert decision.flow == "offload"
        assert sends(by_id[decision.prefill], chosen)


@given(SITUATIONS)
def test_an_instance_that_could_take_a_request_is_chosen_once_it_has_capacity(situation: Situation) -> None:
    request, instances, policy, draw = situation
    free = [replace(one, running=0, prefill_tokens=0) for one in instances]
    taken = bool(decide(request, free, policy, draw).instance)
    assert able(request, instances, policy) == taken


@given(SITUATIONS)
def test_an_instance_that_refuses_is_never_chosen(situation: Situation) -> None:
    request, instances, policy, draw = situation
    decision = decide(request, instances, policy, draw)
    by_id = {instance.id: instance for instance in instances}
    takers = [one for one in instances if not one.refused and one.running < 512]
    if decision.instance:
        chosen = by_id[decision.instance]
        assert chosen in takers
        takers = [one for one in takers if may_take(one, situation)]
        if not STRATEGIES[policy["strategy.name"]].offloads:
            takers = [one for one in takers if one.role != "decode"] or takers
        takers = [one for one in takers if one.kv_usage <= 0.95] or takers
        assert chosen in takers
        assert next(one for one in decision.candidates if one.id == chosen.id).refused == ""
    else:
        assert decision.rule == ("over_ttft_limit" if any(may_take(one, situation) for one in takers) else "nobody")


@given(SITUATIONS)
def test_a_prompt_is_computed_elsewhere_only_if_its_kv_can_be_transferred(situation: Situation) -> None:
    request, instances, policy, draw = situation
    decision = decide(request, instances, policy, draw)
    assert decision.flow == ("offload" if decision.prefill else "colocated")
    if decision.prefill:
        by_id = {instance.id: instance for instance in instances}
        chosen, helper = by_id[decision.instance], by_id[decision.prefill]
        assert helper is not chosen
        assert helper.connector == chosen.connector != ""
        assert helper.role != "decode"
        assert not helper.refused
        assert helper.running < 512
        new_tokens = next(one.new_tokens for one in decision.candidates if one.id == helper.id)
        assert decision.prefill_new_tokens == new_tokens


@given(SITUATIONS, st.randoms(use_true_random=False))
def test_the_order_of_the_instances_does_not_matter(situation: Situation, shuffler: Any) -> None:
    request, instances, policy, draw = situation
    shuffled = list(instances)
    shuffler.shuffle(shuffled)
    one, other = decide(request, instances, policy, draw), decide(request, shuffled, policy, draw)
    assert replace(one, candidates=(), reasons=()) == replace(other, candidates=(), reasons=())
    assert sorted(one.reasons) == sorted(other.reasons)
    assert {each.id: each for each in one.candidates} == {each.id: each for each in other.candidates}


@given(SITUATIONS)
def test_equal_situations_are_decided_alike(situation: Situation) -> None:
    assert decide(*situation) == decide(*situation)


@given(SITUATIONS)
def test_the_chosen_instance_has_the_lowest_score(situation: Situation) -> None:
    decision = decide(*situation)
    scores = {one.id: one.score for one in decision.candidates if one.score is not None}
    if decision.rule == "over_ttft_limit":
        assert min(scores.values()) > 5
    elif scores:
        assert scores[decision.instance] == min(scores.values())
    else:
        assert decision.rule in ("session", "turn", "draw", "two_choices", "offload", "prefill_decode", "nobody")


@given(SITUATIONS)
def test_a_decision_explains_itself(situation: Situation) -> None:
    request, instances, policy, draw = situation
    decision = decide(request, instances, policy, draw)
    assert decision.reasons
    assert decision.strategy == policy["strategy.name"]
    assert decision.request_class in CLASSES
    assert decision.cached_tokens + decision.new_tokens == request.prompt_tokens
    assert [one.id for one in decision.candidates] == [one.id for one in instances]
    assert all(0 <= one.cached_tokens <= request.prompt_tokens for one in decision.candidates)


@given(SITUATIONS)
def test_another_draw_changes_the_choice_only_among_equals(situation: Situation) -> None:
    request, instances, policy, _ = situation
    assume(policy["strategy.name"] not in DRAWN)
    decisions = [decide(request, instances, policy, draw) for draw in (0.0, 0.3, 0.6, 0.99)]
    scores = {one.id: one.score for one in decisions[0].candidates}
    assert len({scores.get(decision.instance) for decision in decisions}) == 1
    assert len({decision.rule for decision in decisions}) == 1


@given(SITUATIONS)
def test_the_class_is_that_on_the_instance_with_the_most_cached_tokens(situation: Situation) -> None:
    request, instances, policy, draw = situation
    decision = decide(request, instances, policy, draw)
    able = [one for one in decision.candidates if not one.refused] or list(decision.candidates)
    bound = next((one for one in able if one.id == request.bound_to), None)
    possible = {classify(request.prompt_tokens, one.cached_tokens, policy) for one in able}
    if decision.rule == "session":
        assert bound is not None
        possible = {classify(request.prompt_tokens, bound.cached_tokens, policy)}
    elif bound is None and able:
        most = max(one.cached_tokens for one in able)
        possible = {classify(request.prompt_tokens, most, policy)}
    assert decision.request_class in (possible or {classify(request.prompt_tokens, 0, policy)})


def figures(decision: Decision) -> tuple[object, ...]:
    return decision.instance, decision.rule, decision.request_class, decision.cached_tokens, list(decision.candidates)


@given(SITUATIONS)
def test_cached_tokens_count_alike_whether_the_request_or_the_instances_hold_them(situation: Situation) -> None:
    request, instances, policy, draw = situation
    held = {one.id: one.cached_tokens for one in instances if one.cached_tokens}
    bare = [replace(one, cached_tokens=77) for one in instances]
    told = decide(replace(request, held=held), bare, policy, draw)
    assert figures(told) == figures(decide(request, instances, policy, draw))
