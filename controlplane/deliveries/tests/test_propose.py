from controlplane.deliveries import selectors
from controlplane.deliveries.tests.conftest import OTTO, proposed
from controlplane.policies import selectors as policies


def test_a_proposal_makes_the_draft_the_candidate_and_leaves_the_live_version_alone(redis_away, policy, pool):
    made = proposed(policy)
    assert (made.state, made.candidate.number, made.base.number, made.proposer) == ("ready", 2, 1, OTTO.name)
    assert policies.open_draft(policy) is None
    assert policies.live_version(policy).number == 1
    assert selectors.open_delivery(policy) == made


def test_a_policy_that_needs_approvals_has_them_asked_for(redis_away, policy, pool):
    assert proposed(policy, approvals={"needed": 1}).state == "proposed"
