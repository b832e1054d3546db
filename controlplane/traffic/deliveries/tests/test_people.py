"""The actions on a delivery that people may take, and those that are refused."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied
from django.db import IntegrityError
from django.utils import timezone

from controlplane.doors.api.auth import principal_by_token
from controlplane.people.accounts.models import ApiToken
from controlplane.people.audit.models import AuditEntry
from controlplane.people.audit.services import actor_of
from controlplane.people.notices.models import Channel, Notice
from controlplane.traffic.deliveries import moving, selectors, services
from controlplane.traffic.deliveries.models import Delivery, Freeze
from controlplane.traffic.deliveries.states import State
from controlplane.traffic.deliveries.tests.conftest import (
    ADA,
    CANARY,
    CI,
    FULL,
    OLGA,
    OTTO,
    SHADOW,
    WHY,
    plan,
    proposed,
)
from controlplane.traffic.policies import selectors as policies
from controlplane.traffic.policies import services as publishing
from controlplane.traffic.policies.errors import Conflict, NothingToPublish
from controlplane.traffic.policies.models import Draft, PolicyVersion
from controlplane.traffic.policies.tests.conftest import edit
from router.contract.values.problem import InvalidInput

PROPOSED = {"approvals": {"needed": 1}}


def at(delivery: Delivery, state: str, **fields: Any) -> Delivery:
    """Return the delivery in another state, as earlier transitions would have left it."""
    Delivery.objects.filter(pk=delivery.pk).update(state=state, **fields)
    delivery.refresh_from_db()
    return delivery


def freeze(**fields: Any) -> Freeze:
    now = datetime.now(UTC)
    times = {"start": f"{now - timedelta(hours=1):%Y-%m-%dT%H:%M}", "end": f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}"}
    return Freeze.objects.create(**{"name": "Christmas", "zone": "UTC", "reason": WHY, **times, **fields})


def entry(action: str) -> AuditEntry:
    return AuditEntry.objects.filter(action=action).latest("pk")


# Proposing


def test_a_proposal_is_audited_with_its_plan(delivery):
    made = entry("delivery.propose")
    assert (made.subject, made.reason, made.actor_name) == ("policy default v2", WHY, "otto")
    assert made.after["plan"] == delivery.plan
    assert made.after["document"]["classes"]["heavy_new_tokens"] == 9000


def test_there_is_one_open_delivery_per_policy(delivery, policy):
    edit(policy, OTTO, heavy_new_tokens=8000)
    with pytest.raises(Conflict, match="v2 is being delivered") as conflict:
        services.propose(policy, plan(), OTTO, WHY)
    assert (conflict.value.kind, conflict.value.current) == ("open", delivery.etag)
    assert Draft.objects.exists()
    assert PolicyVersion.objects.count() == 2


def test_the_database_allows_one_open_delivery_per_policy(delivery, policy):
    with pytest.raises(IntegrityError):
        Delivery.objects.create(policy=policy, candidate=delivery.base, base=delivery.base, plan={}, state=State.PAUSED)


def test_the_next_delivery_can_be_proposed_once_the_previous_one_has_ended(delivery, policy):
    services.abort(delivery, OTTO)
    assert proposed(policy, tokens=8000).candidate.number == 3


@pytest.mark.parametrize("reason", ["", "short", "x" * 501])
def test_a_proposal_needs_a_reason(redis_away, policy, pool, reason):
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, plan(), OTTO, reason)
    assert refused.value.problems[0].path == "reason"


def test_a_proposal_needs_a_draft(redis_away, policy, pool):
    with pytest.raises(Conflict, match="no open draft"):
        services.propose(policy, plan(), OTTO, WHY)


def test_proposing_another_revision_than_the_one_seen_is_a_conflict(redis_away, policy, pool):
    seen = edit(policy, heavy_new_tokens=9000)
    edit(policy, OLGA, heavy_new_tokens=8000)
    with pytest.raises(Conflict, match="olga") as conflict:
        services.propose(policy, plan(), OTTO, WHY, if_match=seen)
    assert conflict.value.kind == "draft"


def test_a_draft_based_on_an_older_version_must_be_settled_first(redis_away, policy, pool):
    edit(policy, heavy_new_tokens=9000)
    publishing.publish(policy, OTTO, WHY)
    edit(policy, heavy_new_tokens=8000)
    publishing.rollback(policy, 1, ADA, WHY)
    with pytest.raises(Conflict, match="v3 was published by ada meanwhile"):
        services.propose(policy, plan(), OTTO, WHY)


def test_a_draft_that_changes_nothing_is_not_delivered(redis_away, policy, pool):
    publishing.open_draft(policy, OTTO)
    with pytest.raises(NothingToPublish, match="equals v1"):
        services.propose(policy, plan(), OTTO, WHY)


def test_an_invalid_plan_is_refused_with_paths_below_plan(redis_away, policy, pool):
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, plan({**CANARY, "share": 0.9}), OTTO, WHY)
    assert [(problem.path, problem.value) for problem in refused.value.problems] == [("plan.steps[0].share", 0.9)]
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, [], OTTO, WHY)
    assert refused.value.problems[0].path == "plan"


def test_a_start_in_the_past_is_refused(redis_away, policy, pool):
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, plan(start={"at": "2026-01-01T03:00", "zone": "UTC"}), OTTO, WHY)
    assert refused.value.problems[0].path == "plan.start.at"


def test_generations_grow_over_the_deliveries_of_a_policy(delivery, policy):
    services.abort(services.start(delivery, OTTO), OTTO)
    assert proposed(policy, tokens=8000).generation == delivery.generation == 2


# The rules of the policy


def test_rules_are_set_and_audited(policy):
    services.set_rules(policy, ADA, WHY, direct="admin", approvals_needed=1)
    assert (policy.direct, policy.approvals_needed) == ("admin", 1)
    assert entry("delivery.rules").before.items() >= {"direct": "allowed", "approvals_needed": 0}.items()


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ({"direct": "maybe", "approvals_needed": 0}, "direct"),
        ({"direct": "never", "approvals_needed": 11}, "approvals_needed"),
    ],
)
def test_invalid_rules_are_refused(policy, rules, path):
    with pytest.raises(InvalidInput) as refused:
        services.set_rules(policy, ADA, WHY, **rules)
    assert refused.value.problems[0].path == path


@pytest.mark.parametrize(
    ("direct", "actor", "goes"),
    [("allowed", OTTO, True), ("admin", OTTO, False), ("admin", ADA, True), ("never", ADA, False)],
)
def test_the_policy_says_who_may_publish_directly(redis_away, policy, pool, direct, actor, goes):
    services.set_rules(policy, ADA, WHY, direct=direct, approvals_needed=0)
    edit(policy, heavy_new_tokens=9000)
    if not goes:
        with pytest.raises(PermissionDenied, match="propose a plan with a canary"):
            publishing.publish(policy, actor, WHY)
        with pytest.raises(PermissionDenied, match="propose a plan with a canary"):
            services.propose(policy, plan(FULL), actor, WHY)
        assert services.propose(policy, plan({**CANARY, "for_s": 600}, FULL), actor, WHY).state == "ready"
    else:
        assert publishing.publish(policy, actor, WHY).version.number == 2


def test_a_policy_that_requires_approvals_cannot_be_published_directly(redis_away, policy, pool):
    services.set_rules(policy, ADA, WHY, direct="allowed", approvals_needed=2)
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(PermissionDenied, match="needs 2 approvals"):
        publishing.publish(policy, ADA, WHY)
    assert services.propose(policy, plan(FULL), OTTO, WHY).state == "proposed"


def test_every_rule_permits_the_rollback(redis_away, policy, pool):
    edit(policy, heavy_new_tokens=9000)
    publishing.publish(policy, OTTO, WHY)
    services.set_rules(policy, ADA, WHY, direct="never", approvals_needed=2)
    freeze()
    assert publishing.rollback(policy, 1, OTTO, WHY).version.number == 3


# The same document again


def failed(policy: Any, what: str = "fail", state: str = "aborted") -> Delivery:
    made = proposed(policy)
    return at(made, state, what=what, why="heavy TTFT is 31 % worse")


@pytest.mark.parametrize(("what", "state"), [("fail", "aborted"), ("trip", "aborted"), ("abort", "rolled_back")])
def test_a_document_that_failed_needs_a_reason_and_a_plan_that_begins_with_a_shadow(
    redis_away, policy, pool, what, state
):
    failed(policy, what, state)
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, plan(CANARY, FULL), OTTO, WHY, again="the engines are new")
    assert refused.value.problems[0].path == "plan.steps"
    assert "v2 decided alike" in refused.value.problems[0].message
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, plan(), OTTO, WHY)
    assert refused.value.problems[0].path == "again"
    with pytest.raises(InvalidInput) as refused:
        services.propose(policy, plan(), OTTO, WHY, again="why not")
    assert refused.value.problems[0].path == "again"
    assert services.propose(policy, plan(), OTTO, WHY, again="the engines are new").again == "the engines are new"


def test_a_document_that_failed_cannot_be_published_directly_either(redis_away, policy, pool):
    failed(policy)
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput, match="failed before"):
        publishing.publish(policy, OTTO, WHY)
    edit(policy, heavy_new_tokens=8000)
    assert publishing.publish(policy, OTTO, WHY).version.number == 3


@pytest.mark.parametrize(("what", "state"), [("abort", "aborted"), ("overtake", "aborted"), ("deliver", "delivered")])
def test_an_abort_by_a_person_does_not_count_against_the_document(redis_away, policy, pool, what, state):
    failed(policy, what, state)
    assert proposed(policy, CANARY, FULL).again == ""


# Approvals


@pytest.fixture
def waits(redis_away: None, policy: Any, pool: Any) -> Delivery:
    return proposed(policy, **PROPOSED)


def test_an_approval_makes_a_delivery_ready(waits):
    done = services.approve(waits, OLGA, "read it")
    assert (done.state, done.by) == ("ready", "olga")
    assert done.ready_at is not None
    assert entry("delivery.approve").reason == "read it"


def test_if_two_are_required_the_second_approval_makes_it_ready(redis_away, policy, pool):
    made = proposed(policy, approvals={"needed": 2})
    seen = made.etag
    assert services.approve(made, OLGA).state == "proposed"
    assert made.etag != seen
    assert services.approve(made, ADA).state == "ready"
    assert AuditEntry.objects.filter(action="delivery.approve").count() == 2


@pytest.mark.parametrize(
    ("actor", "why"), [(OTTO, "otto proposed"), (CI, "otto proposed"), (ADA, "ada saved the draft")]
)
def test_authors_cannot_approve_their_own_work_and_a_token_counts_as_its_owner(redis_away, policy, pool, actor, why):
    edit(policy, ADA, heavy_new_tokens=7000)
    made = proposed(policy, **PROPOSED)
    with pytest.raises(PermissionDenied, match=why):
        services.approve(made, actor)
    assert services.approve(made, OLGA).state == "ready"


def test_a_second_approval_by_the_same_person_is_refused(redis_away, policy, pool):
    made = proposed(policy, approvals={"needed": 2})
    services.approve(made, OLGA)
    with pytest.raises(PermissionDenied, match="olga has approved it already"):
        services.approve(made, OLGA)


def test_the_database_counts_a_person_once_even_if_both_clicks_are_simultaneous(waits, monkeypatch):
    monkeypatch.setattr(services.selectors, "is_approved", lambda *_: False)
    services.approve(waits, OLGA)
    monkeypatch.setattr(services.selectors, "approval_refusal", lambda *_: "")
    with pytest.raises(PermissionDenied, match="olga has approved it already"):
        services.approve(waits, OLGA)


def test_two_simultaneous_approvals_both_count_unless_they_name_the_version_seen(redis_away, policy, pool):
    made = proposed(policy, approvals={"needed": 3})
    mine, theirs = selectors.delivery(made.pk), selectors.delivery(made.pk)
    services.approve(mine, OLGA)
    with pytest.raises(Conflict, match="changed meanwhile"):
        services.approve(theirs, ADA, if_match=made.etag)
    services.approve(theirs, ADA)
    assert made.approvals.count() == 2


def test_only_a_proposed_delivery_can_be_approved(delivery):
    with pytest.raises(Conflict, match="the delivery is ready"):
        services.approve(delivery, OLGA)


def test_an_approval_of_another_document_does_not_count(waits):
    services.approve(waits, OLGA)
    waits.approvals.update(sha256="of another plan")
    with pytest.raises(Conflict, match="approvals are missing"):
        services.start(waits, OTTO)


def test_the_possible_approvers_are_listed(waits):
    assert selectors.waiting_for("olga") == [waits]
    assert selectors.waiting_for("otto") == []


def test_a_rejection_needs_a_reason_and_ends_the_delivery(waits):
    with pytest.raises(InvalidInput):
        services.reject(waits, OLGA, "")
    assert services.reject(waits, OLGA, "the plan has no canary").state == "rejected"


def test_a_withdrawn_candidate_becomes_a_draft_again(waits, policy):
    assert services.withdraw(waits, OTTO).state == "withdrawn"
    draft = policies.open_draft(policy)
    assert (draft.document["classes"]["heavy_new_tokens"], draft.based_on, draft.savers) == (9000, 1, ["otto"])


def test_a_draft_that_was_opened_in_the_meantime_is_kept(waits, policy):
    edit(policy, OLGA, heavy_new_tokens=7000)
    services.withdraw(waits, OTTO)
    assert policies.open_draft(policy).document["classes"]["heavy_new_tokens"] == 7000


def test_only_the_proposer_or_an_administrator_can_withdraw(waits):
    with pytest.raises(PermissionDenied, match="otto proposed"):
        services.withdraw(waits, OLGA)
    assert services.withdraw(waits, ADA).state == "withdrawn"


def test_an_administrator_can_skip_approvals_with_a_reason(waits):
    with pytest.raises(PermissionDenied, match="only an administrator"):
        services.go_without(waits, OLGA, "the pool is on fire")
    with pytest.raises(InvalidInput) as refused:
        services.go_without(waits, ADA, "")
    assert refused.value.problems[0].path == "emergency"
    done = services.go_without(waits, ADA, "the pool is on fire")
    assert (done.state, done.emergency) == ("ready", "the pool is on fire")
    assert services.start(done, ADA).state == "arming"


def test_an_emergency_can_be_declared_at_the_proposal(redis_away, policy, pool):
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(PermissionDenied, match="only an administrator"):
        services.propose(policy, plan(**PROPOSED), OTTO, WHY, emergency="the pool is on fire")
    assert services.propose(policy, plan(**PROPOSED), ADA, WHY, emergency="the pool is on fire").state == "ready"


def test_an_emergency_sends_a_notice(waits):
    Channel.objects.create(name="ops", url="https://example.com/hook", events=["delivery.emergency"])
    services.go_without(waits, ADA, "the pool is on fire")
    assert [(notice.event, "on fire" in notice.text) for notice in Notice.objects.all()] == [
        ("delivery.emergency", True)
    ]


def test_the_person_behind_a_token_is_its_owner(rf, django_user_model):
    otto = django_user_model.objects.create_user("otto")
    _, token = ApiToken.issue(user=otto, name="ci", scopes=["policy:approve"])
    request = rf.get("/")
    request.auth = principal_by_token(f"Bearer {token}")
    actor = actor_of(request)
    assert (actor.name, actor.person, actor.is_admin) == ("ci (otto)", "otto", False)


# Control


def test_a_start_arms_the_routers_and_changes_nothing_else(delivery, policy):
    done = services.start(delivery, OTTO)
    assert (done.state, done.share, done.generation) == ("arming", 0.0, 1)
    assert policies.live_version(policy).number == 1


def test_a_start_checks_again_what_is_live(delivery, policy):
    type(policy).objects.update(live=delivery.candidate.number)
    with pytest.raises(Conflict, match="v2 is live by now") as conflict:
        services.start(delivery, OTTO)
    assert conflict.value.kind == "live"


def test_a_start_checks_the_plan_against_the_policys_current_rules(redis_away, policy, pool):
    made = proposed(policy, CANARY, FULL)
    at(made, State.READY)
    services.set_rules(policy, ADA, WHY, direct="never", approvals_needed=0, least_share=0.5)
    with pytest.raises(InvalidInput, match="asks for more of a plan"):
        services.start(made, OTTO)


@pytest.mark.parametrize(
    ("state", "do"),
    [
        (State.READY, lambda it: services.start(it, OTTO)),
        (State.PAUSED, lambda it: services.resume(it, OTTO, WHY)),
        (State.WAITING, lambda it: services.advance(it, OTTO, WHY)),
    ],
)
def test_a_freeze_stops_start_resume_and_advance_and_nothing_else(delivery, state, do):
    at(delivery, state)
    freeze()
    with pytest.raises(Conflict, match="freeze Christmas is in force until") as conflict:
        do(delivery)
    assert conflict.value.kind == "freeze"
    assert services.abort(delivery, OTTO).state == "aborted"


def test_a_removed_freeze_and_a_freeze_of_another_policy_stop_nothing(delivery):
    freeze(policies=["night"])
    freeze(removed_at=timezone.now())
    assert services.start(delivery, OTTO).state == "arming"


def test_a_freeze_stops_a_direct_publish(redis_away, policy, pool):
    edit(policy, heavy_new_tokens=9000)
    freeze()
    with pytest.raises(Conflict, match="freeze Christmas") as conflict:
        publishing.publish(policy, ADA, WHY)
    assert conflict.value.kind == "freeze"


def test_a_pause_gives_every_request_to_live(delivery):
    at(delivery, State.STEP, step=1, share=0.05, generation=4)
    done = services.pause(delivery, OTTO)
    assert (done.state, done.share, done.generation) == ("paused", 0.0, 5)


def test_resume_arms_again_and_the_step_starts_over(delivery):
    at(delivery, State.PAUSED, step=1, share=0.05, generation=4, step_clock_s=300.0, holds_in_step=2)
    done = services.resume(delivery, OTTO, WHY)
    assert (done.state, done.step, done.share, done.generation) == ("arming", 1, 0.0, 5)


def test_advance_takes_the_next_step_and_needs_a_reason(delivery):
    at(delivery, State.HOLDING, step=1, share=0.05, generation=4, step_clock_s=300.0)
    with pytest.raises(InvalidInput):
        services.advance(delivery, OTTO, "")
    done = services.advance(delivery, OTTO, WHY)
    assert (done.state, done.step, done.share, done.step_clock_s) == ("step", 2, 0.25, 0.0)
    assert entry("delivery.advance").after["share"] == 0.25


def test_advancing_into_full_makes_the_candidate_live(delivery, policy):
    at(delivery, State.WAITING, step=2, share=0.25, generation=4)
    done = services.advance(delivery, OTTO, WHY)
    assert (done.state, done.share, policies.live_version(policy).number) == ("baking", 0.0, 2)
    assert done.candidate.live_since is not None


def test_a_plan_with_only_the_step_full_goes_live_at_the_start(redis_away, policy, pool):
    done = services.start(proposed(policy, FULL), OTTO)
    assert (done.state, policies.live_version(policy).number) == ("baking", 2)
    assert done.started_at == done.promoted_at


def test_a_promotion_is_refused_if_another_version_is_live_and_changes_nothing(delivery, policy):
    at(delivery, State.WAITING, step=2, share=0.25)
    PolicyVersion.objects.create(policy=policy, number=9, document={}, sha256="x", reason=WHY, actor_kind="user")
    type(policy).objects.update(live=9)
    with pytest.raises(Conflict, match="v1 is no longer live"):
        services.advance(delivery, OTTO, WHY)
    delivery.refresh_from_db()
    assert (delivery.state, policies.live_version(policy).number) == ("waiting", 9)


def test_an_abort_needs_no_reason_at_first(delivery):
    done = services.abort(delivery, OTTO)
    assert (done.state, done.why) == ("aborted", "")
    assert services.explain(done, OTTO, "the wrong pool").why == "the wrong pool"
    assert entry("delivery.explain").after == {"why": "the wrong pool"}


def test_a_late_reason_beside_another_change_is_a_conflict(delivery):
    stale = selectors.delivery(delivery.pk)
    services.abort(delivery, OTTO)
    with pytest.raises(Conflict, match="changed meanwhile"):
        services.explain(stale, OTTO, "the wrong pool")


def test_an_abort_during_the_bake_restores_the_old_document(delivery, policy):
    at(delivery, State.WAITING, step=2, share=0.25)
    services.advance(delivery, OTTO, WHY)
    done = services.abort(delivery, OTTO, "TTFT doubled")
    live = policies.live_version(policy)
    assert (done.state, live.number, live.rollback_of, live.based_on) == ("rolled_back", 3, 1, 2)
    assert live.document == delivery.base.document
    assert entry("policy.rollback").subject == "policy default v3"


def test_a_rollback_on_the_policys_page_during_the_bake_makes_one_version(delivery, policy):
    at(delivery, State.WAITING, step=2, share=0.25)
    services.advance(delivery, OTTO, WHY)
    publishing.rollback(policy, 1, OTTO, WHY)
    delivery.refresh_from_db()
    assert (delivery.state, policies.live_version(policy).number) == ("rolled_back", 3)


@pytest.mark.parametrize("do", [services.pause, services.start, services.withdraw])
def test_a_closed_delivery_cannot_be_changed(delivery, do):
    services.abort(delivery, OTTO)
    with pytest.raises(Conflict, match="the delivery is aborted") as conflict:
        do(delivery, OTTO)
    assert conflict.value.kind == "state"


@pytest.mark.parametrize(
    "do",
    [
        lambda it, seen: services.approve(it, OLGA, if_match=seen),
        lambda it, seen: services.go_without(it, ADA, WHY, if_match=seen),
        lambda it, seen: services.reject(it, OLGA, WHY, if_match=seen),
        lambda it, seen: services.withdraw(it, OTTO, if_match=seen),
        lambda it, seen: services.start(it, OTTO, if_match=seen),
        lambda it, seen: services.pause(it, OTTO, if_match=seen),
        lambda it, seen: services.resume(it, OTTO, WHY, if_match=seen),
        lambda it, seen: services.extend(it, OTTO, WHY, if_match=seen),
        lambda it, seen: services.advance(it, OTTO, WHY, if_match=seen),
        lambda it, seen: services.abort(it, OTTO, if_match=seen),
    ],
)
def test_every_button_of_an_outdated_page_is_refused(delivery, do):
    with pytest.raises(Conflict, match="changed meanwhile") as conflict:
        do(delivery, "y1.0")
    assert (conflict.value.kind, conflict.value.current) == ("stale", delivery.etag)


def test_of_two_simultaneous_actions_one_wins_and_the_other_gets_a_conflict(delivery):
    mine, theirs = selectors.delivery(delivery.pk), selectors.delivery(delivery.pk)
    services.start(mine, OTTO)
    with pytest.raises(Conflict, match="start by otto, it is arming"):
        services.withdraw(theirs, ADA)
    mine.refresh_from_db()
    assert mine.state == "arming"


@pytest.mark.parametrize(("to_safety", "state"), [(services.abort, "aborted"), (services.pause, "paused")])
def test_a_concurrent_change_does_not_prevent_an_abort_or_a_pause(delivery, to_safety, state):
    mine = services.start(selectors.delivery(delivery.pk), OTTO)
    theirs = at(mine, State.STEP, share=0.1)
    at(selectors.delivery(delivery.pk), State.HOLDING, revision=mine.revision + 1)
    with pytest.raises(Conflict, match="changed meanwhile"):
        to_safety(selectors.delivery(delivery.pk), OLGA, if_match=theirs.etag)
    assert to_safety(theirs, OLGA).state == state


def test_a_transition_is_undone_if_its_audit_entry_fails(delivery, monkeypatch):
    monkeypatch.setattr(moving.audit, "record", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        services.start(delivery, OTTO)
    delivery.refresh_from_db()
    assert delivery.state == "ready"


def test_in_shadow_steps_the_candidate_decides_nothing(delivery):
    at(delivery, State.ARMING, generation=1)
    done = moving.move(delivery, moving.TransitionRequest(moving.Trigger.ARMED, moving.Origin.SYSTEM))
    assert (done.share, done.shadow, SHADOW["sample"]) == (0.0, 1.0, 1.0)
