"""The pages of instance and pool show the content, reads, writes and hits of the tiers below the GPU."""

import time
from typing import Any

import redis
from django.test import Client
from msgspec import structs

from controlplane.pages.fleet_pages.tests.test_pages import text_of
from fleet.tests.world import World
from router.contract.redis import codec, redis_keys
from router.contract.redis.sample import InstanceSample, TierSample

GB = 1e9
HOST = TierSample(read_bytes_total=4 * GB, read_s_total=2.0, failed_total=3.0)
DISK = TierSample(
    used_bytes=30 * 2**30,
    capacity_bytes=64 * 2**30,
    read_bytes_per_s=2.0**30,
    written_bytes_per_s=0.0,
    queries_total=750.0,
    hits_total=600.0,
    backlog=3.0,
)
HEAD = "Tier Used Capacity Free Read at Written at Hits Backlog Drive writes a day Failed"


def says(client: redis.Redis, instance: str, **values: Any) -> None:
    sample = InstanceSample(id=instance, pool="p", epoch=1, at=time.time(), kv_usage=0.25, **values)
    client.set(redis_keys.instance_key(instance), codec.encode(sample))


def test_an_instance_and_its_pool_list_the_tiers(viewer: Client, fleet: World, live_redis: redis.Redis) -> None:
    assert "KV tiers" not in text_of(viewer.get("/fleet/instances/p-0/"))
    says(live_redis, "p-0", kv_tiers={"host": HOST, "disk": DISK})
    says(live_redis, "p-1", kv_tiers={"disk": DISK})
    one = text_of(viewer.get("/fleet/instances/p-0/")).replace("\xa0", " ")
    assert f"{HEAD} host – – – – 1.9 GB/s – – – – – 3 disk 30.0 GB 64.0 GB 34.0 GB 1.0 GB/s – 0 bytes/s –" in one
    assert "80 % of 750 3 0 –" in one
    pool = text_of(viewer.get("/fleet/pools/p/")).replace("\xa0", " ")
    assert "disk 60.0 GB 128.0 GB 68.0 GB 2.0 GB/s – 0 bytes/s – 80 % of 1,500 6 0 –" in pool


def test_a_drive_shows_its_writes_per_day_and_its_backlog(
    viewer: Client, fleet: World, live_redis: redis.Redis
) -> None:
    worn = structs.replace(DISK, written_bytes_per_s=64 * 2**30 / 3600, backlog_bytes=2.0**30)
    says(live_redis, "p-0", kv_tiers={"host": structs.replace(worn, backlog_bytes=None), "disk": worn})
    said = text_of(viewer.get("/fleet/pools/p/")).replace("\xa0", " ")
    assert "80 % of 750 3 – –" in said
    assert "80 % of 750 1.0 GB 24 –" in said


def test_without_a_declared_capacity_the_fullest_disk_determines_the_free_space(
    viewer: Client, fleet: World, live_redis: redis.Redis
) -> None:
    used = TierSample(used_bytes=5.0 * 2**30)
    says(live_redis, "p-0", kv_tiers={"disk": used}, disk=(20 * 2**30, 100 * 2**30))
    says(live_redis, "p-1", kv_tiers={"disk": used}, disk=(10 * 2**30, 100 * 2**30))
    pool = text_of(viewer.get("/fleet/pools/p/")).replace("\xa0", " ")
    assert "disk 10.0 GB – 10.0 GB" in pool
