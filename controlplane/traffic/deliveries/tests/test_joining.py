"""Changing what decides a pool's requests is a publication: who may change its policy, and how."""

import re
from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.pages.fleet_ops import actions
from controlplane.people.audit.models import AuditEntry
from controlplane.people.notices.models import Channel, Notice
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.going_live.joining import AskedPool, Join, joins
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.deliveries.tests.conftest import ADA, OTTO, WHY, edit, plan, proposed
from controlplane.traffic.policies import services as policies
from controlplane.traffic.policies.errors import RulesForbid
from controlplane.traffic.policies.models import FormerPool, Policy
from fleet.control.rollback import rollback_failed
from fleet.models import Pool, PoolVersion
from fleet.services import NotPossible
from fleet.spec.fleet_spec import PoolSpec

LLAMA, CHAT = "llama-3.1-8b", AskedPool("chat", "llama-3.1-8b", "careful")


@pytest.mark.parametrize(
    ("present", "former", "wanted", "left"),
    [
        ([CHAT], [], PoolSpec("chat", LLAMA, "sim", policy="loose"), ("careful",)),
        ([CHAT], [], PoolSpec("aaa", LLAMA, "sim", policy="loose"), ("careful",)),  # routers route the model by it
        ([CHAT], [], PoolSpec(LLAMA, "other", "sim", policy="loose"), ("careful",)),  # and a pool by its name
        ([], [CHAT], PoolSpec("chat", "other", "sim", policy="loose"), ("careful",)),
        ([CHAT], [], PoolSpec("more", "other", "sim", policy="loose"), ()),
        ([CHAT], [], PoolSpec("more", LLAMA, "sim", policy="careful"), ()),
        ([AskedPool("chat", "a", "p"), CHAT], [], PoolSpec("chat", "b", "sim", policy="careful"), ()),
    ],
)
def test_a_pool_takes_over_the_requests_of_those_with_its_name_or_model(present, former, wanted, left):
    assert joins(present, former, [wanted]) == [Join(0, wanted.name, wanted.policy, left)]


def test_a_pool_that_keeps_policy_and_model_joins_nothing():
    assert joins([CHAT], [], [PoolSpec("chat", LLAMA, "sim", replicas=9, policy="careful")]) == []


# With the database


def document(**pools):
    listed = [{"name": name, "model": LLAMA, "kind": "sim", "policy": policy} for name, policy in pools.items()]
    return {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "f"}, "spec": {"pools": listed}}


def switch(actor=OTTO, **options):
    return actions.apply(document(chat="loose"), actor, reason=WHY, **options)


@pytest.fixture
def careful(redis_away, db):
    """A policy that the pool chat uses."""
    policies.create_policy("careful", policies.default_document("adaptive_v1"), ADA, WHY)
    actions.apply(document(chat="careful"), OTTO, reason=WHY)
    return Policy.objects.get(name="careful")


@pytest.fixture
def loose(careful):
    policies.create_policy("loose", policies.default_document("random"), OTTO, WHY)
    return Policy.objects.get(name="loose")


def routed():
    return Pool.objects.get(name="chat").policy


RULES = {
    "needs 1 approvals": {"direct": "allowed", "approvals_needed": 1},
    "by delivery only": {"direct": "never", "approvals_needed": 0},
    "only administrators": {"direct": "admin", "approvals_needed": 0},
}


@pytest.mark.parametrize("ruled", ["careful", "loose"])
@pytest.mark.parametrize("text", RULES)
@pytest.mark.parametrize("dry_run", [True, False])
def test_the_rules_of_both_policies_hold_and_a_dry_run_says_so(careful, loose, ruled, text, dry_run):
    services.set_rules(Policy.objects.get(name=ruled), ADA, WHY, **RULES[text])
    with pytest.raises(RulesForbid, match=text) as refused:
        switch(dry_run=dry_run)
    assert [problem.path for problem in refused.value.problems] == ["spec.pools[0].policy"]
    assert routed() == "careful"


@pytest.mark.parametrize("frozen", ["careful", "loose"])
def test_no_pool_joins_during_a_freeze(careful, loose, frozen):
    now = timezone.now()
    start, end = (f"{now + timedelta(days=d):%Y-%m-%dT%H:%M}" for d in (-1, 1))
    Freeze.objects.create(
        name="Christmas", policies=[frozen], start=start, end=end, zone="UTC", reason=WHY, created_by="ada"
    )
    with pytest.raises(RulesForbid, match="freeze Christmas"):
        switch()
    switch(ADA, emergency="the old policy melts the GPUs")
    assert routed() == "loose"


@pytest.mark.parametrize("held", ["careful", "loose"])
@pytest.mark.parametrize("emergency", ["", "the old policy melts the GPUs"])
def test_no_pool_changes_its_policy_while_a_delivery_is_open_and_the_error_names_it(careful, loose, held, emergency):
    policy = Policy.objects.get(name=held)
    proposed(policy, {"mode": "full"})
    with pytest.raises(RulesForbid, match=f"{held} v2 is being delivered"):
        switch(ADA, emergency=emergency)
    assert routed() == "careful"


def test_a_document_that_failed_under_the_old_policy_cannot_return_by_another(careful, loose):
    policies.open_draft(careful, OTTO)
    policies.patch_draft(careful, {"strategy.name": "random", "affinity.ttl_s": 77}, OTTO)  # random reads no affinity
    made = services.propose(careful, plan(), OTTO, WHY)
    type(made).objects.filter(pk=made.pk).update(state="aborted", what="fail", why="heavy TTFT is 31 % worse")
    with pytest.raises(RulesForbid, match="decided alike and was aborted: heavy TTFT"):
        switch()


def test_a_removed_pool_cannot_return_under_another_policy(careful, loose):
    services.set_rules(careful, ADA, WHY, direct="never")
    actions.apply(document(), OTTO, reason=WHY, prune=True)
    Pool.objects.filter(name="chat").delete()  # as the reconciler does when its instances are gone
    with pytest.raises(RulesForbid, match="by delivery only"):
        actions.apply(document(again="loose"), OTTO, reason=WHY)
    actions.apply(document(again="careful"), OTTO, reason=WHY)
    FormerPool.objects.update(removed_at=timezone.now() - timedelta(days=31))
    actions.apply(document(again="careful", more="careful"), OTTO, reason=WHY)


def of_model(model, **pools):
    made = document(**pools)
    for pool in made["spec"]["pools"]:
        pool["model"] = model
    return made


def test_the_model_of_another_pool_cannot_be_taken_over_past_the_rules(careful, loose):
    services.set_rules(careful, ADA, WHY, direct="never")
    actions.apply(of_model("another", chat="careful"), OTTO, reason=WHY)
    with pytest.raises(RulesForbid, match="by delivery only"):
        actions.apply(document(taker="loose"), OTTO, reason=WHY)


# A pool that returns to its model, whose requests another policy decides by now


@pytest.fixture
def taker(careful, loose):
    """A pool that served the model and whose change to another model has not succeeded yet."""
    actions.apply(document(taker="loose"), ADA, reason=WHY)
    PoolVersion.objects.filter(pool__name="taker").update(proven_at=timezone.now())
    actions.apply(of_model("mine", taker="loose"), OTTO, reason=WHY)


def model():
    return Pool.objects.get(name="taker").model


def rolled_back_by_itself():
    return rollback_failed(
        Pool.objects.get(name="taker"), "taker-0 failed", timezone.now(), actions.roll_back_by_itself
    )


def freeze():
    now = timezone.now()
    start, end = (f"{now + timedelta(days=d):%Y-%m-%dT%H:%M}" for d in (-1, 1))
    Freeze.objects.create(name="Christmas", start=start, end=end, zone="UTC", reason=WHY, created_by="ada")


BACK = {"by a person": lambda: actions.roll_back("taker", OTTO, WHY), "by itself": rolled_back_by_itself}


@pytest.mark.parametrize("back", BACK)
def test_a_freeze_does_not_stop_a_pool_from_returning_to_a_working_configuration(taker, back):
    freeze()
    BACK[back]()
    assert model() == LLAMA
    assert AuditEntry.objects.get(action="pool.rollback").before["model"] == "mine"
    assert AuditEntry.objects.filter(action="policy.join").first().before == {"policy": "careful"}


def test_returning_to_a_policy_that_never_worked_there_is_a_publication(taker):
    PoolVersion.objects.update(proven_at=None)
    freeze()
    with pytest.raises(NotPossible, match="no other configuration that worked is kept"):
        actions.roll_back("taker", OTTO, WHY)
    with pytest.raises(RulesForbid, match="freeze Christmas"):
        actions.roll_back("taker", OTTO, WHY, 1)
    rolled_back_by_itself()
    assert model() == "mine"


@pytest.mark.parametrize("text", RULES)
def test_the_other_rules_apply_and_an_automatic_rollback_halts_instead(taker, careful, text):
    services.set_rules(careful, ADA, WHY, **RULES[text])
    with pytest.raises(RulesForbid, match=text):
        actions.roll_back("taker", OTTO, WHY)
    assert rolled_back_by_itself()
    assert model() == "mine"
    assert re.search(f"^taker-0 failed; not rolled back: .*{text}", Pool.objects.get(name="taker").halted)


def test_an_automatic_rollback_takes_no_requests_from_a_policy_with_an_open_delivery(taker, careful):
    proposed(careful, {"mode": "full"})
    assert rolled_back_by_itself()
    assert "careful v2 is being delivered" in Pool.objects.get(name="taker").halted


def test_a_pool_may_return_to_its_own_requests_whatever_the_rules_of_its_policy(careful):
    PoolVersion.objects.update(proven_at=timezone.now())
    actions.apply(of_model("mine", chat="careful"), OTTO, reason=WHY)
    services.set_rules(careful, ADA, WHY, direct="never", approvals_needed=2)
    freeze()
    proposed(careful, {"mode": "canary", "share": 0.1, "for_s": 600})
    rollback_failed(Pool.objects.get(name="chat"), "chat-0 failed", timezone.now(), actions.roll_back_by_itself)
    assert Pool.objects.get(name="chat").model == LLAMA
    assert AuditEntry.objects.get(action="pool.rollback").actor_name == "weir"


def test_a_new_pool_for_a_new_model_needs_no_rule_but_waits_for_a_delivery(careful):
    services.set_rules(careful, ADA, WHY, direct="never", approvals_needed=2)
    more = document(chat="careful", more="careful")
    more["spec"]["pools"][1]["model"] = "another"
    actions.apply(more, OTTO, reason=WHY)
    edit(careful, heavy_new_tokens=9000)
    services.propose(careful, plan({"mode": "canary", "share": 0.1, "for_s": 600}), OTTO, WHY)
    more["spec"]["pools"].append({"name": "third", "model": "third", "kind": "sim", "policy": "careful"})
    with pytest.raises(RulesForbid, match="careful v2 is being delivered"):
        actions.apply(more, OTTO, reason=WHY)


def test_a_new_policy_begins_with_the_strictest_rules_of_any(careful, loose):
    services.set_rules(careful, ADA, WHY, direct="never", approvals_needed=2, least_share=0.2)
    services.set_rules(loose, ADA, WHY, direct="admin", approvals_needed=3, least_for_s=1200)
    policies.create_policy("fresh", policies.default_document("random"), OTTO, WHY)
    fresh = Policy.objects.get(name="fresh")
    assert (fresh.direct, fresh.approvals_needed) == ("never", 3)
    assert (fresh.least_share, fresh.least_for_s, fresh.least_bake_s) == (0.2, 1200, 600)


def test_a_pool_that_joins_a_policy_is_audited_and_notified(careful, loose):
    Channel.objects.create(name="ops", url="https://example.com/hook", events=["policy.*"])
    switch()
    entry = AuditEntry.objects.get(action="policy.join")
    assert (entry.subject, entry.reason, entry.before, entry.after["policy"]) == (
        "pool chat", WHY, {"policy": "careful"}, "loose",
    )  # fmt: skip
    assert Notice.objects.get(event="policy.pool_joined").facts["left"] == ["careful"]


def test_only_an_administrator_declares_an_emergency_and_it_is_audited_and_notified(careful, loose):
    Channel.objects.create(name="ops", url="https://example.com/hook", events=["policy.emergency"])
    services.set_rules(careful, ADA, WHY, direct="never", approvals_needed=2)
    with pytest.raises(PermissionDenied, match="only an administrator"):
        switch(emergency="the old policy melts the GPUs")
    switch(ADA, emergency="the old policy melts the GPUs")
    assert routed() == "loose"
    assert AuditEntry.objects.get(action="policy.emergency").reason == "the old policy melts the GPUs"
    assert Notice.objects.get().text.endswith("rules bypassed by ada: the old policy melts the GPUs")
