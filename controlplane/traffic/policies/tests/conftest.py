import threading
import time
from collections.abc import Callable, Iterator

import pytest
import redis

from controlplane.people.audit.services import Actor
from controlplane.traffic.policies import services
from controlplane.traffic.policies.models import Policy
from fleet.models import Pool
from router.contract.redis import redis_keys
from router.contract.redis.published import PolicyValue
from router.policy.schema import document as documents
from router.tests.values import loaded, stored

ADA = Actor("user", "ada")
OTTO = Actor("user", "otto")
WHY = "less prefill on warm instances"


@pytest.fixture
def policy(db: None) -> Policy:
    """The default policy, v1."""
    return services.ensure_default_policy()


@pytest.fixture
def pool(policy: Policy) -> Pool:
    return Pool.objects.create(name="demo", model="m", kind="sim", policy=policy.name, replicas=8)


class FakeRouter:
    """Acknowledges every published policy, or stays silent."""

    def __init__(self, client: redis.Redis, name: str, answers: bool = True) -> None:
        self.client, self.name, self.answers = client, name, answers
        self.versions: dict[str, int] = {}  # by pool
        self.say_alive()
        self._stop = threading.Event()
        self._pubsub = client.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(redis_keys.CHANGED)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def say_alive(self) -> None:
        self.client.zadd(redis_keys.ROUTERS, {self.name: time.time()})
        pools = {
            p: {"policy": "default", "version": v, "acked_at": 0.0} for p, v in getattr(self, "versions", {}).items()
        }
        self.client.set(redis_keys.router_key(self.name), stored({"id": self.name, "at": time.time(), "pools": pools}))

    def _run(self) -> None:
        while not self._stop.is_set():
            message = self._pubsub.get_message(timeout=0.02)
            if message and self.answers:
                self._take_up(message["data"].decode())

    def _take_up(self, key: str) -> None:
        value = loaded(self.client.get(key))
        if value is None or "version" not in value:
            return
        self.versions[value["pool"]] = value["version"]
        self.say_alive()
        ack = {"router": self.name, "pool": value["pool"], "version": value["version"], "at": time.time()}
        self.client.publish(redis_keys.ACKS, stored(ack))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(timeout=2)
        self._pubsub.close()


@pytest.fixture
def routers(live_redis: redis.Redis) -> Iterator[Callable[..., FakeRouter]]:
    """Starts routers by name."""
    started: list[FakeRouter] = []

    def start(name: str, answers: bool = True) -> FakeRouter:
        started.append(FakeRouter(live_redis, name, answers))
        return started[-1]

    yield start
    for router in started:
        router.stop()


def edit(policy: Policy, actor: Actor = OTTO, **values: object) -> str:
    """Open the draft and change `classes.<name>`; return the draft's ETag."""
    services.open_draft(policy, actor)
    overrides = {f"classes.{name}": value for name, value in values.items()}
    return services.patch_draft(policy, overrides, actor).etag


def published(policy: Policy, actor: Actor = OTTO, **values: object) -> services.Publication:
    edit(policy, actor, **values)
    return services.publish(policy, actor, WHY)


def of_an_arm(pool: str) -> PolicyValue:
    """Return the value that routers apply to the pool of an experiment's arm."""
    document = services.default_document("lpwl")
    return PolicyValue(pool=pool, policy="lpwl", version=1, sha256=documents.sha256(document), document=document)
