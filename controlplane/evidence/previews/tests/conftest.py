"""A policy with an open draft, its pool of two simulated instances, and a queue that only collects tasks."""

from collections.abc import Callable
from typing import Any

import pytest
import redis

from controlplane.evidence.traces.tests.test_recorded_format import recorded_line
from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import services as policy_services
from controlplane.traffic.policies.models import Draft, Policy
from controlplane.traffic.policies.tests.conftest import edit
from fleet.models import Pool
from router.contract.redis import redis_keys

OTTO = Actor("user", "otto")
NOW = 1_700_000_000.0


@pytest.fixture
def policy(db: None) -> Policy:
    return policy_services.ensure_default_policy()


@pytest.fixture
def pool(policy: Policy) -> Pool:
    return sim_pool("demo")


def sim_pool(name: str, **changes: Any) -> Pool:
    values = {"model": "llama-3.1-8b", "kind": "sim", "policy": "default", "replicas": 2, "engine": {}}
    return Pool.objects.create(name=name, **values | changes)


@pytest.fixture
def draft(policy: Policy, pool: Pool) -> Draft:
    edit(policy, heavy_new_tokens=9000)
    return Draft.objects.select_related("policy").get(policy=policy)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collects the tasks that would be queued."""
    found: list[Any] = []
    monkeypatch.setattr(
        "controlplane.celery.app.send_task", lambda name, args, queue: found.append((name, args, queue))
    )
    return found


@pytest.fixture
def record(live_redis: redis.Redis) -> Callable[..., None]:
    """Recorded traffic as a router writes it: one request a second, the newest at NOW."""

    def add(count: int, pool: str = "demo", **changes: Any) -> None:
        for i in range(count):
            values = {"at": NOW - count + 1 + i, "pool": pool, "model": "llama-3.1-8b", **changes}
            line = recorded_line(session=f"{i % 7:016x}", **values)
            live_redis.xadd(redis_keys.TRAFFIC, {"p": pool, "t": line})

    return add
