import pytest

from controlplane.people.audit.models import AuditEntry
from controlplane.traffic.policies import acknowledged, publication, selectors, services
from controlplane.traffic.policies.errors import Conflict, NothingToPublish, stale_if_overtaken
from controlplane.traffic.policies.models import Draft, PolicyVersion
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY, edit, of_an_arm, published
from fleet.models import Pool
from router.contract.redis import redis_keys
from router.contract.values.problem import InvalidInput
from router.tests.values import loaded


def in_redis(live_redis, pool: str = "demo"):
    return loaded(live_redis.get(redis_keys.policy_key(pool)))


def test_publishing_makes_the_next_version_and_ends_the_draft(redis_away, policy):
    etag = edit(policy, heavy_new_tokens=9000)
    version = services.publish(policy, OTTO, f"  {WHY} ", if_match=etag).version
    assert (version.number, version.reason, version.actor_name, version.based_on) == (2, WHY, "otto", 1)
    assert version.document["classes"]["heavy_new_tokens"] == 9000
    assert selectors.live_version(policy) == version
    assert not Draft.objects.exists()


def test_a_publication_is_audited_with_before_and_after(redis_away, policy):
    published(policy, heavy_new_tokens=9000)
    entry = AuditEntry.objects.first()
    assert (entry.action, entry.subject, entry.reason) == ("policy.publish", "policy default v2", WHY)
    assert entry.before["classes"]["heavy_new_tokens"] == 40_000
    assert entry.after["classes"]["heavy_new_tokens"] == 9000


def test_every_router_that_acknowledges_is_listed_with_its_time(policy, pool, routers):
    for name in ("router-1", "router-2", "router-3"):
        routers(name)
    made = published(policy, heavy_new_tokens=9000)
    assert sorted(ack.router for ack in made.acks) == ["router-1", "router-2", "router-3"]
    assert all(0 < ack.ms < 1000 for ack in made.acks)
    assert made.missing == ()
    assert made.summary.startswith("3/3 routers, ")


def test_a_router_that_does_not_acknowledge_is_named(policy, pool, routers, monkeypatch):
    monkeypatch.setattr(acknowledged, "WAIT_S", 0.2)
    routers("router-1")
    routers("router-2", answers=False)
    made = published(policy, heavy_new_tokens=9000)
    assert [ack.router for ack in made.acks] == ["router-1"]
    assert made.missing == ("router-2",)
    assert made.summary.endswith("; not heard from router-2")


def test_publishing_does_not_wait_for_a_router_that_has_ended(policy, pool, routers, live_redis):
    routers("router-1")
    live_redis.zadd(redis_keys.ROUTERS, {"router-9": 1.0})
    assert published(policy, heavy_new_tokens=9000).missing == ()


def test_a_router_has_to_acknowledge_for_every_pool(policy, pool, routers):
    Pool.objects.create(name="night", model="m", kind="sim", policy="default")
    routers("router-1")
    made = published(policy, heavy_new_tokens=9000)
    assert made.pools == ("demo", "night")
    assert [ack.router for ack in made.acks] == ["router-1"]


def test_pools_of_other_policies_and_of_experiments_are_not_changed(policy, pool, live_redis):
    Pool.objects.create(name="night", model="m", kind="sim", policy="other")
    Pool.objects.create(name="exp-7", model="m", kind="sim", policy="default", ephemeral_owner="run 7")
    assert published(policy, heavy_new_tokens=9000).pools == ("demo",)
    assert live_redis.smembers(redis_keys.POOLS) == {b"demo"}


def test_the_policy_of_an_observed_pool_is_published_in_advance(policy, pool, live_redis):
    Pool.objects.create(name="seen", model="m", kind="external", policy="default", mode="observe")
    assert published(policy, heavy_new_tokens=9000).pools == ("demo",)
    assert live_redis.smembers(redis_keys.POOLS) == {b"demo", b"seen"}


def test_redis_gets_the_version_from_the_database(policy, pool, live_redis):
    version = published(policy, heavy_new_tokens=9000).version
    value = in_redis(live_redis)
    assert (value["policy"], value["version"], value["sha256"]) == ("default", 2, version.sha256)
    assert value["document"] == version.document
    assert value["rollout"] == {"mode": "full"}


def test_a_publication_is_announced_on_the_channel(policy, pool, live_redis, django_capture_on_commit_callbacks):
    with django_capture_on_commit_callbacks(execute=True):
        published(policy, heavy_new_tokens=9000)
    ((_, fields),) = live_redis.xrange(redis_keys.EVENTS)
    assert b'"kind":"policy.published"' in fields[b"e"]
    assert WHY.encode() in fields[b"e"]


def test_without_redis_the_version_is_stored_and_the_answer_says_so(redis_away, policy, pool):
    made = published(policy, heavy_new_tokens=9000)
    assert made.stored_only
    assert made.summary == "stored; routers will take it up when Redis is back"
    assert selectors.live_version(policy).number == 2


def test_the_answer_reports_missing_routers_or_pools(policy, live_redis):
    assert published(policy, heavy_new_tokens=9000).summary == "no pool uses this policy yet"
    Pool.objects.create(name="demo", model="m", kind="sim", policy="default")
    assert "no router is running" in published(policy, heavy_new_tokens=8000).summary


@pytest.mark.parametrize("reason", ["", "short", "   short   ", "x" * 501])
def test_a_reason_is_required(redis_away, policy, reason):
    edit(policy, heavy_new_tokens=9000)
    with pytest.raises(InvalidInput) as refused:
        services.publish(policy, OTTO, reason)
    assert refused.value.problems[0].path == "reason"
    assert "10 to 500" in refused.value.problems[0].message
    assert selectors.live_version(policy).number == 1


def test_a_draft_that_changes_nothing_is_not_published(redis_away, policy):
    services.open_draft(policy, OTTO)
    with pytest.raises(NothingToPublish, match="equals v1"):
        services.publish(policy, OTTO, WHY)


def test_publishing_an_older_revision_of_the_draft_is_a_conflict(redis_away, policy):
    seen = edit(policy, heavy_new_tokens=9000)
    edit(policy, ADA, heavy_new_tokens=7000)
    with pytest.raises(Conflict, match="ada") as conflict:
        services.publish(policy, OTTO, WHY, if_match=seen)
    assert conflict.value.kind == "draft"
    assert selectors.live_version(policy).number == 1


def test_of_two_simultaneous_publications_one_wins_and_the_other_gets_a_conflict(redis_away, policy, monkeypatch):
    """The second request arrives between the first one's read of the draft and its claim."""
    edit(policy, heavy_new_tokens=9000)
    open_waiter = acknowledged.open_waiter
    winners = []

    def meanwhile():
        if not winners:
            winners.append(None)
            winners[0] = services.publish(policy, ADA, WHY)
        return open_waiter()

    monkeypatch.setattr(acknowledged, "open_waiter", meanwhile)
    with pytest.raises(Conflict, match="v2 by ada is live"):
        services.publish(policy, OTTO, WHY)
    assert winners[0].version.number == 2
    assert [v.actor_name for v in policy.versions.all()] == ["ada", "weir"]


def test_two_concurrent_rollbacks_make_one_version(redis_away, policy, monkeypatch):
    published(policy, heavy_new_tokens=9000)
    open_waiter = acknowledged.open_waiter
    winners = []

    def meanwhile():
        if not winners:
            winners.append(None)
            winners[0] = services.rollback(policy, 1, ADA, WHY)
        return open_waiter()

    monkeypatch.setattr(acknowledged, "open_waiter", meanwhile)
    with pytest.raises(Conflict, match="v3 was published by ada a moment earlier") as conflict:
        services.rollback(policy, 1, OTTO, WHY)
    assert conflict.value.kind == "live"
    assert [v.number for v in policy.versions.all()] == [3, 2, 1]


def test_a_draft_survives_a_publication_that_fails(redis_away, policy, monkeypatch):
    etag = edit(policy, heavy_new_tokens=9000)

    def fail(*_, **__):
        raise RuntimeError("disk full")

    monkeypatch.setattr(services.audit, "record", fail)
    with pytest.raises(RuntimeError):
        services.publish(policy, OTTO, WHY)
    assert Draft.objects.get().etag == etag
    assert selectors.live_version(policy).number == 1


def test_a_draft_whose_base_was_replaced_must_be_settled_first(redis_away, policy):
    published(policy, heavy_new_tokens=9000)
    edit(policy, warm_hit_share=0.75)
    services.rollback(policy, 1, ADA, WHY)
    with pytest.raises(Conflict, match="v3 was published by ada meanwhile; this draft started from v2") as conflict:
        services.publish(policy, OTTO, WHY)
    assert conflict.value.kind == "live"
    assert Draft.objects.exists()


def test_a_settled_draft_is_published_after_the_other_version(redis_away, policy):
    published(policy, heavy_new_tokens=9000)
    edit(policy, warm_hit_share=0.75)
    services.rollback(policy, 1, ADA, WHY)
    services.patch_draft(policy, {"classes.heavy_new_tokens": 40_000}, OTTO, based_on=3)
    version = services.publish(policy, OTTO, WHY).version
    assert (version.number, version.based_on) == (4, 3)
    assert version.document["classes"]["warm_hit_share"] == 0.75


def test_a_new_policy_begins_with_a_version(redis_away, db):
    made = services.create_policy("night", services.default_document("lpwl"), OTTO, "for the batch window")
    assert (made.version.policy.name, made.version.number) == ("night", 1)


@pytest.mark.parametrize("name", ["", "Night", "-night", "a b", "x" * 51, "schema", "new", "ä"])
def test_the_name_of_a_policy_must_be_valid(redis_away, db, name):
    with pytest.raises(InvalidInput) as refused:
        services.create_policy(name, services.default_document("lpwl"), OTTO, "for the batch window")
    assert refused.value.problems[0].path == "name"


def test_a_name_can_be_used_only_once(redis_away, policy):
    with pytest.raises(Conflict, match="already"):
        services.create_policy("default", services.default_document("lpwl"), OTTO, "for the batch window")


def test_the_default_policy_is_created_once(redis_away, policy):
    assert services.ensure_default_policy({"classes.heavy_new_tokens": 9000}) == policy
    assert PolicyVersion.objects.count() == 1


def test_experiments_publish_and_remove_their_own_pools(live_redis, policy):
    mine = Pool.objects.create(name="exp-7-a", model="m", kind="sim", policy="default", ephemeral_owner="run 7")
    value = of_an_arm("exp-7-a")
    publication.publish_ephemeral(value)
    assert in_redis(live_redis, "exp-7-a")["document"] == value.document
    Pool.objects.filter(pk=mine.pk).update(removed=True)
    publication.remove_ephemeral("exp-7-a")
    publication.publish_ephemeral(value)  # from a worker that is too late
    assert live_redis.get(redis_keys.policy_key("exp-7-a")) is None
    assert live_redis.smembers(redis_keys.POOLS) == set()


@pytest.mark.parametrize(("if_match", "kind"), [(None, "live"), ("v1", "stale")])
def test_a_version_that_went_live_a_moment_earlier_makes_the_seen_one_stale(if_match, kind):
    with pytest.raises(Conflict) as conflict, stale_if_overtaken(if_match):
        raise Conflict("v2 was published by olga a moment earlier", kind="live")
    assert conflict.value.kind == kind
