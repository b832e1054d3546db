"""The instance's page shows what routers know of its KV cache."""

import time

import redis
from django.test import Client

from controlplane.pages.fleet_pages.tests.test_pages import text_of
from fleet.tests.world import World
from router.contract.redis import redis_keys
from router.tests.values import stored

EXACT = {
    "index": "exact",
    "why": "",
    "n": 10,
    "predicted": 990,
    "actual": 1_000,
    "error": 30,
    "blocks": [1_234, 56, 7],
    "age_s": 0.4,
    "event_at": 1.0,
    "gaps": 2,
    "replayed": 3,
    "purges": 1,
}
GUESS = {"index": "approximate", "why": "it publishes no KV events", "n": 0, "predicted": 0, "actual": 0, "error": 0}


def says(client: redis.Redis, router: str, indexes: dict[str, object]) -> None:
    now = time.time() + 1_000  # the values have not expired, however slow the machine is
    client.set(redis_keys.router_key(router), stored({"id": router, "at": now, "indexes": indexes}))
    client.zadd(redis_keys.ROUTERS, {router: now})


def test_each_router_is_a_row(viewer: Client, fleet: World, live_redis: redis.Redis) -> None:
    says(live_redis, "router-1", {"p-0": EXACT})
    says(live_redis, "router-2", {"p-0": GUESS})
    said = text_of(viewer.get("/fleet/instances/p-0/"))
    assert (
        "router-1 exact 1,234 on device, 56 host, 7 disk 0.4 s ago 2 gaps, 3 replayed, 1 emptied "
        "99 % of 10 answers, off by 3 tokens"
    ) in said
    assert "router-2 approximate it publishes no KV events – – – –" in said


def test_an_instance_unknown_to_every_router_says_so(viewer: Client, fleet: World, live_redis: redis.Redis) -> None:
    assert "No router has an index yet" in text_of(viewer.get("/fleet/instances/p-0/"))


def test_refused_reports_of_engines_are_listed_with_who_refused_them(
    viewer: Client, fleet: World, live_redis: redis.Redis
) -> None:
    assert "Refused answers" not in text_of(viewer.get("/fleet/instances/p-0/"))
    fleet.tell(running="-1")
    fleet.tick()
    says(live_redis, "router-1", {"p-0": {**EXACT, "refused": {"KV event batches that cannot be decoded": 1_234}}})
    said = text_of(viewer.get("/fleet/instances/p-0/"))
    assert "Reason Refused by Times KV event batches that cannot be decoded router-1 1,234" in said
    assert "vllm:num_requests_running: out of range (0 to 2^53) local 1" in said
