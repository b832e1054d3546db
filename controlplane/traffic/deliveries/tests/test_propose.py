import pytest

from controlplane.traffic.deliveries import selectors, services
from controlplane.traffic.deliveries.tests.conftest import ADA, OTTO, WHY, proposed
from controlplane.traffic.policies import selectors as policies
from router.contract.values.problem import InvalidInput


def test_a_proposal_makes_the_draft_the_candidate_and_keeps_the_live_version(redis_away, policy, pool):
    made = proposed(policy)
    assert (made.state, made.candidate.number, made.base.number, made.proposer) == ("ready", 2, 1, OTTO.name)
    assert policies.open_draft(policy) is None
    assert policies.live_version(policy).number == 1
    assert selectors.open_delivery(policy) == made


def test_a_policy_that_requires_approvals_adds_them_to_the_plan(redis_away, policy, pool):
    assert proposed(policy, approvals={"needed": 1}).state == "proposed"


@pytest.mark.parametrize(
    ("share", "for_s", "bake_s", "lacks"),
    [
        (0.05, 600, 600, []),
        (0.01, 600, 600, ["plan.steps"]),
        (0.05, 60, 600, ["plan.steps"]),
        (0.05, 600, 60, ["plan.steps[1].bake_s"]),
    ],
)
def test_a_policy_that_never_goes_live_directly_requires_its_minimum_of_a_plan(
    redis_away, policy, pool, share, for_s, bake_s, lacks
):
    services.set_rules(policy, ADA, WHY, direct="never", approvals_needed=0)
    steps = {"mode": "canary", "share": share, "for_s": for_s}, {"mode": "full", "bake_s": bake_s}
    try:
        proposed(policies.policy(policy.name), *steps)
        found = []
    except InvalidInput as error:
        found = [each.path for each in error.problems]
    assert found == lacks
