"""The effect of class thresholds on the newest requests."""

import time

import pytest
import redis

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.receipts import class_shares, spreads
from controlplane.traffic.policies import services
from fleet.models import Pool
from router.policy.schema import document as documents
from router.policy.schema.parameters import PARAMETERS

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
    recorded = spreads.read(live_redis, ["demo"])
    assert sorted(class_shares.sizes(recorded.requests)) == sorted(written)
    assert (recorded.since, recorded.until) == (pytest.approx(NOW - 9), pytest.approx(NOW))
    assert len(spreads.read(live_redis, ["demo"], most=2).requests) == 2


def spread_of(client, path):
    return spreads.spread(spreads.read(client, ["demo"]), path, LIVE["load"]["request_tokens"])


def test_decisions_provide_load_and_kv_usage_and_requests_provide_queues_waits_and_pauses(live_redis):
    fleet = FakeFleet(live_redis)
    made = [(0, 0.0, "warm"), (1, 5_000.0, "heavy"), (3, 2_500.0, "heavy"), (5.8, 500.0, "heavy"), (9, 0.0, "heavy")]
    for i, (at, queue_ms, kind) in enumerate(made):
        known = {"pool": "demo", "session": "s", "queue_ms": queue_ms, "prompt_tokens": 9_192, "class": kind}
        fleet.write_receipt(f"r{i}", NOW - 99 + at, **known)
    # Each of the five decisions compared three instances, as FakeFleet.made_from generates them.
    assert spread_of(live_redis, "load.kv_usage_max") == [(0.0, 10), (0.5, 5)]
    assert spread_of(live_redis, "admission.max_inflight_per_instance") == [(0.0, 5), (1.0, 5), (3.0, 5)]
    # The session's: 9,192 − 8,192 + 1,200 + 3 · 2,000; the least: demo-2, 9,192.
    assert spread_of(live_redis, "affinity.break_ratio") == [(1.0, 5)]
    assert spread_of(live_redis, "affinity.break_floor_tokens") == [(0.0, 5)]
    assert spread_of(live_redis, "affinity.ttl_s") == [(1.0, 1), (2.0, 1), (2.8, 1), (3.2, 1)]
    assert spread_of(live_redis, "admission.max_wait_heavy_s") == [(0.0, 1), (0.5, 1), (2.5, 1), (5.0, 1)]
    assert spread_of(live_redis, "admission.max_queue_heavy") == [(0.0, 2), (1.0, 2)]
    assert spread_of(live_redis, "admission.max_wait_medium_s") == []


def test_receipts_of_a_large_pool_list_the_compared_instances(live_redis):
    fleet = FakeFleet(live_redis)
    fleet.write_receipt("r0", NOW - 1, pool="demo")
    recorded = spreads.read(live_redis, ["demo"])
    assert spreads.what(recorded, "load.kv_usage_max") == "KV usage of an instance at a decision"
    recorded.decisions[0].candidates["left_out"] = {"more load": 900}
    assert "mostly those with little load" in spreads.what(recorded, "load.kv_usage_max")
    assert spreads.what(recorded, "affinity.ttl_s") == "Pauses between a session's requests"


def test_every_quantity_belongs_to_a_parameter_in_its_unit():
    units = {PARAMETERS[path].unit for path in spreads.QUANTITIES}
    assert units == {"share", "requests", "s", "ratio", "tokens"}


def test_a_sentence_states_the_share_beyond_a_limit():
    values = [(0.5, 990), (0.97, 10)]
    assert spreads.sentence(values, 0.95, 0.95, "share") == "1.0 % above 0.95, of 1,000"
    words = "100.0 % above 512 tokens, of 4; live 20,000 tokens: 0.0 % above"
    assert spreads.sentence([(10_000.0, 4)], 20_000, 512, "tokens") == words


def test_the_classes_of_requests_are_those_of_the_decision(written):
    assert class_shares.classes_of(written, documents.parse(LIVE)) == ["heavy", "warm", "warm", "medium"]


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        (LIVE, "warm 50.0 %, medium 25.0 %, heavy 25.0 %: no request changes its class."),
        (
            with_heavy(10_000),
            "warm 50.0 % → 25.0 %, medium 25.0 % → 0.0 %, heavy 25.0 % → 75.0 %: 2 of 4 requests change class.",
        ),
    ],
)
def test_a_sentence_states_what_changes(written, draft, words):
    assert class_shares.sentence(written, documents.parse(LIVE), documents.parse(draft)) == words


def test_the_editor_shows_the_shares_and_says_if_there_are_none_or_redis_is_unreachable(
    otto_client, live_redis, written, monkeypatch
):
    policy = services.ensure_default_policy()
    Pool.objects.create(name="demo", model="m", kind="sim", policy=policy.name, replicas=1)
    otto_client.post(f"/policies/{policy.name}/draft/open")
    page = f"/policies/{policy.name}/draft"
    shown = otto_client.get(page).content.decode()
    assert "Newest 4 requests" in shown
    assert "0.0 % above 0.95, of 15" in shown
    assert "none recorded" in shown  # no prompt was computed elsewhere
    live_redis.delete("weir:receipts")
    assert "has a receipt: the distribution" in otto_client.get(page).content.decode()
    monkeypatch.setattr("controlplane.pages.receipts.spreads.read", _away)
    assert "the distribution of requests is unknown" in (away := otto_client.get(page).content.decode())
    assert "unknown, Redis does not answer" in away


def _away(*args):
    raise redis.ConnectionError("away")
