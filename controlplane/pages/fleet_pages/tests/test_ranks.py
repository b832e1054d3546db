"""The page of an instance with data-parallel ranks: a row for each."""

import time

import pytest
import redis
from django.test import Client

from controlplane.pages.fleet_ops.indexes import indexes_of
from controlplane.pages.fleet_ops.rows import instance_rows
from controlplane.pages.receipts.query import ReceiptQuery
from controlplane.traffic.policies.metrics import _sent
from fleet.models import Instance, Pool, State
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import IndexStatus, RouterStatus
from router.contract.redis.sample import InstanceSample, RankSample
from router.tests.values import receipt_of

RANKS = {
    "0": RankSample(kv_usage=0.25, running=3.0, waiting=0.0, prefix_queries_total=200.0, prefix_hits_total=150.0),
    "1": RankSample(kv_usage=0.75, running=1.0, waiting=2.0),
}


@pytest.fixture
def instance(db: None, live_redis: redis.Redis) -> Instance:
    pool = Pool.objects.create(name="chat", model="llama", kind="sim", engine={"data_parallel_size": 2})
    made = Instance.objects.create(
        pool=pool, name="chat-0", ordinal=0, state=State.READY, url="http://127.0.0.1:1", wire={"dp": {"ranks": 2}}
    )
    at = time.time()
    sample = InstanceSample(
        id="chat-0", epoch=made.epoch, at=at, kv_usage=0.5, running=4.0, waiting=2.0, kv_blocks=1000, block_size=16,
        ranks=RANKS,
    )  # fmt: skip
    live_redis.set(redis_keys.instance_key("chat-0"), codec.encode(sample))
    live_redis.zadd(redis_keys.ROUTERS, {"router-1": at})
    status = RouterStatus(
        id="router-1",
        at=at,
        inflight={"chat-0": (9, 0, 9)},
        ranks={"chat-0#1": (9, 0, 9)},
        indexes={"chat-0#0": IndexStatus(index="exact"), "chat-0#1": IndexStatus(index="approximate", why="late")},
    )
    live_redis.set(redis_keys.router_key("router-1"), codec.encode(status))
    return made


def test_each_rank_has_a_row(instance: Instance, vera_client: Client) -> None:
    page = vera_client.get("/fleet/instances/chat-0/").content.decode()
    table = page[page.index("<h2>Ranks</h2>") : page.index("<h2>Prefix index</h2>")]
    rows = [" ".join(row.replace("<", " <").split()) for row in table.split("<tr>")[2:]]
    assert [("chat-0#0" in row, "25 %" in row, "75 %" in row, "exact" in row) for row in rows] == [
        (True, True, True, True), (False, False, True, False),
    ]  # fmt: skip
    assert 'number">9 <' in rows[1]
    assert "500 of" not in page  # both ranks together use 1,000 of 2,000 blocks
    assert "1,000 of 2,000 blocks of 16 tokens" in page
    assert "router-1, rank 1" in page


def test_an_instance_with_one_rank_shows_no_ranks(instance: Instance, vera_client: Client) -> None:
    Instance.objects.update(wire={})
    assert "<h2>Ranks</h2>" not in vera_client.get("/fleet/instances/chat-0/").content.decode()


def test_rest_returns_what_the_engine_reports_for_each_rank(instance: Instance, vera_client: Client) -> None:
    sample = vera_client.get("/api/v1/instances/chat-0").json()["sample"]
    assert (sample["running"], sample["ranks"]["1"]["waiting"]) == (4.0, 2.0)


def test_routers_indexes_are_listed_by_rank(instance: Instance) -> None:
    assert [(known.router, known.rank, known.status.index) for known in indexes_of("chat-0")] == [
        ("router-1", "0", "exact"), ("router-1", "1", "approximate"),
    ]  # fmt: skip
    (row,) = instance_rows([instance])
    assert (row.kv_blocks, row.kv_used_blocks) == (2000, 1000)


def test_the_load_compared_with_the_policy_is_that_of_a_rank() -> None:
    routers = [
        RouterStatus(id="new", at=0.0, inflight={"chat-0": (9, 0, 9)}, ranks={"chat-0#1": (9, 0, 9)}),
        RouterStatus(id="newer", at=0.0, inflight={"chat-0": (1, 0, 1)}, ranks={"chat-0#0": (1, 0, 1)}),
    ]
    assert _sent(routers, {"chat-0", "chat-1"}) == {
        "chat-1": (0, 0, 0), "chat-0#1": (9, 0, 9), "chat-0#0": (1, 0, 1),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "found"), [("chat-0", True), ("chat-0#2", True), ("chat-0#1", False), ("chat", False)]
)
def test_receipts_are_found_by_instance_and_by_rank(wanted: str, found: bool) -> None:
    assert ReceiptQuery(instance=wanted).matcher()(receipt_of({"instance": "chat-0#2"})) is found
