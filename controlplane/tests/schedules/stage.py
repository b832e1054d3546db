"""The environment of the publications: one pool and its policy, two routers, and the states of database, Redis and
routers."""

import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import redis

from controlplane.people.audit.services import SYSTEM
from controlplane.tests.schedules import database, seams
from controlplane.tests.schedules.allowed import Facts
from controlplane.tests.schedules.routers import ScheduledRouter
from controlplane.tests.schedules.scheduler import Scheduler
from controlplane.tests.schedules.timeline import Timeline
from controlplane.traffic.deliveries.rollout import rollout
from controlplane.traffic.keys.models import ApiKey
from controlplane.traffic.policies import services, versions
from controlplane.traffic.policies.models import Policy
from fleet.models import Instance, Pool, State
from router.contract.redis import codec, redis_keys
from router.contract.redis.api_keys import ApiKeysValue
from router.contract.redis.published import FleetValue, PolicyAck, PolicyValue, Rollout, SplitRollout
from router.policy.schema import document as documents
from router.pool.pool import Pool as RouterPool

POOL = "demo"
REDIS = "Redis"


class Serving(NamedTuple):
    """The version that decides a pool's requests."""

    policy: str
    version: int
    generation: int
    delivery: int = 0
    share: float = 0.0
    shadow: float = 0.0


def serving(policy: str, version: int, split: Rollout) -> Serving:
    if isinstance(split, SplitRollout):
        return Serving(policy, version, split.generation, split.delivery, split.share, split.shadow)
    return Serving(policy, version, split.generation)


class Stage:
    """The parts that last from schedule to schedule: threads, tables, connections."""

    def __init__(self, client: redis.Redis, redis_url: str, threads: ThreadPoolExecutor) -> None:
        self.client, self.threads = client, threads
        self.tables = database.tables()
        self.routers = [ScheduledRouter(name, redis_url) for name in ("router-1", "router-2")]

    def close(self) -> None:
        for router in self.routers:
            router.close()


class World:
    """The world of one schedule: fresh rows, an empty Redis, routers that know nothing."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.client, self.routers = stage, stage.client, stage.routers
        database.empty(stage.tables)
        self.client.flushdb()
        for router in self.routers:
            router.restart()
        self.policies, self.fleets, self.keys = Timeline("the policy"), Timeline("the fleet"), Timeline("the keys")
        self.scheduler = Scheduler(stage.threads, self.look)
        self.saved: dict[Any, Any] = {}  # last saved state of Redis
        self._make()
        seams.touched.clear()
        self.facts = Facts.read(self.policy)
        self.read_database()

    def _make(self) -> None:
        self.policy: Policy = services.ensure_default_policy()
        self.pool = Pool.objects.create(name=POOL, model="m", kind="sim", policy=self.policy.name, replicas=1)
        for tokens in (6_000, 7_000):  # older versions, to roll back to
            document = documents.apply_overrides(documents.default(), {"classes.heavy_new_tokens": tokens})
            version = versions.add_version(self.policy, document, SYSTEM, "an older version")
            versions.go_live(version, version.number - 1)
        self.policy.refresh_from_db()
        ready = {"state": State.READY, "url": "http://127.0.0.1:1", "epoch": 1}
        Instance.objects.create(pool=self.pool, name=f"{POOL}-0", ordinal=0, **ready)

    def add_key(self) -> None:
        ApiKey.issue(name=secrets.token_hex(4), created_by="ada")

    # States

    def read_database(self) -> bool:
        """Read the database; return whether what decides requests has changed."""
        pool = Pool.objects.get(name=POOL)
        policy = Policy.objects.get(name=pool.policy)
        before, self.facts = self.facts, Facts.read(policy)
        self.facts.check(policy, before)
        delivery = policy.deliveries.order_by("-pk").select_related("base", "candidate").first()
        self.keys.says(frozenset(str(pk) for pk in ApiKey.objects.filter(revoked_at=None).values_list("pk", flat=True)))
        self.fleets.says(tuple(Instance.objects.order_by("ordinal").values_list("name", "epoch")))
        return self.policies.says(serving(policy.name, policy.live, rollout(delivery, POOL)))

    def read_redis(self) -> None:
        keys = (redis_keys.policy_key(POOL), redis_keys.fleet_key(POOL), redis_keys.API_KEYS)
        raw_policy, raw_fleet, raw_keys = self.client.mget(keys)
        if raw_policy is not None:
            value = codec.read(PolicyValue, raw_policy)
            self.policies.serves(REDIS, serving(value.policy, value.version, value.rollout))
        if raw_fleet is not None:
            fleet = codec.read(FleetValue, raw_fleet)
            self.fleets.serves(REDIS, tuple((each.id, each.epoch) for each in fleet.instances))
        if raw_keys is not None:
            self.keys.serves(REDIS, frozenset(each.id for each in codec.read(ApiKeysValue, raw_keys).keys))

    def read_routers(self) -> None:
        for router in self.routers:
            self.read_router(router)

    def read_router(self, router: ScheduledRouter) -> None:
        pool = router.pools.get(POOL)
        if pool is not None and pool.version:
            self.policies.serves(router.name, _served(pool))
        if pool is not None and pool.fleet_at is not None:
            self.fleets.serves(router.name, tuple((each.id, each.epoch) for each in pool.published))
        keys = router.key_ids()
        if keys is not None:
            self.keys.serves(router.name, keys)

    def look(self) -> None:
        """Record what the latest step of an actor changed."""
        for what, read in (("database", self.read_database), ("Redis", self.read_redis), ("router", self.read_routers)):
            if what in seams.touched:
                read()
        seams.touched.clear()
        self.check_acks()

    def check_acks(self) -> None:
        """Check that a router acknowledges what it serves at that moment."""
        for raw in seams.acknowledged:
            ack = codec.read(PolicyAck, raw)
            router = next(each for each in self.routers if each.name == ack.router)
            pool = router.pools[ack.pool]
            said, does = (ack.version, ack.generation), (pool.version, pool.generation)
            assert said == does, f"{router.name} acknowledges (version, generation) {said} and serves {does}"
        seams.acknowledged.clear()

    def at_rest(self) -> None:
        """Check that everybody serves the current state of the database."""
        seams.touched.update({"database", "Redis", "router"})
        self.look()
        for timeline in (self.policies, self.fleets, self.keys):
            timeline.all_there((REDIS, *(router.name for router in self.routers)))

    # Incidents

    def save_redis(self) -> None:
        """Save Redis to disk."""
        self.saved = {key: self.client.dump(key) for key in self.client.scan_iter()}

    def lose_redis(self) -> None:
        """Restart Redis from its last save, if any; later writes are lost."""
        self.client.flushdb()
        for key, value in self.saved.items():
            self.client.restore(key, 0, value)
        for timeline in (self.policies, self.fleets, self.keys):
            timeline.begins_anew(REDIS)

    def restart(self, router: ScheduledRouter) -> None:
        router.restart()
        for timeline in (self.policies, self.fleets, self.keys):
            timeline.begins_anew(router.name)


def _served(pool: RouterPool) -> Serving:
    split = pool.split.rollout if pool.split is not None else None
    if split is None:
        return Serving(pool.policy_name, pool.version, pool.generation)
    return serving(pool.policy_name, pool.version, split)
