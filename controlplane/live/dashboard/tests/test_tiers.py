"""KV tiers on Live and the wall: hits, transfers, writes and wear of instances that still report."""

import time
from typing import Any

import pytest
import redis
from django.test import Client
from msgspec import structs

from controlplane.live.dashboard import step
from controlplane.live.dashboard.frame.build import build_frame
from controlplane.live.dashboard.frame.tiers import in_words, tier_rows
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.live.dashboard.tests.test_frames import NOW, Inputs, fleet, instance, sample
from router.contract.redis.sample import InstanceSample, TierSample

GB = 2.0**30
HOST = {"queries_total": 200.0, "hits_total": 68.0, "read_bytes_per_s": 2 * GB, "read_bytes_total": 36 * GB}
HOST |= {"read_s_total": 2.0, "written_bytes_per_s": GB / 2}
DISK = {"written_bytes_per_s": GB, "capacity_bytes": 8_640 * GB, "backlog_bytes": 3 * GB}


def test_one_line_describes_every_tier() -> None:
    tiers = {"host": TierSample(**HOST), "disk": TierSample(**DISK)}
    words = in_words(tier_rows([InstanceSample(id="a-0", epoch=1, at=0.0, kv_tiers=tiers)])).replace("\xa0", " ")
    host, disk = words.split("; ")
    assert host == "host 34 % hits, 2.0 GB/s read at 18.0 GB/s, 512.0 MB/s written"
    assert disk == "disk 1.0 GB/s written, 3.0 GB to be written, 10 drive writes a day"


def test_a_server_that_engines_share_counts_once() -> None:
    one = TierSample(used_bytes=5 * GB, queries_total=100.0, hits_total=60.0, page="http://cache:8080/metrics")
    tiers = [one] * 8 + [structs.replace(one, page="http://other:8080/metrics"), TierSample(used_bytes=GB)]
    samples = [InstanceSample(id=f"a-{n}", epoch=1, at=0.0, kv_tiers={"host": tier}) for n, tier in enumerate(tiers)]
    (row,) = tier_rows(samples)
    assert (row.total.used_bytes, row.total.queries_total, row.hit_share) == (11 * GB, 200.0, 0.6)


@pytest.mark.parametrize(
    ("age_s", "tiers", "words"),
    [
        (0.0, {"disk": DISK}, {"demo": "disk 1.0 GB/s written, 3.0 GB to be written, 10 drive writes a day"}),
        (9.0, {"disk": DISK}, {}),
        (0.0, {"host": {"used_bytes": 1.0}}, {}),
        (0.0, {}, {}),
    ],
)
def test_a_frame_has_the_tiers_with_current_transfers(
    age_s: float, tiers: dict[str, Any], words: dict[str, str]
) -> None:
    samples = {"demo-0": sample(NOW - age_s, kv_tiers=tiers)}
    frame = build_frame(NOW, Inputs(fleets={"demo": fleet(instance("demo-0"))}, samples=samples))
    assert {pool: text.replace("\xa0", " ") for pool, text in frame["tiers"].items()} == words


@pytest.mark.django_db
def test_live_and_the_wall_show_the_tiers_beside_the_policy(live_redis: redis.Redis, vera_client: Client) -> None:
    now = time.time() + 600  # a slow test does not make the frame old
    shown = FakeFleet(live_redis)
    plain = shown.sample
    shown.sample = lambda i, name, at: plain(i, name, at) | {"kv_tiers": {"disk": DISK}}  # type: ignore[method-assign]
    shown.write(now)
    step.step(live_redis, now, "worker")
    for path in ("/live", "/wall"):
        assert vera_client.get(path).context["snapshot"]["frame"]["tiers"]["demo"].startswith("disk ")
