"""Data-parallel ranks in the twin: each an engine of its own, as routers see them."""

import pytest

from controlplane.twin.pool_model import twin_of
from controlplane.twin.simulation.sim_endpoint import SimEndpoint
from controlplane.twin.simulation.sim_router import SimRouter
from controlplane.twin.simulation.tests.builders import asks, play, policy
from fleet.models import Pool

STEPPING = "wait in each step for the slowest of their group"


def pool(**engine: object) -> Pool:
    return Pool.objects.create(name="chat", model="llama", kind="sim", replicas=2, engine=engine)


@pytest.mark.django_db
def test_each_rank_is_played_as_an_engine_of_its_own() -> None:
    found = twin_of(pool(data_parallel_size=2))
    assert list(found.fleet.instances) == ["chat-0#0", "chat-0#1", "chat-1#0", "chat-1#1"]
    assert len(set(found.fleet.instances.values())) == 1
    outcome = play([asks(number) for number in range(4)], fleet=found.fleet, policy=policy("round_robin"))
    assert [one.instance for one in outcome.requests] == list(found.fleet.instances)


@pytest.mark.django_db
def test_the_ranks_of_a_group_are_numbered_through_its_instances() -> None:
    found = twin_of(pool(data_parallel_size=4, data_parallel_size_local=2))
    assert list(found.fleet.instances) == ["chat-0#0", "chat-0#1", "chat-1#2", "chat-1#3"]


@pytest.mark.django_db
def test_ranks_that_step_together_count_their_groups_decodes_and_the_twin_says_what_it_leaves_out() -> None:
    found = twin_of(pool(data_parallel_size=2, model_profile="Qwen3-30B-A3B"))
    assert any(STEPPING in caution for caution in found.cautions)
    assert not any(STEPPING in caution for caution in twin_of(pool_of_one()).cautions)
    endpoints = [
        SimEndpoint(name, place, model, model) for place, (name, model) in enumerate(found.fleet.instances.items())
    ]
    SimRouter(endpoints, None, policy(), None)  # type: ignore[arg-type]  # asked for nothing
    endpoints[0].sent(100)
    endpoints[0].began(100)
    assert [endpoint.view("").decodes for endpoint in endpoints] == [1, 1, 0, 0]


def pool_of_one() -> Pool:
    return Pool.objects.create(name="one", model="llama", kind="sim", replicas=1, engine={"data_parallel_size": 2})
