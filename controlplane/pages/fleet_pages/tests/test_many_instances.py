"""A pool of many instances: pages list those in trouble, and a text search finds the others."""

import re
import time

import pytest
import redis
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from controlplane.live.dashboard.step import step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from controlplane.pages.fleet_pages.tests.test_pages import HTMX, text_of
from fleet import services
from fleet.models import Instance, Pool, State

SIZE = 300


def test_pages_of_a_large_pool_list_troubled_instances_and_find_the_others(
    viewer: Client, live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.live.dashboard.frame.status.SAMPLE_STALE_S", 600.0)
    monkeypatch.setattr("controlplane.live.dashboard.frame.status.SAMPLE_OFFLINE_S", 900.0)
    FakeFleet(live_redis, size=SIZE, pool="p").write()
    step(live_redis, time.time(), "worker")
    pool = {"name": "p", "model": "llama-3.1-8b", "kind": "sim", "replicas": SIZE}
    services.apply_fleet(
        {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": [pool]}}, "ada"
    )
    Instance.objects.bulk_create(
        Instance(
            pool=Pool.objects.get(),
            ordinal=number,
            name=f"p-{number}",
            state=State.FAILED if number == 277 else State.READY,
            epoch=1,
        )
        for number in range(SIZE)
    )
    for path in ("/fleet/", "/fleet/pools/p/"):
        with CaptureQueriesContext(connection) as asked:
            page = viewer.get(path)
        assert "100 of 300 instances: those in trouble first, then the fullest" in text_of(page)
        assert page.content.count(b'id="to-p-') == 100
        assert re.findall(r'id="to-(p-\d+)"', page.content.decode())[0] == "p-277"
        assert len(page.content) < 200_000
        assert len(asked) < 30
        found = viewer.get(path, {"find": "P-12"}, headers=HTMX)
        assert "11 of 300 instances match “P-12”" in text_of(found)  # p-12, p-120 … p-129
        assert found.content.count(b'id="to-p-') == 11
        whole = viewer.get(path, {"find": 'x"&<'})
        assert "0 of 300 instances match" in text_of(whole)
        assert b"?find=x%22%26%3C" in whole.content
    assert "1 of 300 instances match “failed”" in text_of(viewer.get("/fleet/", {"find": "failed"}))


def test_many_pools_need_no_more_queries_than_one(viewer: Client, live_redis: redis.Redis) -> None:
    counts = []
    for number in (1, 4):
        pools = [{"name": f"p-{i}", "model": "llama-3.1-8b", "kind": "sim", "replicas": 2} for i in range(number)]
        services.apply_fleet(
            {"apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "test"}, "spec": {"pools": pools}}, "ada"
        )
        for pool in Pool.objects.filter(instances=None):
            Instance.objects.bulk_create(
                Instance(pool=pool, ordinal=i, name=f"{pool.name}-{i}", state=State.READY, epoch=1) for i in (0, 1)
            )
        with CaptureQueriesContext(connection) as asked:
            assert f"p-{number - 1}-1" in text_of(viewer.get("/fleet/"))
        counts.append(len(asked))
    assert counts[0] == counts[1]
