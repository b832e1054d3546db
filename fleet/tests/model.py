"""A model of nodes and engines that carries out plans, for properties of whole fleets."""

import dataclasses
from collections.abc import Iterable

from fleet.plan.desired import Action, DesiredPool, ObservedInstance
from fleet.plan.placement import NodeView
from fleet.plan.reconcile import plan

NOW = 10_000.0
MARS = NodeView("mars")
POOL = DesiredPool("p", 1, "new", load_timeout_s=30, drain_timeout_s=60)
READY = ObservedInstance(
    name="p-0",
    pool="p",
    ordinal=0,
    state="ready",
    desired="running",
    reason="answers",
    since=NOW,
    config_hash="new",
    restart_asked="",
    idle=False,
    next_start_at=None,
    stop_deadline=None,
    node="mars",
    was_ready=True,
)


def an_instance(**changes: object) -> ObservedInstance:
    return dataclasses.replace(READY, **changes)  # type: ignore[arg-type]


def a_pool(**changes: object) -> DesiredPool:
    return dataclasses.replace(POOL, **changes)  # type: ignore[arg-type]


def pool_of(count: int, **changes: object) -> list[ObservedInstance]:
    return [an_instance(name=f"p-{n}", ordinal=n, **changes) for n in range(count)]


class Model:
    """The model. `broken`: configurations that never become ready."""

    def __init__(
        self,
        pool: DesiredPool,
        instances: Iterable[ObservedInstance],
        nodes: Iterable[NodeView] = (MARS,),
        broken: frozenset[str] = frozenset(),
    ) -> None:
        self.now = NOW
        self.pool = pool
        self.broken = broken
        self.nodes = {node.name: node for node in nodes}
        self.rows = {one.name: one for one in instances}
        self.processes = {n: 1 for n, one in self.rows.items() if one.state not in {"stopped", "failed", "starting"}}
        self.busy = {n: 3 for n, one in self.rows.items() if one.state in {"ready", "draining"}}  # steps until idle
        self.drained = {n for n, one in self.rows.items() if one.state == "draining"}
        self.sleeping: dict[str, bool] = {}  # whether the latest order put the engine to sleep, by name
        self.orders: dict[str, tuple[str, float]] = {}  # orders in progress, with the time of each
        self.ordered = 0  # number of orders
        self.pool_deleted = False
        self.starts = 0

    def step(self) -> tuple[Action, ...]:
        pools = [] if self.pool_deleted else [self.pool]
        actions = plan(pools, self.rows.values(), self.now, self.nodes.values())
        for action in actions:
            getattr(self, action.kind)(action)
        self.nature()
        self.now += 1
        return actions

    def ready(self) -> int:
        return sum(row.state == "ready" for row in self.rows.values())

    def put(self, name: str, **changes: object) -> None:
        since = {"since": self.now} if "state" in changes else {}
        self.rows[name] = dataclasses.replace(self.rows[name], **since, **changes)  # type: ignore[arg-type]

    def put_pool(self, **changes: object) -> None:
        self.pool = dataclasses.replace(self.pool, **changes)  # type: ignore[arg-type]

    # What each action of a plan does

    def create(self, action: Action) -> None:
        assert action.instance not in self.rows
        fresh = {"state": "stopped", "since": self.now, "config_hash": "", "node": "", "was_ready": False}
        self.rows[action.instance] = an_instance(name=action.instance, ordinal=action.ordinal, **fresh)

    def start(self, action: Action) -> None:
        row = self.rows[action.instance]
        assert self.processes.get(action.instance, 0) == 0 or row.node in self.lost(), "two processes for one instance"
        assert action.config_hash, "nothing to start it with"
        self.starts += 1
        self.processes[action.instance] = 0
        self.put(action.instance, state="starting", restart_asked="", next_start_at=None, asleep=None, ordered_at=None)
        self.put(action.instance, config_hash=action.config_hash, was_ready=False, node=action.node, gpus=action.gpus)

    def lost(self) -> set[str]:
        return {name for name, node in self.nodes.items() if not node.reports}

    def drain(self, action: Action) -> None:
        self.drained.add(action.instance)
        self.put(action.instance, state="draining", idle=False)

    def undrain(self, action: Action) -> None:
        assert not self.sleeping.get(action.instance)
        assert action.instance not in self.begun()
        self.drained.discard(action.instance)
        self.put(action.instance, state="ready", ordered_at=None)

    def stop(self, action: Action) -> None:
        assert self.rows[action.instance].state == "loading" or action.instance in self.drained, "stopped undrained"
        self.put(action.instance, state="stopping", stop_deadline=self.now + 5, next_start_at=None)

    def kill(self, action: Action) -> None:
        after = self.now + 10 if action.failure else None
        self.put(action.instance, state="stopping", stop_deadline=self.now + 5, next_start_at=after)

    def rest(self, action: Action) -> None:
        row = self.rows[action.instance]
        assert self.processes.get(action.instance, 0) == 0 or row.node in self.lost()
        self.processes[action.instance] = 0
        self.put(action.instance, state="stopped", next_start_at=None, reason=action.reason, asleep=None)

    def delete(self, action: Action) -> None:
        assert self.processes.get(action.instance, 0) == 0
        del self.rows[action.instance]

    def delete_pool(self, action: Action) -> None:
        assert not self.rows
        self.pool_deleted = True

    def retire(self, action: Action) -> None:
        self.put(action.instance, retired=action.reason)

    def keep(self, action: Action) -> None:
        self.put(action.instance, retired="")

    def complete(self, action: Action) -> None:
        self.put_pool(proven=True)

    def halt(self, action: Action) -> None:
        self.put_pool(halted=action.reason)

    def rollback(self, action: Action) -> None:
        self.put_pool(config_hash=self.pool.stable_hash, proven=True, stable_hash="", halted="")

    def sleep(self, action: Action) -> None:
        assert self.rows[action.instance].idle
        self.order(action)

    def wake(self, action: Action) -> None:
        self.order(action)

    def order(self, action: Action) -> None:
        assert action.instance not in self.begun(), "two orders at once"
        self.orders[action.instance] = action.kind, self.now
        self.ordered += 1
        self.put(action.instance, ordered_at=self.now)

    def begun(self) -> set[str]:
        return {name for name, (kind, _) in self.orders.items() if kind == "wake" or self.rows[name].asleep is not None}

    def obeyed(self, name: str) -> None:
        """Start an order to sleep 2 s after it was given, if it still applies, and finish each order after 5 s. Every
        third order is never reported.
        """
        kind, at = self.orders.get(name, ("", self.now))
        if name not in self.begun() and self.now >= at + 2:
            if self.rows[name].desired == "asleep" and self.rows[name].ordered_at is not None:
                self.put(name, asleep=1)
            else:
                del self.orders[name]
        if name not in self.begun() or self.now < at + 5:
            return
        del self.orders[name]
        self.sleeping[name] = kind == "sleep"
        if self.ordered % 3:
            self.put(name, asleep=1 if kind == "sleep" else None, ordered_at=None)

    # Events that follow no action

    def nature(self) -> None:
        """Let nodes launch instances, engines load and finish requests, and processes end."""
        for name, row in list(self.rows.items()):
            if row.node not in self.lost():
                _NATURE.get(row.state, lambda model, name: None)(self, name)

    def launched(self, name: str) -> None:
        self.processes[name] = 1
        self.put(name, state="loading")

    def loaded(self, name: str) -> None:
        row = self.rows[name]
        if row.config_hash in self.broken:
            self.processes[name] = 0
            self.put(name, state="failed", failures=row.failures + 1, next_start_at=self.now + 10)
            return
        out = row.desired in ("drained", "asleep")
        self.put(name, state="draining" if out else "ready", was_ready=True)
        self.busy[name] = 3
        if out:
            self.drained.add(name)

    def worked(self, name: str) -> None:
        self.obeyed(name)
        self.busy[name] = max(0, self.busy.get(name, 0) - 1)
        self.put(name, idle=self.busy[name] == 0)

    def ended(self, name: str) -> None:
        self.processes[name] = 0
        self.sleeping.pop(name, None)
        self.orders.pop(name, None)
        self.drained.discard(name)
        failed = self.rows[name].next_start_at is not None
        self.put(name, state="failed" if failed else "stopped", asleep=None, stop_deadline=None)


_NATURE = {"starting": Model.launched, "loading": Model.loaded, "draining": Model.worked, "stopping": Model.ended}
