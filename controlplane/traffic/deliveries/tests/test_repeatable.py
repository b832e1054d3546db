"""Delivering a document in one call, which may be repeated."""

import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.deliveries import repeatable
from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, State, Trigger
from controlplane.traffic.deliveries.tests.conftest import ADA, CANARY, CI, FULL, OTTO, SHADOW, WHY, plan
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as publishing
from controlplane.traffic.policies.errors import Conflict, NothingToPublish
from controlplane.traffic.policies.tests.conftest import edit
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents

CHANGED = documents.apply_overrides(documents.default(), {"classes.heavy_new_tokens": 9000})
PLAN = plan(SHADOW, CANARY, FULL)
AGAIN = "the router that failed is repaired"

pytestmark = pytest.mark.usefixtures("redis_away", "pool")


def deliver(policy, document=CHANGED, wanted=PLAN, based_on=1, **more):
    return repeatable.deliver_document(policy, document, wanted, CI, WHY, based_on=based_on, **more)


def ended(delivery, what, by):
    """Return the delivery, ended in its first step."""
    for each, who in ((Trigger.START, Origin.PERSON), (Trigger.ARMED, Origin.SYSTEM), (what, by)):
        delivery = move(delivery, TransitionRequest(each, who, OTTO, WHY))
    return delivery


def delivered(delivery):
    ended(delivery, Trigger.PASS, Origin.JUDGE)
    move(delivery, TransitionRequest(Trigger.PASS, Origin.JUDGE, OTTO, WHY))
    return move(delivery, TransitionRequest(Trigger.DELIVER, Origin.SYSTEM, OTTO, WHY))


def test_the_first_call_proposes_and_later_calls_find_the_delivery(policy) -> None:
    made = deliver(policy)
    assert (made.is_new, made.delivery.state, made.delivery.reason) == (True, State.READY, WHY)
    for wanted in (PLAN, None):
        found = deliver(policy, wanted=wanted)
        assert (found.is_new, found.delivery) == (False, made.delivery)
    assert deliver(policy, based_on=None).delivery == made.delivery
    assert policies.open_draft(policy) is None


def test_a_dry_run_passes_every_check_and_leaves_nothing(policy) -> None:
    made = deliver(policy, dry_run=True)
    assert (made.is_new, made.delivery.state, made.delivery.candidate.number) == (True, State.READY, 2)
    assert not Delivery.objects.exists()
    assert policies.open_draft(policy) is None
    assert policy.versions.count() == 1
    assert not AuditEntry.objects.filter(action="delivery.propose").exists()
    with pytest.raises(InvalidInput):
        deliver(policy, document={"strategy": {"name": "bogus"}}, dry_run=True)
    with pytest.raises(InvalidInput):
        deliver(policy, wanted={"steps": []}, dry_run=True)


@pytest.mark.parametrize(("what", "by"), [(Trigger.FAIL, Origin.JUDGE), (Trigger.ABORT, Origin.PERSON)])
def test_an_ended_delivery_is_proposed_again_only_on_request_and_once(policy, what, by) -> None:
    first = ended(deliver(policy).delivery, what, by)
    assert deliver(policy).delivery == first
    second = deliver(policy, again=AGAIN)
    assert (second.is_new, second.delivery.again) == (True, AGAIN)
    move(second.delivery, TransitionRequest(Trigger.WITHDRAW, Origin.PERSON, OTTO, WHY))
    publishing.discard_draft(policy, OTTO)
    assert deliver(policy, again=AGAIN).delivery == second.delivery


def test_a_completed_delivery_is_found_until_another_version_goes_live(policy) -> None:
    first = delivered(deliver(policy).delivery)
    assert deliver(policy).delivery == first
    edit(policy, OTTO, heavy_new_tokens=7000)
    publishing.publish(policy, ADA, WHY)
    with pytest.raises(Conflict, match=r"was delivered, and v3 by ada \(.*\) took its place"):
        deliver(policy)


def test_a_repeated_call_does_not_undo_a_rollback(policy) -> None:
    delivered(deliver(policy).delivery)
    publishing.rollback(policy, 1, OTTO, WHY)
    with pytest.raises(Conflict, match="took its place: say why again"):
        deliver(policy)
    assert deliver(policy, again=AGAIN).is_new


def test_another_plan_or_document_while_a_delivery_is_open_is_refused_and_leaves_no_draft(policy) -> None:
    deliver(policy)
    other = documents.apply_overrides(documents.default(), {"classes.heavy_new_tokens": 8000})
    for more in ({"wanted": plan(CANARY, FULL)}, {"document": other}):
        with pytest.raises(Conflict, match="is being delivered"):
            deliver(policy, **more)
    assert policies.open_draft(policy) is None


def test_a_live_document_is_not_delivered_whatever_its_base(policy) -> None:
    edit(policy, OTTO, heavy_new_tokens=9000)
    publishing.publish(policy, OTTO, WHY)
    with pytest.raises(NothingToPublish):
        deliver(policy)


def test_someone_elses_draft_is_kept(policy) -> None:
    edit(policy, OTTO, heavy_new_tokens=8000)
    with pytest.raises(Conflict, match="otto has a draft of default open"):
        deliver(policy)
    assert policies.open_draft(policy).upgraded["classes"]["heavy_new_tokens"] == 8000
