"""A fleet of records, as Celery would have written them, without any process."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.testing_browser import Web, browser, open_page, web  # noqa: F401
from router.contract.redis import redis_keys
from router.tests.values import stored

LOG_LINES = 120
RECORDS = """
from controlplane.traffic.policies.services import ensure_default_policy
from fleet import events, services
from fleet.models import Fleet, Instance, InstanceEvent, Node, Pool, PoolVersion
from django.utils import timezone

ensure_default_policy()
for kind in (Fleet, Pool, Node, InstanceEvent):
    kind.objects.all().delete()
Node.objects.create(name="local", hostname="host-1", last_seen=timezone.now())
pool = {"model": "llama-3.1-8b", "kind": "sim", "node": "local", "engine": {"seed": 1}}
services.apply_fleet({
    "apiVersion": "weir/v1", "kind": "Fleet", "metadata": {"name": "night"},
    "spec": {"pools": [
        {"name": "demo", "policy": "default", "replicas": 3, **pool},
        {"name": "chat", "policy": "chat", "replicas": 0, **pool},
    ]},
}, "ada")
PoolVersion.objects.create(
    pool=Pool.objects.get(name="demo"), number=2, config_hash="other", failed="demo-1 failed with it",
    config={"model": "llama-3.1-8b", "kind": "sim", "engine": {"seed": 2}},
)
for ordinal, (state, reason) in enumerate((
    ("ready", "answers /health and serves the model"),
    ("failed", "ended with exit status 1"),
    ("draining", "2 requests still run"),
)):
    one = Instance.objects.create(
        pool=Pool.objects.get(name="demo"), name=f"demo-{ordinal}", ordinal=ordinal, epoch=1,
        state=state, reason=reason,
        desired="drained" if state == "draining" else "running", url=f"http://127.0.0.1:{19100 + ordinal}",
        command=["python", "-m", "fleet.simengine", "--seed", "1"], started_at=timezone.now(),
    )
    events.record(one, state, reason)
"""


def write_samples(web: Web, running: int = 2) -> None:  # noqa: F811
    for name, kv in (("demo-0", 0.254), ("demo-2", 0.5)):
        sample = {
            "id": name, "pool": "demo", "epoch": 1, "at": time.time(), "kv_usage": kv, "kv_blocks": 25_744,
            "block_size": 16, "running": running, "waiting": 0, "hit_rate": 0.93, "prompt_tokens_total": 767_529,
            "generation_tokens_total": 10_603, "preemptions_total": 0,
        }  # fmt: skip
        web.redis.set(redis_keys.instance_key(name), stored(sample))


def write_router(web: Web) -> None:  # noqa: F811
    now = time.time()
    status = {"id": "router-1", "at": now, "pools": {"demo": {"policy": "default", "version": 3}}}
    web.redis.set(redis_keys.router_key("router-1"), stored(status))
    web.redis.zadd(redis_keys.ROUTERS, {"router-1": now})


@pytest.fixture
def log(web: Web) -> Path:  # noqa: F811
    path = web.folder / "logs" / "instances" / "demo-0.log"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"simengine: step {number}\n" for number in range(LOG_LINES)))
    return path


def write_records(web: Web) -> None:  # noqa: F811
    web.run(RECORDS)


@pytest.fixture(scope="session")
def records(web: Web) -> None:  # noqa: F811
    write_records(web)


@pytest.fixture
def fleet(web: Web, log: Path, records: None) -> Web:  # noqa: F811
    """Pool demo with a ready, a failed and a draining instance; pool chat, whose policy does not exist. Tests must
    not change it."""
    web.redis.flushall()
    write_samples(web)
    return web


@pytest.fixture
def changing_fleet(fleet: Web) -> Iterator[Web]:
    """The same fleet, which tests may change."""
    yield fleet
    write_records(fleet)
