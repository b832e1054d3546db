"""Data-parallel ranks in the twin: each is a separate engine, as routers see them."""

import pytest

from controlplane.evidence.twin.pool_model import twin_of
from controlplane.evidence.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.evidence.twin.simulation.sim_router import SimRouter
from controlplane.evidence.twin.simulation.tests.builders import asks, play, policy
from fleet.models import Pool


def pool(**engine: object) -> Pool:
    return Pool.objects.create(name="chat", model="llama", kind="sim", replicas=2, engine=engine)


@pytest.mark.django_db
def test_each_rank_is_simulated_as_a_separate_engine() -> None:
    found = twin_of(pool(data_parallel_size=2))
    assert list(found.fleet.instances) == ["chat-0#0", "chat-0#1", "chat-1#0", "chat-1#1"]
    assert len(set(found.fleet.instances.values())) == 1
    outcome = play([asks(number) for number in range(4)], fleet=found.fleet, policy=policy("round_robin"))
    assert [one.instance for one in outcome.requests] == list(found.fleet.instances)


@pytest.mark.django_db
def test_the_ranks_of_a_group_are_numbered_across_its_instances() -> None:
    found = twin_of(pool(data_parallel_size=4, data_parallel_size_local=2))
    assert list(found.fleet.instances) == ["chat-0#0", "chat-0#1", "chat-1#2", "chat-1#3"]


@pytest.mark.django_db
def test_ranks_that_step_together_count_their_groups_decodes() -> None:
    found = twin_of(pool(data_parallel_size=2, model_profile="Qwen3-30B-A3B"))
    endpoints = [
        SimEndpoint(name, place, model, model) for place, (name, model) in enumerate(found.fleet.instances.items())
    ]
    SimRouter(endpoints, None, policy(), None, lambda _: None)  # type: ignore[arg-type]  # asked for nothing
    endpoints[0].sent(100)
    endpoints[0].began(100)
    assert [endpoint.view("").decodes for endpoint in endpoints] == [1, 1, 0, 0]


@pytest.mark.django_db
def test_a_long_prompt_delays_the_answers_of_its_group_and_of_no_other() -> None:
    fleet = twin_of(pool(data_parallel_size=2, model_profile="Qwen3-30B-A3B")).fleet
    names = list(fleet.instances)
    talks = [asks(number, tokens=512, output=200) for number in range(4)]
    alone = play(talks, fleet=fleet, policy=policy("round_robin"))
    beside = play([*talks, asks(4, 0.5, tokens=30_000, output=1)], fleet=fleet, policy=policy("round_robin"))
    assert [one.instance for one in beside.requests] == [*names, names[0]]
    pairs = zip(alone.requests, beside.requests[:4], strict=True)
    slower = [(with_it.tpot_s or 0) / (without.tpot_s or 1) for without, with_it in pairs]
    assert slower[1] == pytest.approx(slower[0], rel=0.02)
    assert slower[1] > 1.2
    assert slower[2:] == pytest.approx([1, 1], rel=0.01)
