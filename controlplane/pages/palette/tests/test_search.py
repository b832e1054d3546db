"""The command palette finds pages by name, in the order that a reader expects, and only those that the user may
open."""

import time

import pytest
import redis
from django.contrib.auth.models import AnonymousUser
from django.test import Client

from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.palette.search import search
from controlplane.traffic.policies.services import ensure_default_policy
from fleet.models import Instance, Node, Pool

pytestmark = pytest.mark.django_db


@pytest.fixture
def records(live_redis: redis.Redis) -> None:
    ensure_default_policy()
    pool = Pool.objects.create(name="demo", model="llama", kind="sim")
    Pool.objects.create(name="exp-1-demo", model="llama", kind="sim", ephemeral_owner="experiment 1")
    for i in range(9):
        Instance.objects.create(pool=pool, name=f"demo-{i}", ordinal=i, node="gpu-1", state="ready")
    Node.objects.create(name="gpu-1", hostname="host-1")
    FakeFleet(live_redis).write_receipt("req-77", time.time())


def titles(query: str) -> list[str]:
    return [f"{one.kind} {one.title}" for one in search(query, AnonymousUser())]


def test_pools_are_found_by_a_part_of_their_name_but_not_those_of_experiments(records: None) -> None:
    assert titles("EMO") == ["pool demo", *(f"instance demo-{i}" for i in range(6))]
    assert titles("demo-8") == ["instance demo-8"]
    assert titles("gpu") == ["node gpu-1"]
    assert titles("defau") == ["policy default"]
    assert titles("nothing like this") == []


def test_a_request_is_found_by_its_whole_id(records: None) -> None:
    assert titles("req-77") == ["request req-77"]
    assert titles("req-7") == []


def test_without_redis_everything_else_is_found(redis_away: None) -> None:
    ensure_default_policy()
    assert titles("default") == ["policy default"]


def test_only_pages_for_the_role_are_found(vera_client: Client, ada_client: Client) -> None:
    def pages(client: Client, query: str) -> list[str]:
        return [one["title"] for one in client.get("/search", {"q": query}).json()["found"]]

    assert pages(vera_client, "users") == []
    assert pages(ada_client, "users") == ["Users"]
    assert pages(vera_client, "live") == ["Live", "Deliveries"]
    assert {"Live", "First minutes"} <= set(pages(vera_client, ""))


def test_strangers_find_nothing(client: Client) -> None:
    assert client.get("/search", {"q": "demo"}).status_code in (302, 403)


def test_a_query_is_cut_and_cleaned(records: None) -> None:
    assert titles("demo-8\x00") == ["instance demo-8"]
    assert titles("x" * 5_000) == []


def test_the_first_minutes_explain_kv_and_ttft_and_let_an_operator_begin_with_a_draft(
    vera_client: Client, otto_client: Client
) -> None:
    text = vera_client.get("/help").content.decode()
    for part in ("<dt>KV</dt>", "<dt>TTFT</dt>", "See the policy", "Preview it", "Deliver it", "Roll it back"):
        assert part in text
    assert "Change a threshold" in otto_client.get("/help").content.decode()
