"""Policies stored and published before schema 2 keep working, with their own text and sha256."""

import json
from pathlib import Path
from typing import Any

import pytest

from controlplane.traffic.policies import selectors, services
from controlplane.traffic.policies.errors import NothingToPublish
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from controlplane.traffic.policies.tests.conftest import ADA, OTTO, WHY
from controlplane.traffic.policies.tests.test_editor_page import form_of
from fleet.models import Pool
from router.contract.redis import redis_keys
from router.policy.schema import document as documents
from router.tests.values import loaded

GOLDEN = Path(__file__).parents[4] / "router/tests/policy/golden/schema_1/cache_aware.json"
OLD = json.loads(GOLDEN.read_text())
DRAFT = "/policies/night/draft"


@pytest.fixture
def night(db: None) -> Policy:
    """A policy whose v1 was published before schema 2."""
    policy = Policy.objects.create(name="night")
    facts: dict[str, Any] = {"document": OLD["document"], "sha256": OLD["sha256"], "reason": WHY, "actor_name": "ada"}
    PolicyVersion.objects.create(policy=policy, number=1, actor_kind="user", **facts)
    return policy


@pytest.fixture
def old_draft(night: Policy) -> Draft:
    return Draft.objects.create(policy=night, document=OLD["document"], based_on=1, opened_by="otto", updated_by="otto")


def test_an_old_version_is_published_as_it_is_stored(night, live_redis):
    Pool.objects.create(name="dark", model="m", kind="sim", policy="night")
    services.republish_missing()
    held = loaded(live_redis.get(redis_keys.policy_key("dark")))
    assert (held["document"], held["sha256"]) == (OLD["document"], OLD["sha256"])
    assert services.republish_missing() == []


def test_a_draft_opened_from_an_old_version_changes_nothing_yet(night, redis_away):
    assert services.open_draft(night, OTTO).document == OLD["upgraded"]
    with pytest.raises(NothingToPublish):
        services.publish(night, OTTO, WHY)


def test_an_old_draft_is_edited_and_published_in_the_new_schema(night, old_draft, redis_away):
    assert services.patch_draft(night, {"strategy.hit_weight": 5}, OTTO).document["strategy"]["hit_weight"] == 5
    version = services.publish(night, OTTO, WHY).version
    assert version.document["schema"] == 2
    assert version.sha256 == documents.sha256(version.document)
    assert selectors.version(night, 1).document == OLD["document"]


def extended(whole, given):
    """A section of a document with the parameters that were added since then."""
    return {**whole, **given} if isinstance(given, dict) else given


def test_a_rollback_to_an_old_version_publishes_it_upgraded(night, old_draft, redis_away):
    services.patch_draft(night, {"strategy.hit_weight": 5}, OTTO)
    services.publish(night, OTTO, WHY)
    version = services.rollback(night, 1, ADA, WHY).version
    whole = documents.dump(documents.parse(OLD["upgraded"]))  # with the current parameters
    assert {name: extended(whole[name], given) for name, given in OLD["upgraded"].items()} == {
        name: whole[name] for name in OLD["upgraded"]
    }
    assert (version.document, version.sha256) == (whole, documents.sha256(whole))
    with pytest.raises(NothingToPublish):
        services.rollback(night, 1, ADA, WHY)


def test_the_pages_show_the_values_and_only_changes_of_values(night, old_draft, otto_client, redis_away):
    form = form_of(otto_client.get(DRAFT))
    assert form["strategy.hit_weight"] == "1.1"
    assert "Nothing differs" in otto_client.get(f"{DRAFT}/review").content.decode()
    otto_client.post(DRAFT, {**form, "strategy.hit_weight": "5"})
    services.publish(night, OTTO, WHY)
    history = otto_client.get("/policies/night/").content.decode()
    assert "Weight of new tokens" in history
    assert "&quot;route&quot;" not in otto_client.get("/policies/night/compare").content.decode()
    stored = otto_client.get("/policies/night/versions/1/").content.decode()
    assert "&quot;route&quot;" in stored


def test_the_api_refuses_the_old_names(night, old_draft, ci, redis_away):
    made = ci.post("/policies", {"name": "day", "reason": WHY, "route": "round_robin"})
    changed = ci.patch("/policies/night/draft", {"overrides": {"route.name": "lpwl"}})
    for refused in (made, changed):
        assert (refused.status_code, "route" in refused.json()["errors"][0]["path"]) == (422, True)
    assert ci.get("/policies/night/versions/1").json()["document"] == OLD["document"]
