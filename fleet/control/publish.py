"""Publishes the fleet for routers: weir:fleet:<pool>, written on each change, and when Redis has lost it."""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

import redis
from django.utils import timezone

from fleet import selectors
from fleet.kinds import KINDS
from fleet.kinds.kind import Hardware, hardware_of
from fleet.kinds.options.option import build
from fleet.models import Instance, Pool, State
from fleet.plan.desired import DesiredPool
from fleet.plan.drift import difference
from fleet.redis import ordered_write
from fleet.redis.ordered_write import Published
from fleet.snapshot import desired_of_all, observed_of
from fleet.spec.fleet_spec import OBSERVE
from fleet.spec.sections import access_of, autoscale_of, slo_of, wakes_on_demand
from fleet.systems.prices import Prices
from fleet.tries import tries
from router.contract.redis import redis_keys
from router.contract.redis.codec import OrderedValue
from router.contract.redis.published import AS_SGLANG, FleetValue, PublishedInstance, WakeRule

log = logging.getLogger(__name__)


def publish_fleet(pool_name: str) -> bool:
    """Write the pool's changed instances to Redis. Return False if that fails. The value is written even without a
    difference, because an older view may be about to overwrite it.
    """
    try:
        ordered_write.publish(lambda: _as_stored(pool_name))
    except ordered_write.FAILURES as error:
        log.warning("pool %s not published: %s", pool_name, error)
        return False
    return True


def publish_step() -> list[str]:
    """Write every pool that Redis has lost, that differs there, or that routers refuse. Return the pools' names."""
    try:
        refused = ordered_write.refused_by_routers()
    except redis.RedisError as error:
        log.warning("fleet not compared with Redis: %s", error)
        return []
    written = []
    with tries() as attempt:
        for name in Pool.objects.values_list("name", flat=True):
            with attempt(f"publish pool {name}"):
                if ordered_write.differing(_as_stored(name), refused) and publish_fleet(name):
                    written.append(name)
    return written


def _as_stored(pool_name: str) -> Published:
    """Return the values to publish; a removed pool also loses its policy."""
    pool = Pool.objects.filter(name=pool_name).first()
    found: dict[str, OrderedValue | None] = {redis_keys.fleet_key(pool_name): _fleet(pool) if pool else None}
    return found if pool else found | {redis_keys.policy_key(pool_name): None}


def _fleet(pool: Pool) -> FleetValue | None:
    """Return the pool's value without order and time; None if routers do not serve it."""
    if pool.kind in KINDS and not KINDS[pool.kind].serves:
        return None
    found = desired_of_all([pool], timezone.now()) if pool.kind in KINDS else []
    desired = found[0] if found else None  # None if unreadable, so that routing continues without it
    prices = selectors.prices()
    rows = list(pool.instances.prefetch_related("adapters").order_by("ordinal"))
    gpus = selectors.gpus_of_nodes({row.node for row in rows})
    instances = tuple(_instance(pool, desired, row, prices, gpus) for row in rows)
    law, access = selectors.law_of_pool(pool), access_of(pool.access)
    return FleetValue(
        pool=pool.name,
        model=pool.model,
        policy=pool.policy,
        at=0.0,
        halted=pool.halted,
        observed=pool.mode == OBSERVE,
        slo=_slo(pool),
        trusted_keys=access.trusted_keys,
        salt_by_key=access.salt_by_key,
        removes_billing_line=_removes_billing_line(access.billing_line, pool, rows),
        wake=_wake(pool),
        context_cost=law.context_cost if law is not None else 0.0,
        equal_cost_tokens=law.equal_cost_tokens if law is not None else 0.0,
        instances=instances,
    )


# These servers compute the billing line again for each request; vLLM omits it by itself.
_KEEP_BILLING_LINE = frozenset(("sglang", "trtllm", "trtllm-dwdp"))


def _removes_billing_line(choice: str, pool: Pool, rows: Iterable[Instance]) -> bool:
    if choice != "auto":
        return choice == "remove"
    return not _KEEP_BILLING_LINE.isdisjoint({row.facts.server or pool.kind for row in rows})


@dataclass(frozen=True, slots=True)
class HeldGpus:
    """The GPUs held by one instance, whether it serves or not."""

    pool: str
    since: datetime
    gpus: int
    dollars_per_hour: float  # price of the GPUs and of the memory for KV blocks


def held_gpus() -> list[HeldGpus]:
    """Return the GPUs held by each instance that is not stopped, in pools that routers serve."""
    prices = selectors.prices()
    rows = Instance.objects.select_related("pool").exclude(state=State.STOPPED).exclude(pool__mode=OBSERVE)
    found = []
    for row in rows:
        hardware = _hardware(row.pool, row)
        if hardware.gpus:
            dollars = prices.per_hour(hardware.gpus, hardware.dram_gb, hardware.ssd_gb)
            found.append(HeldGpus(row.pool.name, row.started_at or row.since, hardware.gpus, dollars))
    return found


def _wake(pool: Pool) -> WakeRule | None:
    """Return the pool's wake rule; None if its options no longer exist, so that routing continues."""
    try:
        autoscale = autoscale_of(pool.autoscale)
    except LookupError:
        return None
    if pool.removed or not wakes_on_demand(pool.autoscale):
        return None
    return WakeRule(max_held=autoscale.wake_max_held, max_wait_s=autoscale.wake_max_wait_s)


def _slo(pool: Pool) -> dict[str, float]:
    """Return the pool's SLO; empty if its options no longer exist, so that routing continues."""
    try:
        return slo_of(pool.slo, pool.autoscale)
    except LookupError:
        return {}


def _speed(row: Instance, gpus: Mapping[str, str]) -> str:
    """Return the instance's speed group: kind, GPU, parallelism and role. `gpus` has the GPUs by node, for options that
    do not name one."""
    given = row.started_from
    try:
        kind, spec = KINDS[given.kind], given.options()
    except LookupError:
        return ""
    gpu = getattr(spec, "gpu", "") or gpus.get(row.node, "")
    size = getattr(spec, "tp", None) or getattr(spec, "tensor_parallel", None)
    return ", ".join(filter(None, (kind.name, gpu, f"tp {size}" if size else "", row.facts.role)))


def _instance(
    pool: Pool, desired: DesiredPool | None, row: Instance, prices: Prices, gpus: Mapping[str, str]
) -> PublishedInstance:
    hardware = _hardware(pool, row)
    dollars = prices.per_hour(hardware.gpus, hardware.dram_gb, hardware.ssd_gb)
    facts, waiting = row.facts, selectors.waits_for_group(row)
    waiting = waiting or ("it is observed only" if pool.mode == OBSERVE and row.state == State.READY else "")
    return PublishedInstance(
        id=row.name,
        epoch=row.epoch,
        url=row.url,
        state=row.state,
        routable=row.state == State.READY and bool(row.url) and not waiting,
        reason=waiting or row.reason,
        asleep=row.asleep is not None,
        kind=facts.server or pool.kind,
        node=row.node,
        block_size=row.block_size,
        kv_blocks=row.kv_blocks,
        matches=desired is not None and not difference(desired, observed_of(row, None)),
        speed=_speed(row, gpus),
        gpus=hardware.gpus,
        dollars_per_hour=round(dollars, 6) if hardware.gpus else None,
        role=facts.role,
        connector=facts.connector,
        kv=facts.kv,
        events=facts.events,
        tokenizer=_tokenizer(facts.tokenizer, facts.server or pool.kind),
        engine_key=row.engine_key,
        tls=row.tls,
        dp=facts.dp,
        adapters=tuple(sorted(home.name for home in row.adapters.all() if home.epoch == row.epoch and home.held)),
    )


def _tokenizer(named: str, server: str) -> str:
    return f"{AS_SGLANG}{named}" if server == "sglang" and named not in ("", "sim") else named


def _hardware(pool: Pool, row: Instance) -> Hardware:
    """Return the hardware by the current options; empty if kind, option or model is unknown, so that routing
    continues."""
    try:
        kind = KINDS[pool.kind]
        return hardware_of(kind, build(kind.spec, pool.engine), row.facts.role)
    except LookupError:
        return Hardware()
