"""Policies in Redis: publishes them, reports the routers that run them, and republishes missing ones. The database is
authoritative; routers learn of its content through Redis.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog
from django.db.models import F, Q

from controlplane.traffic.deliveries.models import Delivery
from controlplane.traffic.deliveries.rollout import rollout
from controlplane.traffic.policies import acknowledged, selectors
from controlplane.traffic.policies.acknowledged import Acknowledgement, RouterVersion
from controlplane.traffic.policies.drafts.editor import strategy_of
from controlplane.traffic.policies.models import Draft, Policy, PolicyVersion
from controlplane.traffic.policies.selectors import Scope
from fleet.models import Pool
from fleet.redis import connect, drop_unless, live_routers, ordered_write, values_of
from fleet.redis.ordered_write import Published
from fleet.tries import tries
from router.contract.pools import is_ephemeral
from router.contract.redis import redis_keys
from router.contract.redis.codec import OrderedValue
from router.contract.redis.published import PolicyValue
from router.contract.redis.router_status import RouterStatus
from router.policy.strategies import STRATEGIES, Strategy

log = structlog.get_logger(__name__)

STRAYS = "pools that are no longer declared"


def publish(policy: Policy) -> None:
    """Write the value that the policy's pools, including observed ones, must serve now: the live version, with the
    split of its open delivery."""
    ordered_write.publish(lambda: as_stored(pool.name for pool in selectors.declared_pools(policy)))


def tell(policy: Policy) -> bool:
    """Publish; return False if Redis could not be written, in which case republish_missing writes it later."""
    try:
        publish(policy)
    except ordered_write.FAILURES as error:
        log.warning("policy.stored_only", policy=policy.name, error=str(error))
        return False
    return True


def publish_ephemeral(value: PolicyValue) -> None:
    """Publish for an experiment's pool, unless the experiment has removed the pool in the meantime."""
    key = redis_keys.policy_key(value.pool)
    ordered_write.publish(lambda: {key: value if _lasts(value.pool) else None})


def remove_ephemeral(pool: str) -> None:
    """Remove the policy of a pool that its experiment has removed."""
    ordered_write.publish(lambda: {} if _lasts(pool) else {redis_keys.policy_key(pool): None})


def _lasts(pool: str) -> bool:
    return Pool.objects.exclude(ephemeral_owner="").filter(name=pool, removed=False).exists()


def as_stored(pools: Iterable[str]) -> Published:
    """Return the pools' policies from the database, except those of experiments' pools and those without a version. A
    pool that is no longer declared also loses its fleet.
    """
    names = set(pools)
    rows = Pool.objects.filter(name__in=names).values_list("name", "policy", "ephemeral_owner")
    declared = {name: (policy, owner) for name, policy, owner in rows}
    values: dict[str, OrderedValue | None] = {}
    for undeclared in names - declared.keys():
        values |= {redis_keys.policy_key(undeclared): None, redis_keys.fleet_key(undeclared): None}
    live = {policy: _live(policy) for policy, owner in declared.values() if not owner}
    for pool, (policy, owner) in declared.items():
        if not owner and (version_and_delivery := live[policy]) is not None:
            values[redis_keys.policy_key(pool)] = _value(pool, *version_and_delivery)
    return values


def _live(policy: str) -> tuple[PolicyVersion, Delivery | None] | None:
    """Return the live version and the policy's latest delivery from the same moment: the delivery's row is read with
    its policy's.
    Generations grow over all deliveries of a policy, so a closed delivery still has the generation in effect.
    """
    deliveries = Delivery.objects.select_related("policy", "base", "candidate").filter(policy__name=policy)
    delivery = deliveries.order_by("-pk").first()
    live = Q(number=F("policy__live") if delivery is None else delivery.policy.live)
    version = PolicyVersion.objects.select_related("policy").filter(live, policy__name=policy).first()
    return (version, delivery) if version is not None else None


def _value(pool: str, version: PolicyVersion, delivery: Delivery | None) -> PolicyValue:
    return PolicyValue(
        pool=pool,
        policy=version.policy.name,
        version=version.number,
        sha256=version.sha256,
        document=version.document,
        rollout=rollout(delivery, pool),
    )


def served_pools() -> set[str]:
    """Return the pools that routers serve, as listed in Redis."""
    names: Any = connect().smembers(redis_keys.POOLS)
    return {name.decode() for name in names}


def published(pools: list[str]) -> dict[str, PolicyValue]:
    """Return the readable policies in Redis, by pool."""
    return values_of(PolicyValue, redis_keys.policy_key, pools)


def acknowledgement(policy_name: str, number: int, pools: Iterable[str]) -> Acknowledgement:
    """Return the live routers, and whether each runs version `number` of the policy in each of `pools`."""
    return acknowledged.acknowledgement(number, partial(_router_versions, policy_name, list(pools)))


@dataclass(frozen=True, slots=True)
class PolicyState:
    """A policy in lists."""

    policy: Policy
    live: PolicyVersion
    draft: Draft | None
    scope: Scope
    ack: Acknowledgement  # acknowledgement of the live version

    @property
    def strategy(self) -> Strategy:
        return STRATEGIES[strategy_of(self.live.upgraded)]


def state_of(policy: Policy) -> PolicyState:
    live, scope = selectors.live_version(policy), selectors.scope_of(policy)
    return PolicyState(
        policy, live, selectors.open_draft(policy), scope, acknowledgement(policy.name, live.number, scope.pools)
    )


def _router_versions(policy_name: str, pools: list[str]) -> list[RouterVersion]:
    names = live_routers() if pools else []
    statuses = values_of(RouterStatus, redis_keys.router_key, names)
    rows = []
    for name in names:
        for pool in pools:
            served = statuses[name].pools.get(pool) if name in statuses else None
            runs = served.version if served is not None and served.policy == policy_name else None
            rows.append(RouterVersion(name, pool, runs))
    return rows


def behind_generation(policy_name: str, generation: int, pools: Iterable[str]) -> list[str]:
    """Return live routers that have not acknowledged this generation of the rollout in each of `pools`, with both
    versions."""
    names = live_routers()
    statuses = values_of(RouterStatus, redis_keys.router_key, names)
    wanted = list(pools)
    return [name for name in names if not all(_split(statuses.get(name), policy_name, generation, p) for p in wanted)]


def _split(status: RouterStatus | None, policy_name: str, generation: int, pool: str) -> bool:
    served = status.pools.get(pool) if status is not None else None
    if served is None or (served.policy, served.generation) != (policy_name, generation):
        return False
    return served.split in ("on", "off")


def republish_missing() -> list[str]:
    """Bring Redis in line with the database after a crash or a loss of Redis, and return the changed pools. Each policy
    is processed separately: one that cannot be read or written does not affect the others. RowsFailed names it.
    """
    drop_unless("set", redis_keys.POOLS)
    by_policy = _pools_by_policy()
    refused = ordered_write.refused_by_routers()
    expected: dict[str, OrderedValue | None] = {}
    changed: list[str] = []
    with tries() as attempt:
        for name, pools in by_policy.items():
            with attempt(name):
                expected |= as_stored(pools)
        wrong = {*ordered_write.differing(expected, refused), *(key for key in expected if _is_stray(key, by_policy))}
        for name, pools in by_policy.items():
            if to_write := pools.intersection(map(redis_keys.pool_of, wrong)):
                with attempt(name):
                    ordered_write.publish(partial(as_stored, to_write))
                    changed += to_write
    if changed:
        log.info("policy.republished", pools=sorted(changed))
    return sorted(changed)


def _pools_by_policy() -> dict[str, set[str]]:
    """Return declared pools by policy, and pools that are only listed in Redis."""
    declared: dict[str, set[str]] = {}
    for policy, pool in Pool.objects.filter(ephemeral_owner="").values_list("policy", "name"):
        declared.setdefault(f"policy {policy}", set()).add(pool)
    listed = {pool for pool in served_pools() if not is_ephemeral(pool)}
    return declared | {STRAYS: listed.difference(*declared.values())}


def _is_stray(key: str, by_policy: Mapping[str, set[str]]) -> bool:
    return redis_keys.pool_of(key) in by_policy[STRAYS]
