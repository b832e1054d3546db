"""The reconciler's step: reads desired and observed state, plans, claims each action by a conditional UPDATE, and sends
orders. The control worker calls `reconcile_step` every second; tests call it directly. `send` transmits orders to the
nodes.
"""

import datetime as dt
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from django.db import IntegrityError, transaction
from msgspec import to_builtins

from fleet import events
from fleet.control.node_agent import in_seconds
from fleet.control.publish import publish_fleet
from fleet.control.rollback import RollBack, halt_pool, rollback_failed
from fleet.events import move
from fleet.kinds import KINDS
from fleet.kinds.engine_config import EngineConfig
from fleet.models import NO_PROCESS, Instance, InstanceEvent, Pool, State
from fleet.plan.desired import AT_REST, Action, DesiredPool
from fleet.plan.failure import failure_fields
from fleet.plan.reconcile import KILL_AGAIN_S, plan
from fleet.snapshot import desired_of_all, listed_in, node_views, observed_of, pool_spec, samples_of
from fleet.spec.fleet_spec import config, config_hash
from fleet.spec.versions import config_of, prove
from fleet.tries import tries

EPHEMERAL_S = 24 * 3600.0
EVENTS_KEPT = dt.timedelta(days=30)

Send = Callable[[str, str, str, int], None]  # (order, node, instance, epoch); orders: fleet/tasks.py


def reconcile_step(now: dt.datetime, send: Send, roll_back: RollBack) -> tuple[Action, ...]:
    """Take one step and return the executed actions. `roll_back` rolls back a pool whose change failed, if the rules
    allow it."""
    pools = {pool.name: pool for pool in Pool.objects.filter(kind__in=KINDS)}
    rows = {row.name: row for row in Instance.objects.select_related("pool")}
    done = []
    with tries() as attempt:
        desired = desired_of_all(pools.values(), now, attempt)
        samples = samples_of(_need_samples(rows.values(), desired))
        observed = [observed_of(row, samples.get(row.name)) for row in rows.values()]
        for action in plan(desired, observed, now.timestamp(), node_views(now)):
            with attempt(f"{action.kind} {action.instance or action.pool}"):
                row = rows.get(action.instance)
                if _APPLY[action.kind](_ActionStep(action, pools[action.pool], row, now, send, roll_back)):
                    done.append(action)
        for name in sorted({action.pool for action in done if action.kind != "delete_pool"}):
            with attempt(f"publish pool {name}"):
                publish_fleet(name)
    return tuple(done)


def _need_samples(rows: Iterable[Instance], desired: Iterable[DesiredPool]) -> list[Instance]:
    """Return the rows whose samples the plan needs: draining instances, and all instances of a pool from which some
    must be removed."""
    there = [row for row in rows if row.state not in AT_REST]
    staying = Counter(row.pool.name for row in there if not row.retired)
    choosing = {pool.name for pool in desired if staying[pool.name] > pool.replicas or not pool.proven}
    return [row for row in there if row.state == State.DRAINING or row.pool.name in choosing]


@dataclass(frozen=True, slots=True)
class _ActionStep:
    """One action with its rows."""

    action: Action
    pool: Pool
    row: Instance | None
    now: dt.datetime
    send: Send
    roll_back: RollBack

    @property
    def instance(self) -> Instance:
        assert self.row is not None  # noqa: S101 - only `create` and pool actions have no row
        return self.row


def _create(order: _ActionStep) -> bool:
    name = order.action.instance
    latest = InstanceEvent.objects.filter(instance=name).order_by("-epoch").first()
    try:
        with transaction.atomic():
            row = Instance.objects.create(
                pool=order.pool,
                name=name,
                ordinal=order.action.ordinal,
                node="",
                reason=order.action.reason,
                # The epochs of a name continue, so that routers can distinguish the new process from the old one.
                epoch=latest.epoch if latest else 0,
                listed=_listing(order),
            )
    except IntegrityError:
        return False
    events.record(row, "created", order.action.reason)
    return True


def _listing(order: _ActionStep) -> dict[str, object]:
    found = listed_in(order.pool).get(order.action.listed) if order.action.listed else None
    return to_builtins(found) if found is not None else {}


def _start(order: _ActionStep) -> bool:
    row, epoch = order.instance, order.instance.epoch + 1
    config = _config(order.pool, row, order.action.config_hash)
    if config is None:
        return False  # the pool has changed since the plan was made
    claimed = move(
        row,
        State.STARTING,
        order.action.reason,
        epoch=epoch,
        restarts=row.restarts + (row.started_at is not None),
        node=order.action.node,
        gpus=list(order.action.gpus),
        config=to_builtins(config),
        config_hash=order.action.config_hash,
        ready_at=None,
        asleep=None,
        ordered_at=None,
        url="",
        wire={},
        restart_asked="",
        next_start_at=None,
        **NO_PROCESS,
    )
    if claimed:
        order.send("start", row.node, row.name, epoch)
    return claimed


def _config(pool: Pool, row: Instance, digest: str) -> EngineConfig | None:
    spec = pool_spec(pool)
    if digest == config_hash(spec):
        return config(spec)
    return row.started_from if row.config and digest == row.config_hash else config_of(pool, digest)


def _stop(order: _ActionStep) -> bool:
    row = order.instance
    deadline = in_seconds(order.now, KINDS[order.pool.kind].grace_s)
    stopped = move(row, State.STOPPING, order.action.reason, stop_deadline=deadline, next_start_at=None)
    if stopped:
        order.send("stop", row.node, row.name, row.epoch)
    return stopped


def _kill(order: _ActionStep) -> bool:
    row, deadline = order.instance, in_seconds(order.now, KILL_AGAIN_S)
    if row.state == State.STOPPING:
        again = Instance.objects.filter(pk=row.pk, state=row.state, stop_deadline=row.stop_deadline)
        claimed = bool(again.update(stop_deadline=deadline))
    else:
        after = failure_fields(row, order.now) if order.action.failure else {"next_start_at": None}
        claimed = move(row, State.STOPPING, order.action.reason, stop_deadline=deadline, **after)
    if claimed:
        order.send("kill", row.node, row.name, row.epoch)
    return claimed


def _rest(order: _ActionStep) -> bool:
    after = {"next_start_at": None, "failures": 0, "asleep": None, **NO_PROCESS}
    return move(order.instance, State.STOPPED, order.action.reason, **after)


def _send_order(order: _ActionStep, verb: str) -> bool:
    row = order.instance
    same = Instance.objects.filter(pk=row.pk, epoch=row.epoch, state=row.state, ordered_at=row.ordered_at)
    if not same.update(ordered_at=order.now):
        return False
    events.record(row, verb, order.action.reason)
    order.send(verb, row.node, row.name, row.epoch)
    return True


def _retire(order: _ActionStep) -> bool:
    row, reason = order.instance, order.action.reason[:300]
    retired = bool(Instance.objects.filter(pk=row.pk, retired="").update(retired=reason))
    if retired:
        events.record(row, "retire", reason)
    return retired


def _keep(order: _ActionStep) -> bool:
    row = order.instance
    kept = bool(Instance.objects.filter(pk=row.pk, state=row.state, retired=row.retired).update(retired=""))
    if kept:
        events.record(row, "keep", order.action.reason)
    return kept


def _complete(order: _ActionStep) -> bool:
    version = prove(order.pool, order.now)
    if version is None:
        return False
    lasted = (order.now - version.at).total_seconds()
    text = f"rollout of v{version.number} complete: {order.action.reason}"
    events.record_pool(order.pool, "complete", text, seconds=max(0.0, lasted), version=version.number)
    return True


def _delete(order: _ActionStep) -> bool:
    row = order.instance
    deleted, _ = Instance.objects.filter(pk=row.pk, state=row.state, epoch=row.epoch).delete()
    if deleted:
        events.record(row, "deleted", order.action.reason)
    return bool(deleted)


def _delete_pool(order: _ActionStep) -> bool:
    with transaction.atomic():
        gone = Pool.objects.filter(pk=order.pool.pk, removed=True, instances=None)
        deleted = bool(gone.delete()[0])
    if deleted:
        publish_fleet(order.pool.name)
    return deleted


_APPLY: dict[str, Callable[[_ActionStep], bool]] = {
    "create": _create,
    "start": _start,
    # Orders to sleep or wake begin only in DRAINING; an earlier one is void.
    "drain": lambda order: move(order.instance, State.DRAINING, order.action.reason, ordered_at=None),
    "undrain": lambda order: move(order.instance, State.READY, order.action.reason, ordered_at=None),
    "stop": _stop,
    "kill": _kill,
    "rest": _rest,
    "delete": _delete,
    "delete_pool": _delete_pool,
    "retire": _retire,
    "keep": _keep,
    "complete": _complete,
    "halt": lambda order: halt_pool(order.pool, order.action.reason, order.now),
    "rollback": lambda order: rollback_failed(order.pool, order.action.reason, order.now, order.roll_back),
    "sleep": lambda order: _send_order(order, "sleep"),
    "wake": lambda order: _send_order(order, "wake"),
}


def expire_step(now: dt.datetime) -> int:
    """Remove leftover ephemeral pools and old events."""
    InstanceEvent.objects.filter(at__lt=now - EVENTS_KEPT).delete()
    old = Pool.objects.exclude(ephemeral_owner="").filter(created_at__lt=in_seconds(now, -EPHEMERAL_S), removed=False)
    return old.update(removed=True)
