"""What class thresholds make of the newest requests."""

import time

import pytest
import redis

from controlplane.dashboard.tests.fake_fleet import FakeFleet
from controlplane.policies import services
from controlplane.receipts import class_shares
from fleet.models import Pool
from router.policy.schema import document as documents

LIVE = documents.default()  # heavy from 40,000 new tokens; warm above half cached, or below 5,000 new tokens
NOW = time.time()


def with_heavy(tokens):
    return documents.apply_overrides(LIVE, {"classes.heavy_new_tokens": tokens})


@pytest.fixture
def written(live_redis):
    fleet = FakeFleet(live_redis)
    sizes = [(50_000, 0), (50_000, 25_001), (1_000, 0), (12_000, 2_000)]
    for i, (prompt, cached) in enumerate(sizes):
        fleet.write_receipt(f"r{i}", NOW - 9 + i, prompt_tokens=prompt, predicted_cached=cached, pool="demo")
    fleet.write_receipt("other", NOW, prompt_tokens=5, predicted_cached=0, pool="other")
    fleet.write_receipt("refused", NOW, predicted_cached=None, pool="demo")
    return sizes


def test_the_newest_requests_of_the_pools_are_read(live_redis, written):
    found, since = class_shares.sizes(live_redis, ["demo"])
    assert sorted(found) == sorted(written)
    assert since == pytest.approx(NOW - 9)
    assert len(class_shares.sizes(live_redis, ["demo"], most=2)[0]) == 2


def test_their_classes_are_those_of_the_decision(written):
    assert class_shares.classes_of(written, LIVE) == ["heavy", "warm", "warm", "medium"]


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (LIVE, "warm 50.0 %, medium 25.0 %, heavy 25.0 %: no request changes its class."),
        (
            with_heavy(10_000),
            "warm 50.0 % → 25.0 %, medium 25.0 % → 0.0 %, heavy 25.0 % → 75.0 %: 2 requests of 4 change class.",
        ),
    ],
)
def test_a_sentence_says_what_changes(written, draft, words):
    assert class_shares.sentence(written, LIVE, draft) == words


def test_the_editor_shows_them_and_says_when_there_are_none_or_redis_is_away(
    otto_client, live_redis, written, monkeypatch
):
    policy = services.ensure_default_policy()
    Pool.objects.create(name="demo", model="m", kind="sim", policy=policy.name, replicas=1)
    otto_client.post(f"/policies/{policy.name}/draft/open")
    page = f"/policies/{policy.name}/draft"
    assert "Newest 4 requests" in otto_client.get(page).content.decode()
    live_redis.delete("weir:receipts")
    assert "has a receipt: the distribution" in otto_client.get(page).content.decode()
    monkeypatch.setattr("controlplane.receipts.class_shares.sizes", _away)
    assert "the distribution of requests is unknown" in otto_client.get(page).content.decode()


def _away(*args):
    raise redis.ConnectionError("away")
