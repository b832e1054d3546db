"""The plan, by hand for each state and by properties over whole fleets."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.drift import differences
from fleet.reconcile import CLAIM_S, Action, DesiredPool, ObservedInstance, goal, outdated, plan, rolling_limit
from fleet.state import REPLACE_AFTER_S

NOW = 10_000.0
POOL = DesiredPool("p", 1, "new", "mars", node_seen=True, load_timeout_s=30, drain_timeout_s=60)
READY = ObservedInstance(
    name="p-0",
    pool="p",
    ordinal=0,
    state="ready",
    wish="running",
    reason="answers",
    since=NOW,
    config_hash="new",
    restart_asked="",
    idle=False,
    next_start_at=None,
    stop_deadline=None,
)


def seen(**changes: object) -> ObservedInstance:
    return dataclasses.replace(READY, **changes)  # type: ignore[arg-type]


def want(**changes: object) -> DesiredPool:
    return dataclasses.replace(POOL, **changes)  # type: ignore[arg-type]


NO_WORKER = "node mars has no worker; it is started once there is one"
GONE, STOP, OLD = {"replicas": 0}, {"wish": "stopped"}, {"config_hash": "old"}


@pytest.mark.parametrize(
    ("pool", "instance", "action", "words"),
    [
        # at rest
        ({}, {"state": "stopped"}, "start", "should run"),
        ({}, {"state": "failed", "next_start_at": NOW + 1}, "", ""),
        ({}, {"state": "failed", "next_start_at": NOW}, "start", "should run"),
        ({"node_seen": False}, {"state": "stopped"}, "rest", "node mars has no worker"),
        ({"node_seen": False}, {"state": "stopped", "reason": NO_WORKER}, "", ""),
        ({"node_seen": False}, {"state": "failed"}, "", ""),
        ({}, {"state": "stopped", "restart_asked": "ada: leak"}, "start", "ada: leak"),
        ({}, {"state": "stopped", **STOP}, "", ""),
        ({}, {"state": "failed", **STOP}, "rest", "stopped on request"),
        (GONE, {"state": "failed"}, "delete", "scaled down to 0"),
        ({"removed": True}, {"state": "stopped"}, "delete", "the pool is removed"),
        ({}, {"state": "stopped", "wish": "drained"}, "start", "should run"),
        # given to the node
        ({}, {"state": "starting"}, "", ""),
        (GONE, {"state": "starting"}, "", ""),
        ({}, {"state": "starting", "since": NOW - CLAIM_S}, "start", "not taken up"),
        ({"node_seen": False}, {"state": "starting", "since": NOW - CLAIM_S}, "", ""),
        (GONE, {"state": "starting", "since": NOW - CLAIM_S}, "rest", "scaled down"),
        # loading
        ({}, {"state": "loading"}, "", ""),
        ({}, {"state": "loading", "since": NOW - 30}, "kill", "not ready within 30 s"),
        ({}, {"state": "loading", **OLD}, "stop", "configuration"),
        ({}, {"state": "loading", **STOP}, "stop", "on request"),
        # ready
        ({}, {}, "", ""),
        ({}, {"wish": "drained"}, "drain", "drained on request"),
        ({}, OLD, "drain", "configuration has changed"),
        ({}, STOP, "drain", "stopped on request"),
        (GONE, {}, "drain", "scaled down to 0"),
        ({}, {"restart_asked": "ada: leak"}, "drain", "ada: leak"),
        # draining
        ({}, {"state": "draining", "wish": "drained"}, "", ""),
        ({}, {"state": "draining"}, "undrain", "takes requests again"),
        (GONE, {"state": "draining"}, "", ""),
        (GONE, {"state": "draining", "idle": True}, "stop", "scaled down"),
        (GONE, {"state": "draining", "since": NOW - 60}, "stop", "the rest is cut off"),
        ({}, {"state": "draining", "wish": "drained", "idle": True, **OLD}, "stop", "configuration"),
        # unreachable
        ({}, {"state": "unreachable"}, "", ""),
        ({}, {"state": "unreachable", "since": NOW - REPLACE_AFTER_S, "reason": "silent"}, "kill", "silent"),
        (GONE, {"state": "unreachable"}, "", ""),
        (GONE, {"state": "unreachable", "since": NOW - REPLACE_AFTER_S}, "kill", "scaled down"),
        # stopping
        ({}, {"state": "stopping"}, "", ""),
        ({}, {"state": "stopping", "stop_deadline": NOW + 1}, "", ""),
        ({}, {"state": "stopping", "stop_deadline": NOW}, "kill", ""),
    ],
)
def test_each_state_has_its_next_step(pool: dict, instance: dict, action: str, words: str) -> None:
    actions = plan([want(**pool)], [seen(**instance)], NOW)
    assert [one.kind for one in actions] == ([action] if action else [])
    assert all(words in one.reason for one in actions)


@pytest.mark.parametrize(
    ("instance", "failure"),
    [
        ({"state": "loading", "since": NOW - 30}, True),
        ({"state": "unreachable", "since": NOW - 10}, True),
        ({"state": "unreachable", "since": NOW - 10, **STOP}, False),
        ({"state": "stopping", "stop_deadline": NOW}, False),
    ],
)
def test_only_what_failed_counts_as_a_failure(instance: dict, failure: bool) -> None:
    (action,) = plan([POOL], [seen(**instance)], NOW)
    assert (action.kind, action.failure) == ("kill", failure)


def test_missing_instances_are_created_and_a_removed_pool_gets_none() -> None:
    made = plan([want(replicas=3)], [seen(name="p-1", ordinal=1)], NOW)
    assert [(one.kind, one.instance, one.ordinal) for one in made] == [("create", "p-0", 0), ("create", "p-2", 2)]
    assert [one.kind for one in plan([want(replicas=3, removed=True)], [], NOW)] == ["delete_pool"]


def test_instances_of_a_pool_that_is_not_named_are_left_alone() -> None:
    assert plan([], [READY], NOW) == ()


def pool_of(count: int, **changes: object) -> list[ObservedInstance]:
    return [seen(name=f"p-{n}", ordinal=n, **changes) for n in range(count)]


def test_a_changed_configuration_goes_through_the_pool_a_quarter_at_a_time() -> None:
    first = plan([want(replicas=8)], pool_of(8, config_hash="old"), NOW)
    assert [(one.kind, one.instance) for one in first] == [("drain", "p-0"), ("drain", "p-1")]
    two_out = pool_of(8, config_hash="old")
    two_out[:2] = [dataclasses.replace(one, state="draining") for one in two_out[:2]]
    assert plan([want(replicas=8)], two_out, NOW) == ()


def test_a_rollout_halts_while_the_new_configuration_fails() -> None:
    fleet = pool_of(4, config_hash="old")
    fleet[0] = seen(state="failed", next_start_at=NOW + 100)
    assert plan([want(replicas=4)], fleet, NOW) == ()


def test_a_restart_that_somebody_asks_for_does_not_wait_for_its_turn() -> None:
    fleet = pool_of(4)
    fleet[0] = seen(state="failed", next_start_at=NOW + 100)
    fleet[2] = dataclasses.replace(fleet[2], restart_asked="ada")
    assert [(one.kind, one.instance) for one in plan([want(replicas=4)], fleet, NOW)] == [("drain", "p-2")]


@pytest.mark.parametrize(("replicas", "limit"), [(1, 1), (3, 1), (8, 2), (100, 25)])
def test_the_rolling_limit_is_a_quarter_and_at_least_one(replicas: int, limit: int) -> None:
    assert rolling_limit(replicas) == limit


# A model of nodes and engines, on which plans are carried out.


class Model:
    def __init__(self, pool: DesiredPool, instances: list[ObservedInstance]) -> None:
        self.now = NOW
        self.pool = pool
        self.rows = {one.name: one for one in instances}
        self.processes = {one.name: 1 for one in instances if one.state not in {"stopped", "failed", "starting"}}
        self.busy = {one.name: 3 for one in instances if one.state in {"ready", "draining"}}  # steps until idle
        self.drained: set[str] = {one.name for one in instances if one.state == "draining"}
        self.pool_deleted = False

    def step(self) -> tuple[Action, ...]:
        actions = plan([self.pool] if not self.pool_deleted else [], self.rows.values(), self.now)
        for action in actions:
            getattr(self, action.kind)(action)
        self.nature()
        self.now += 1
        return actions

    def put(self, name: str, **changes: object) -> None:
        since = {"since": self.now} if "state" in changes else {}
        self.rows[name] = dataclasses.replace(self.rows[name], **since, **changes)  # type: ignore[arg-type]

    def create(self, action: Action) -> None:
        assert action.instance not in self.rows
        row = seen(name=action.instance, ordinal=action.ordinal, state="stopped", since=self.now, config_hash="")
        self.rows[action.instance] = row

    def start(self, action: Action) -> None:
        assert self.processes.get(action.instance, 0) == 0, "two processes for one instance"
        self.put(action.instance, state="starting", restart_asked="", config_hash=self.pool.config_hash)

    def drain(self, action: Action) -> None:
        self.drained.add(action.instance)
        self.put(action.instance, state="draining", idle=False)

    def undrain(self, action: Action) -> None:
        self.drained.discard(action.instance)
        self.put(action.instance, state="ready")

    def stop(self, action: Action) -> None:
        assert self.rows[action.instance].state == "loading" or action.instance in self.drained, "stopped undrained"
        self.put(action.instance, state="stopping", stop_deadline=self.now + 5, next_start_at=None)

    def kill(self, action: Action) -> None:
        after = self.now + 10 if action.failure else None
        self.put(action.instance, state="stopping", stop_deadline=self.now + 5, next_start_at=after)

    def rest(self, action: Action) -> None:
        assert self.processes.get(action.instance, 0) == 0
        self.put(action.instance, state="stopped", next_start_at=None)

    def delete(self, action: Action) -> None:
        assert self.processes.get(action.instance, 0) == 0
        del self.rows[action.instance]

    def delete_pool(self, action: Action) -> None:
        assert not self.rows
        self.pool_deleted = True

    def nature(self) -> None:
        """Nodes launch, engines load and finish their requests, processes end."""
        for name, row in list(self.rows.items()):
            if row.state == "starting":
                self.processes[name] = 1
                self.put(name, state="loading")
            elif row.state == "loading":
                self.put(name, state="draining" if row.wish == "drained" else "ready")
                self.busy[name] = 3
                if row.wish == "drained":
                    self.drained.add(name)
            elif row.state == "draining":
                self.busy[name] = max(0, self.busy.get(name, 0) - 1)
                self.put(name, idle=self.busy[name] == 0)
            elif row.state == "stopping":
                self.processes[name] = 0
                self.drained.discard(name)
                self.put(name, state="failed" if row.next_start_at else "stopped")


STATES = ["starting", "loading", "ready", "draining", "stopping", "stopped", "failed", "unreachable"]


@st.composite
def models(draw: st.DrawFn) -> Model:
    pool = want(replicas=draw(st.integers(0, 6)), removed=draw(st.booleans()))
    ordinals = draw(st.sets(st.integers(0, 8), max_size=9))
    instances = [
        seen(
            name=f"p-{n}",
            ordinal=n,
            state=draw(st.sampled_from(STATES)),
            wish=draw(st.sampled_from(["running", "running", "drained", "stopped"])),
            config_hash=draw(st.sampled_from(["new", "new", "old", ""])),
            restart_asked=draw(st.sampled_from(["", "", "ada"])),
            next_start_at=draw(st.none() | st.just(NOW + 15)),
            stop_deadline=draw(st.none() | st.just(NOW + 3)),
        )
        for n in sorted(ordinals)
    ]
    return Model(pool, instances)


@given(models())
def test_carried_out_again_and_again_the_plan_ends_and_the_pool_is_as_declared(model: Model) -> None:
    for _ in range(120):
        before = len(model.rows)
        model.step()
        # Rows are only added for replicas that are missing.
        assert len(model.rows) <= max(before, model.pool.replicas + sum(r.ordinal >= 6 for r in model.rows.values()), 9)
        assert all(count in (0, 1) for count in model.processes.values())
    assert model.step() == ()
    if model.pool.removed:
        assert model.pool_deleted
        return
    assert sorted(row.ordinal for row in model.rows.values()) == list(range(model.pool.replicas))
    for row in model.rows.values():
        expected = {"run": "ready", "drained": "draining", "stopped": "stopped"}[goal(model.pool, row)]
        assert row.state == expected, row
        assert expected == "stopped" or not outdated(model.pool, row)
    assert differences(model.pool, list(model.rows.values())) == ()


@given(st.integers(1, 12))
def test_a_rollout_never_takes_more_than_a_quarter_out(replicas: int) -> None:
    model = Model(want(replicas=replicas), pool_of(replicas, config_hash="old"))
    for _ in range(12 * replicas):
        model.step()
        out = sum(row.state != "ready" for row in model.rows.values())
        assert out <= rolling_limit(replicas)
    assert all(row.config_hash == "new" for row in model.rows.values())
