"""Properties of the price of every request on every fleet."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from router.policy.decide import decide
from router.policy.schema import document
from router.policy.types import InstanceState, Rates, RoutingRequest

POLICY = document.parse(document.default("priced"))
FIGURES = st.sampled_from([0, 1, 700, 9_000, 120_000])
INSTANCES = st.lists(
    st.builds(
        InstanceState,
        id=st.uuids().map(str),
        cached_tokens=FIGURES,
        running=st.integers(0, 40),
        prefill_tokens=FIGURES,
        kv_usage=st.sampled_from([0.0, 0.4, 0.9]),
        kv_tokens=st.just(100_000),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda one: one.id,
)
REQUESTS = st.builds(
    RoutingRequest,
    prompt_tokens=st.sampled_from([1, 900, 30_000, 130_000]),
    rates=st.sampled_from([Rates(), Rates(context_cost=0.0025), Rates(work_tokens_per_s=2_000.0)]),
)


def prices(request: RoutingRequest, instances: list[InstanceState], **values: float) -> dict[str, float]:
    policy = document.parse({"strategy": {"name": "priced", **values}}) if values else POLICY
    return {one.id: one.score or 0.0 for one in decide(request, instances, policy, 0.5).candidates}


@given(REQUESTS, INSTANCES, st.sampled_from(["running", "prefill_tokens", "kv_usage"]))
def test_more_load_on_an_instance_never_makes_it_cheaper(
    request: RoutingRequest, instances: list[InstanceState], field: str
) -> None:
    first, *others = instances
    more = 0.95 if field == "kv_usage" else getattr(first, field) + 5
    loaded = replace(first, **{field: more})
    before, after = prices(request, instances), prices(request, [loaded, *others])
    assert after[first.id] >= before[first.id]


@given(REQUESTS, INSTANCES)
def test_more_of_the_prompt_in_its_cache_never_makes_an_instance_more_expensive(
    request: RoutingRequest, instances: list[InstanceState]
) -> None:
    first, *others = instances
    warmer = replace(first, cached_tokens=first.cached_tokens + 500)
    before, after = prices(request, instances), prices(request, [warmer, *others])
    assert after[first.id] <= before[first.id]
    assert {name: after[name] for name in after if name != first.id} == {
        name: before[name] for name in before if name != first.id
    }


@given(REQUESTS, INSTANCES)
def test_without_a_stall_weight_idle_fleets_are_ranked_by_wait_and_limit_alone(
    request: RoutingRequest, instances: list[InstanceState]
) -> None:
    idle = [replace(one, prefill_tokens=0) for one in instances]
    found = prices(request, idle, stall_weight=0.0)
    for one in idle:
        new = request.prompt_tokens - min(one.cached_tokens, request.prompt_tokens)
        wait, late = new + new * (request.prompt_tokens - new / 2) / 30_000, 5 * request.rates.work_tokens_per_s
        assert found[one.id] == (wait if not late or wait <= late else min(wait, 2 * late) + late / 2)


@given(REQUESTS, INSTANCES)
def test_a_price_is_at_least_the_wait_and_at_most_the_wait_plus_full_stalls(
    request: RoutingRequest, instances: list[InstanceState]
) -> None:
    least, most = prices(request, instances, stall_weight=0.0), prices(request, instances, stall_weight=1.0)
    for name, price in prices(request, instances).items():
        assert least[name] <= price <= most[name]
