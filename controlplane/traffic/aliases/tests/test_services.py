"""The document Models: its versions, the checks of a publication, and its copy in Redis."""

from datetime import timedelta

import pytest
from django.core.exceptions import PermissionDenied
from django.utils import timezone

from controlplane.doors import steps
from controlplane.people.audit.models import AuditEntry
from controlplane.people.notices.models import Channel, Notice
from controlplane.traffic.aliases import publication, selectors, services
from controlplane.traffic.aliases.models import ModelsDraft, ModelsVersion
from controlplane.traffic.aliases.tests.conftest import ADA, BOT, OTTO, SPLIT, WHY, document
from controlplane.traffic.deliveries.models import Freeze
from controlplane.traffic.policies.errors import Conflict, NothingToPublish
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.versioned import Immutable
from fleet.models import Pool
from router.contract import models
from router.contract.redis import redis_keys
from router.contract.redis.router_status import RouterStatus
from router.contract.values.problem import InvalidInput
from router.tests.values import loaded, stored

pytestmark = pytest.mark.django_db


def publish(made, actor=OTTO, **more):
    return services.publish_document(made, actor, WHY, **more)


def refused(made, **more):
    with pytest.raises(InvalidInput) as caught:
        publish(made, **more)
    return [(problem.path, problem.message) for problem in caught.value.problems]


def in_redis(client):
    return loaded(client.get(redis_keys.MODELS))


def test_a_document_is_published_with_its_version_audit_entry_notice_and_value(pools, live_redis):
    Channel.objects.create(name="all", kind="webhook", url="http://127.0.0.1:1/", events=["models.*"])
    made = publish(document(chat=SPLIT))
    assert (made.version.number, made.version.reason, made.stored_only) == (1, WHY, False)
    value = in_redis(live_redis)
    assert (value["version"], value["document"]) == (1, made.version.document)
    assert value["sha256"] == models.sha256(made.version.document)
    entry = AuditEntry.objects.get(action="models.publish")
    assert (entry.subject, entry.reason) == ("Models v1", WHY)
    assert Notice.objects.get().event == "models.published"
    assert not ModelsDraft.objects.exists()


def test_a_dry_run_checks_everything_and_changes_nothing(pools, live_redis):
    made = publish(document(chat=SPLIT), dry_run=True)
    assert made.summary == "would be published; nothing was changed"
    assert (ModelsVersion.objects.count(), ModelsDraft.objects.count()) == (0, 0)
    assert live_redis.get(redis_keys.MODELS) is None
    assert refused(document(chat={"pool": "gone"}), dry_run=True)


def test_missing_targets_are_refused_with_one_error(pools):
    assert refused(document(chat={"pool": "gone"})) == [("models.chat.pool", "there is no such pool")]
    Pool.objects.create(name="store", model="x", kind="sim-store", policy="default", replicas=1)
    assert refused(document(chat={"pool": "store"})) == [("models.chat.pool", "its instances serve no requests")]
    assert not ModelsVersion.objects.exists()


@pytest.mark.parametrize(
    ("adapter", "path", "said"),
    [
        ({"pool": "big"}, ".adapter.name", "the pool big loads no adapters"),
        ({"adapter": {**BOT["adapter"], "replicas": 3}}, ".adapter.replicas", "more than the pool has instances"),
        (
            {"adapter": {**BOT["adapter"], "source": "/etc/secrets"}},
            ".adapter.source",
            "the administrators do not allow this folder (WEIR_ALLOWED_FOLDERS)",
        ),
    ],
)
def test_the_pool_must_be_able_to_load_an_adapter(pools, settings, adapter, path, said):
    settings.ALLOWED_FOLDERS = ("/lora",)
    assert refused(document(bot={**BOT, **adapter})) == [(f"models.bot{path}", said)]


def test_a_new_source_needs_a_new_name(pools):
    publish(document(bot=BOT))
    moved = {**BOT, "adapter": {**BOT["adapter"], "source": "/lora/bot-v2"}}
    ((path, said),) = refused(document(bot=moved))
    assert path == "models.bot.adapter.source"
    assert "engines would keep what they cached with it" in said
    moved["adapter"]["name"] = "bot@v2"
    assert publish(document(bot=moved)).version.number == 2
    assert selectors.adapters().keys() == {("loras", "bot@v2")}


def test_publishing_the_same_document_again_is_refused(pools):
    publish(document(chat=SPLIT))
    with pytest.raises(NothingToPublish):
        publish(document(chat=SPLIT))


def test_a_rollback_restores_the_document_as_a_new_version(pools, live_redis):
    publish(document(chat=SPLIT))
    publish(document(chat={"pool": "small"}))
    assert selectors.rollback_target().number == 1
    made = services.rollback(1, OTTO, WHY)
    assert (made.version.number, made.version.rollback_of) == (3, 1)
    assert in_redis(live_redis)["version"] == 3
    assert AuditEntry.objects.filter(action="models.rollback").count() == 1


def test_a_rollback_to_a_pool_that_is_gone_is_refused(pools):
    publish(document(chat=SPLIT))
    publish(document(chat={"pool": "small"}))
    Pool.objects.filter(name="big").update(removed=True)
    with pytest.raises(InvalidInput, match="cannot be served"):
        services.rollback(1, OTTO, WHY)


def test_versions_do_not_change(pools):
    publish(document(chat=SPLIT))
    with pytest.raises(Immutable):
        ModelsVersion.objects.update(reason="another")
    with pytest.raises(Immutable):
        ModelsVersion.objects.all().delete()


# Two people


def test_of_two_people_who_save_a_draft_the_second_gets_a_conflict(pools):
    seen = services.open_draft(OTTO).etag
    services.save_draft(document(chat=SPLIT), OTTO, if_match=seen)
    with pytest.raises(Conflict) as caught:
        services.save_draft(document(chat={"pool": "big"}), ADA, if_match=seen)
    assert (caught.value.kind, caught.value.current) == ("draft", selectors.open_draft().etag)


def test_a_draft_based_on_an_older_version_is_not_published_until_it_is_rebased(pools):
    publish(document(chat=SPLIT))
    services.open_draft(OTTO)
    services.save_draft(document(chat={"pool": "small"}), OTTO)
    publish_past_the_draft = document(chat={"pool": "big"})
    with pytest.raises(Conflict, match="otto has a draft"):
        publish(publish_past_the_draft, ADA)
    ModelsVersion.objects.create(
        number=2, document=models.empty(), sha256="", reason=WHY, actor_kind="user", actor_name="ada"
    )
    with pytest.raises(Conflict, match="v2 was published by ada meanwhile"):
        services.publish(OTTO, WHY)
    services.save_draft(document(chat={"pool": "small"}), OTTO, based_on=2)
    assert services.publish(OTTO, WHY).version.number == 3


def test_a_file_based_on_an_older_version_is_refused(pools):
    publish(document(chat=SPLIT))
    publish(document(chat={"pool": "big"}), based_on=1)
    with pytest.raises(Conflict, match="made from v1, and v2 by otto"):
        publish(document(chat={"pool": "small"}), based_on=1)


def test_a_discarded_draft_is_in_the_audit_log(pools):
    services.open_draft(OTTO)
    services.save_draft(document(chat=SPLIT), OTTO)
    services.discard_draft(OTTO)
    assert AuditEntry.objects.get(action="models.discard_draft").before["models"]["chat"]


# Rules


@pytest.mark.parametrize("rule", [{"direct": "never"}, {"direct": "admin"}, {"approvals_needed": 1}])
def test_the_rules_of_the_policies_of_both_sides_apply(pools, rule):
    Policy.objects.update(**rule)
    with pytest.raises(PermissionDenied):
        publish(document(chat=SPLIT))
    assert not ModelsVersion.objects.exists()
    assert publish(document(chat=SPLIT), ADA, emergency="the old pool burns, all of it").version.number == 1
    assert AuditEntry.objects.filter(action="policy.emergency").count() == 1


def test_a_freeze_stops_a_publication_but_no_rollback(pools):
    publish(document(chat=SPLIT))
    publish(document(chat={"pool": "small"}))
    now = timezone.now()
    Freeze.objects.create(
        name="weekend", zone="UTC", behaviour="hold", reason="nobody is there", created_by="ada",
        start=f"{now - timedelta(hours=1):%Y-%m-%dT%H:%M}", end=f"{now + timedelta(hours=1):%Y-%m-%dT%H:%M}",
    )  # fmt: skip
    with pytest.raises(Conflict, match="the freeze weekend is in force"):
        publish(document(chat={"pool": "big"}))
    assert services.rollback(1, OTTO, WHY).version.number == 3


def test_only_an_administrator_can_bypass_the_rules(pools):
    with pytest.raises(PermissionDenied, match="only an administrator"):
        publish(document(chat=SPLIT), emergency="I am in a hurry, really")


# Redis


def test_a_document_lost_by_redis_is_written_again(pools, live_redis):
    publish(document(chat=SPLIT))
    live_redis.flushdb()
    steps.STEPS["models.republish"].run()
    assert in_redis(live_redis)["version"] == 1
    assert publication.republish() is False


def test_routers_that_are_behind_are_named(pools, live_redis):
    publish(document(chat=SPLIT))
    now = timezone.now().timestamp()
    for name, version in (("router-1", 1), ("router-2", 0)):
        live_redis.zadd(redis_keys.ROUTERS, {name: now})
        status = RouterStatus(id=name, at=now, models=version)
        live_redis.set(redis_keys.router_key(name), stored({"id": name, "at": status.at, "models": version}))
    ack = publication.acknowledgement()
    assert (ack.current, ack.routers, [row.router for row in ack.behind]) == (1, 2, ["router-2"])
