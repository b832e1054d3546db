"""Converts rows and samples to the values with which fleet/plan works."""

import datetime as dt
import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import redis

from fleet.kinds import KINDS
from fleet.kinds.kind import Kind, is_numbered, whole_replicas
from fleet.kinds.listed import ListedEngine
from fleet.kinds.options.option import build
from fleet.kinds.serving import PREFILL, ordinals_of
from fleet.models import Instance, InstanceSource, Node, Pool
from fleet.plan.desired import DesiredPool, ObservedInstance
from fleet.plan.placement import NodeView
from fleet.plan.scaling import Scale, current_prefills, current_scale
from fleet.redis import values_of
from fleet.spec.fleet_spec import PoolSpec, config_hash
from fleet.spec.sections import autoscale_of, placement_of, schedule_of, update_of
from fleet.spec.versions import VersionStatus, version_statuses
from fleet.tries import Try, log_failure
from router.contract.connectors import PULLED_FROM_PREFILL
from router.contract.redis import redis_keys
from router.contract.redis.sample import InstanceSample
from router.contract.redis.staleness import NODE_GONE_S

IDLE_AFTER_S = 1.0  # a sample this much younger than a drain covers all requests that routers sent before it
POD_S = 600.0  # time to find a machine and pull an image, before an engine loads
log = logging.getLogger(__name__)


def node_views(now: dt.datetime) -> list[NodeView]:
    return [_node_view(node, now - dt.timedelta(seconds=NODE_GONE_S)) for node in Node.objects.order_by("name")]


def _node_view(node: Node, since: dt.datetime) -> NodeView:
    found = node.resources
    return NodeView(
        name=node.name,
        reports=node.last_seen is not None and node.last_seen >= since,
        cordoned=node.cordoned,
        draining=node.draining,
        labels=tuple(sorted(node.labels.items())),
        cpus=found.cpus,
        memory_gib=None if found.memory_bytes is None else found.memory_bytes / 2**30,
        gpus=len(found.gpus or ()),
        trouble=found.trouble or "",
    )


_SPEC = (
    "name", "model", "kind", "replicas", "policy", "node", "engine", "update", "placement", "schedule", "autoscale",
    "slo", "access", "mode",
)  # fmt: skip


def pool_spec(pool: Pool) -> PoolSpec:
    return PoolSpec(**{name: getattr(pool, name) for name in _SPEC})


def scale_of(pool: Pool, now: dt.datetime) -> Scale:
    """Return the current number of instances, with the reason."""
    autoscale = autoscale_of(pool.autoscale) if pool.autoscale else None
    scale = current_scale(pool.replicas, schedule_of(pool.schedule), autoscale, pool.scaled, now)
    kind = KINDS.get(pool.kind)
    if kind is None:
        return scale
    spec = build(kind.spec, pool.engine)
    if kind.has_source(spec):
        return Scale(len(listed_in(pool)), "its source lists them")
    if autoscale is None or autoscale.prefill_max is None:
        return _allowed(scale, kind, spec)
    prefills = partial(current_prefills, spec.prefill_instances, autoscale, pool.scaled_prefills)
    scale = _allowed(scale, kind, spec, prefills(scale.replicas) - spec.prefill_instances)
    return replace(scale, prefills=prefills(scale.replicas))


def _allowed(scale: Scale, kind: Kind, spec: Any, more_prefills: int = 0) -> Scale:
    """Limit the scale to what the engine's options allow. `more_prefills` is the number of prefill replicas beyond
    the declared ones."""
    most = kind.max_replicas(spec)
    if most is not None and scale.replicas > most + more_prefills:
        return Scale(most + more_prefills, "its engine options allow no more")
    whole, _ = whole_replicas(kind, spec, scale.replicas)
    return scale if whole == scale.replicas else Scale(whole, "more would split a group, which serves only whole")


def listed_in(pool: Pool) -> dict[str, ListedEngine]:
    """Return the engines that the pool's source lists, by key; empty before the source's first answer."""
    source = InstanceSource.objects.filter(pool=pool).first()
    return source.listed if source is not None else {}


def desired_of_all(pools: Iterable[Pool], now: dt.datetime, attempt: Try = log_failure) -> list[DesiredPool]:
    """Return the desired pools; all kinds must be known. `attempt` guards each pool, so that a pool that this
    release cannot read, as after a downgrade, is merely left out."""
    readable: dict[str, Pool] = {}
    hashes: dict[str, str] = {}
    for pool in pools:
        with attempt(f"pool {pool.name}"):
            hashes[pool.name] = config_hash(pool_spec(pool))
            readable[pool.name] = pool
    status = version_statuses(readable.values(), hashes)
    found = []
    for name, pool in readable.items():
        with attempt(f"pool {name}"):
            found.append(_desired_of(pool, now, hashes[name], status.get(name, VersionStatus())))
    return found


def _desired_of(pool: Pool, now: dt.datetime, digest: str, status: VersionStatus) -> DesiredPool:
    kind, scale = KINDS[pool.kind], scale_of(pool, now)
    options = build(kind.spec, pool.engine)
    return DesiredPool(
        name=pool.name,
        replicas=scale.replicas,
        because=scale.because,
        config_hash=digest,
        load_timeout_s=kind.load_timeout_s,
        drain_timeout_s=kind.drain_timeout_s,
        removed=pool.removed,
        placement=placement_of(pool.placement, pool.node),
        update=update_of(pool.update),
        stable_hash=status.stable_hash,
        proven=status.proven,
        halted=pool.halted,
        launched=kind.launched,
        ordinals=_ordinals(kind, options, scale),
        needs=kind.needs(options),
        listed=tuple(listed_in(pool)) if kind.has_source(options) else None,
        groups={at: group for at in range(scale.replicas) if (group := kind.group(options, at))},
    )


def _ordinals(kind: Kind, options: Any, scale: Scale) -> frozenset[int] | None:
    if scale.prefills is not None:
        return ordinals_of(options.prefill_instances, scale.prefills, scale.replicas)
    return frozenset(range(scale.replicas)) if is_numbered(kind, options) else None


def samples_of(rows: Iterable[Instance]) -> dict[str, InstanceSample]:
    """Return the latest samples by name; empty without Redis."""
    try:
        return values_of(InstanceSample, redis_keys.instance_key, [row.name for row in rows])
    except redis.RedisError as error:
        log.warning("no samples: %s", error)
        return {}


def observed_of(row: Instance, sample: InstanceSample | None) -> ObservedInstance:
    return ObservedInstance(
        name=row.name,
        pool=row.pool.name,
        ordinal=row.ordinal,
        state=row.state,
        desired=row.desired,
        reason=row.reason,
        since=row.since.timestamp(),
        config_hash=row.config_hash,
        restart_asked=row.restart_asked,
        idle=_is_idle(row, sample),
        next_start_at=row.next_start_at.timestamp() if row.next_start_at else None,
        stop_deadline=row.stop_deadline.timestamp() if row.stop_deadline else None,
        node=row.node,
        gpus=tuple(row.gpus),
        retired=row.retired,
        load=_load(row, sample),
        failures=row.failures,
        was_ready=row.ready_at is not None,
        asleep=row.asleep,
        ordered_at=row.ordered_at.timestamp() if row.ordered_at else None,
        allowance_s=POD_S if row.pod else 0.0,
        listed=row.listed.get("key", ""),
    )


def _load(row: Instance, sample: InstanceSample | None) -> int:
    if sample is None or sample.epoch != row.epoch:
        return 0
    return int((sample.running or 0) + (sample.waiting or 0))


def _is_idle(row: Instance, sample: InstanceSample | None) -> bool:
    if sample is None or sample.epoch != row.epoch or sample.at < row.since.timestamp() + IDLE_AFTER_S:
        return False
    return bool(sample.running == 0 and sample.waiting == 0) and not _holds_kv(row, sample)


def _holds_kv(row: Instance, sample: InstanceSample) -> bool:
    """Return whether a prefill instance holds KV of an answered prompt that its decoder has not pulled yet. The engine
    itself may use one block.
    """
    facts = row.facts
    if facts.role != PREFILL or facts.connector not in PULLED_FROM_PREFILL:
        return False
    return (sample.kv_usage or 0.0) * (row.kv_blocks or 0) > 1.5
