"""A policy that never offloads is refused for a pool of prefill and decode instances."""

import pytest
from django.utils import timezone

from controlplane.pages.fleet_ops import actions
from controlplane.people.audit.services import Actor
from controlplane.traffic.deliveries.proposing import propose
from controlplane.traffic.policies import served, services
from controlplane.traffic.policies.models import Policy, PolicyVersion
from fleet.control.rollback import rollback_failed
from fleet.kinds.options import option
from fleet.models import Pool, PoolVersion
from fleet.services import NotPossible
from fleet.spec.fleet_spec import InvalidFleet
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents

ADA = Actor("user", "ada")
WHY = "the pool has decode instances"
PD = {"kv": "nixl", "prefill_instances": 1}
OFFLOADS = {"strategy": {"name": "adaptive_offload"}}
NEVER = {"strategy": {"name": "lpwl"}}

pytestmark = pytest.mark.django_db


@pytest.fixture
def policy() -> Policy:
    services.ensure_default_policy()
    services.create_policy("night", NEVER, ADA, WHY)
    return services.create_policy("chat", OFFLOADS, ADA, WHY).version.policy


@pytest.fixture
def pool(policy: Policy) -> Pool:
    return Pool.objects.create(name="pd", model="m", kind="sim", policy="chat", replicas=3, engine=PD)


def drafted(policy: Policy, document: JsonObject) -> None:
    draft = services.open_draft(policy, ADA)
    services.save_draft(policy, document, ADA, if_match=draft.etag)


def refused(error: pytest.ExceptionInfo[InvalidInput], version: int) -> None:
    problem = error.value.problems[0]
    assert problem.path == "strategy.name"
    assert "cannot serve the pool pd: 1 of its 3 instances only compute prompts" in problem.message
    assert Policy.objects.get(name="chat").live == version


def test_an_unsuitable_policy_is_not_published(pool: Pool, policy: Policy) -> None:
    drafted(policy, NEVER)
    with pytest.raises(InvalidInput) as error:
        services.publish(policy, ADA, WHY)
    refused(error, 1)


def test_an_unsuitable_policy_is_not_delivered(pool: Pool, policy: Policy) -> None:
    drafted(policy, NEVER)
    with pytest.raises(InvalidInput) as error:
        propose(policy, {"steps": [{"mode": "full", "bake_s": 600}]}, ADA, WHY)
    refused(error, 1)


def test_an_unsuitable_policy_is_not_rolled_back_to(pool: Pool, policy: Policy) -> None:
    Pool.objects.update(engine={})
    drafted(policy, NEVER)
    services.publish(policy, ADA, WHY)
    drafted(policy, OFFLOADS)
    services.publish(policy, ADA, WHY)
    Pool.objects.update(engine=PD)
    with pytest.raises(InvalidInput) as error:
        services.rollback(policy, 2, ADA, WHY)
    refused(error, 3)


def test_an_unsuitable_policy_is_not_created_for_a_waiting_pool(pool: Pool) -> None:
    Pool.objects.update(policy="day")
    with pytest.raises(InvalidInput):
        services.create_policy("day", NEVER, ADA, WHY)
    assert not PolicyVersion.objects.filter(policy__name="day").exists()


def test_a_pool_of_instances_that_do_both_takes_any_policy(pool: Pool, policy: Policy) -> None:
    Pool.objects.update(engine={"kv": "nixl"})
    drafted(policy, NEVER)
    assert services.publish(policy, ADA, WHY).version.number == 2


@pytest.mark.parametrize(("document", "engine"), [({"strategy": {"name": "ppd"}}, PD), (NEVER, {"kv": "nixl"})])
def test_a_policy_is_published_without_building_engines(
    document: JsonObject, engine: JsonObject, pool: Pool, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pool.objects.update(engine=engine)
    monkeypatch.setattr(option, "_by_name", None)
    drafted(policy, document)
    assert services.publish(policy, ADA, WHY).version.number == 2


def fleet(policy: str, **engine: object) -> JsonObject:
    pool = {"name": "pd", "model": "m", "policy": policy, "kind": "sim", "replicas": 3, "engine": engine}
    spec = {"pools": [pool]}
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": spec}


def test_the_default_policy_serves_such_a_pool(policy: Policy) -> None:
    actions.apply(fleet("default", **PD), ADA)
    assert Pool.objects.get(name="pd").policy == "default"


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_fleet_with_a_pool_that_the_policy_cannot_serve_is_refused(policy: Policy, dry_run: bool) -> None:
    with pytest.raises(InvalidFleet) as error:
        actions.apply(fleet("night", **PD), ADA, dry_run=dry_run)
    problem = error.value.problems[0]
    assert problem.path == "spec.pools[0].policy"
    assert "the policy night cannot serve it: 1 of its 3 instances only compute prompts" in problem.message
    assert not Pool.objects.exists()
    actions.apply(fleet("chat", **PD), ADA, dry_run=dry_run)


def test_a_pool_does_not_return_to_a_configuration_that_its_policy_cannot_serve(policy: Policy) -> None:
    actions.apply(fleet("chat", **PD), ADA)
    actions.apply(fleet("night", kv="nixl"), ADA)
    with pytest.raises(NotPossible, match="its policy cannot serve that configuration"):
        actions.roll_back("pd", ADA, WHY, 1)
    assert Pool.objects.get(name="pd").engine == {"kv": "nixl"}


def test_a_halted_pool_does_not_roll_back_automatically(policy: Policy) -> None:
    actions.apply(fleet("chat", **PD), ADA)
    PoolVersion.objects.update(proven_at=timezone.now())
    actions.apply(fleet("night", kv="nixl"), ADA)
    rollback_failed(Pool.objects.get(name="pd"), "pd-0 failed", timezone.now(), actions.roll_back_by_itself)
    row = Pool.objects.get(name="pd")
    assert row.engine == {"kv": "nixl"}
    assert "not rolled back: pd: its policy cannot serve that configuration: 1 of its 3 instances" in row.halted


TWO_ROLES = ("prefill", "decode")


@pytest.mark.parametrize(
    ("policy", "roles", "why"),
    [
        ({"strategy": {"name": "least_requests"}}, TWO_ROLES, "1 of its 2 instances only compute prompts"),
        ({"strategy": {"name": "least_requests"}, "flow": {"heavy": "offload"}}, TWO_ROLES, ""),
        ({"strategy": {"name": "ppd"}}, TWO_ROLES, ""),
        ({"strategy": {"name": "least_requests"}}, (*TWO_ROLES, "both"), ""),
        ({"strategy": {"name": "least_requests"}}, TWO_ROLES[:1], ""),  # no policy could serve the pool
        ({"strategy": {"name": "least_requests"}}, (), ""),
    ],
)
def test_a_policy_that_never_offloads_cannot_serve_a_pool_of_two_roles(
    policy: JsonObject, roles: tuple[str, ...], why: str
) -> None:
    found = served.by_roles(documents.parse(policy), roles)
    assert found.startswith(why)
    assert bool(found) == bool(why)
