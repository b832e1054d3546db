"""The reconciler's plan, by hand for each state and by properties over whole fleets."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.plan.desired import goal, outdated
from fleet.plan.drift import differences
from fleet.plan.placement import NodeView
from fleet.plan.reconcile import CLAIM_S, LOST_AFTER_S, ORDER_AGAIN_S, plan
from fleet.plan.state import REPLACE_AFTER_S, REPLACE_STALLED_S, REPLACE_UNPROVEN_S, stalled_reason
from fleet.spec.sections import Placement, Update
from fleet.tests.model import MARS, NOW, POOL, READY, Model, a_pool, an_instance, pool_of

AWAY = NodeView("mars", reports=False)
ONLY_MARS = {"placement": Placement(nodes=("mars",))}
NO_WORKER = "node mars has no worker; it starts once a node can take it"
STOP, OLD = {"desired": "stopped"}, {"config_hash": "old"}
RETIRED = {"retired": "scaled down to 0"}
PATIENT = {"update": Update(replace_after_s=90)}
STALLED, UNPROVEN = (stalled_reason("stalled: no token for 45 s", proven=proven) for proven in (True, False))


@pytest.mark.parametrize(
    ("pool", "instance", "action", "words"),
    [
        # at rest
        ({}, {"state": "stopped"}, "start", "as desired"),
        ({}, {"state": "failed", "next_start_at": NOW + 1}, "", ""),
        ({}, {"state": "failed", "next_start_at": NOW}, "start", "as desired"),
        ({}, {"state": "stopped", "restart_asked": "ada: leak"}, "start", "ada: leak"),
        ({}, {"state": "stopped", **STOP}, "", ""),
        ({}, {"state": "failed", **STOP}, "rest", "stopped on request"),
        ({}, {**RETIRED, "state": "failed"}, "delete", "scaled down to 0"),
        ({"removed": True}, {"state": "stopped"}, "delete", "the pool is removed"),
        ({}, {"state": "stopped", "desired": "drained"}, "start", "as desired"),
        # ordered but not yet started
        ({}, {"state": "starting"}, "", ""),
        ({}, {**RETIRED, "state": "starting"}, "", ""),
        ({}, {"state": "starting", "since": NOW - CLAIM_S}, "start", "did not execute the start order"),
        ({}, {**RETIRED, "state": "starting", "since": NOW - CLAIM_S}, "rest", "scaled down"),
        # loading
        ({}, {"state": "loading"}, "", ""),
        ({}, {"state": "loading", "since": NOW - 30}, "kill", "not ready within 30 s"),
        ({}, {"state": "loading", **OLD}, "stop", "configuration"),
        ({}, {"state": "loading", **STOP}, "stop", "on request"),
        # ready
        ({}, {}, "", ""),
        ({}, {"desired": "drained"}, "drain", "drained on request"),
        ({}, OLD, "drain", "configuration changed"),
        ({}, STOP, "drain", "stopped on request"),
        ({}, RETIRED, "drain", "scaled down to 0"),
        ({}, {"restart_asked": "ada: leak"}, "drain", "ada: leak"),
        # draining
        ({}, {"state": "draining", "desired": "drained"}, "", ""),
        ({}, {"state": "draining"}, "undrain", "takes requests again"),
        ({}, {**RETIRED, "state": "draining"}, "", ""),
        ({}, {**RETIRED, "state": "draining", "idle": True}, "stop", "scaled down"),
        ({}, {**RETIRED, "state": "draining", "since": NOW - 60}, "stop", "remaining requests are cut off"),
        ({}, {"state": "draining", "desired": "drained", "idle": True, **OLD}, "stop", "configuration"),
        # sleep
        ({}, {"desired": "asleep"}, "drain", "going to sleep"),
        ({}, {"state": "draining", "desired": "asleep"}, "", ""),
        ({}, {"state": "draining", "desired": "asleep", "idle": True}, "sleep", ""),
        ({}, {"state": "draining", "desired": "asleep", "idle": True, "ordered_at": NOW - 1}, "", ""),
        ({}, {"state": "draining", "desired": "asleep", "idle": True, "ordered_at": NOW - ORDER_AGAIN_S}, "sleep", ""),
        ({}, {"state": "draining", "desired": "asleep", "idle": True, "asleep": 1}, "", ""),
        ({}, {"state": "draining", "desired": "running", "asleep": 1}, "wake", ""),
        # orders that have not begun are void
        ({}, {"state": "draining", "ordered_at": NOW - 1}, "undrain", "takes requests again"),
        ({}, {"state": "draining", "desired": "drained", "ordered_at": NOW - ORDER_AGAIN_S}, "", ""),
        # orders without an outcome
        *(
            ({}, {"state": "draining", **row, "ordered_at": NOW - ago}, step if ago == ORDER_AGAIN_S else "", "")
            for row, step in (
                ({"desired": "running", "asleep": 1}, "wake"),  # wake
                ({"desired": "asleep", "asleep": 1}, "wake"),  # it may be half awake
            )
            for ago in (1, ORDER_AGAIN_S)
        ),
        ({}, {"state": "draining", "desired": "drained", "asleep": 2}, "wake", ""),
        ({}, {"state": "draining", "asleep": 1, **RETIRED}, "stop", "scaled down"),
        # pools that need another
        ({"needs": ("store",)}, {"state": "stopped"}, "rest", "waits for the pool store: no ready instance"),
        ({"needs": ("p",)}, {}, "", ""),
        ({"needs": ("store",)}, {}, "", ""),
        # unreachable
        ({}, {"state": "unreachable"}, "", ""),
        ({}, {"state": "unreachable", "since": NOW - REPLACE_AFTER_S, "reason": "silent"}, "kill", "silent"),
        (PATIENT, {"state": "unreachable", "since": NOW - REPLACE_AFTER_S, "reason": "silent"}, "", ""),
        (PATIENT, {"state": "unreachable", "since": NOW - 90, "reason": "silent"}, "kill", "silent"),
        ({}, {"state": "unreachable", "since": NOW - REPLACE_STALLED_S + 1, "reason": STALLED}, "", ""),
        ({}, {"state": "unreachable", "since": NOW - REPLACE_STALLED_S, "reason": STALLED}, "kill", STALLED),
        ({}, {"state": "unreachable", "since": NOW - REPLACE_UNPROVEN_S + 1, "reason": UNPROVEN}, "", ""),
        ({}, {"state": "unreachable", "since": NOW - REPLACE_UNPROVEN_S, "reason": UNPROVEN}, "kill", UNPROVEN),
        (
            {},
            {**RETIRED, "state": "unreachable", "since": NOW - REPLACE_AFTER_S, "reason": STALLED},
            "kill",
            "scaled down",
        ),
        ({}, {**RETIRED, "state": "unreachable"}, "", ""),
        ({}, {**RETIRED, "state": "unreachable", "since": NOW - REPLACE_AFTER_S}, "kill", "scaled down"),
        # stopping
        ({}, {"state": "stopping"}, "", ""),
        ({}, {"state": "stopping", "stop_deadline": NOW + 1}, "", ""),
        ({}, {"state": "stopping", "stop_deadline": NOW}, "kill", ""),
    ],
)
def test_each_state_has_its_next_step(pool: dict, instance: dict, action: str, words: str) -> None:
    count = 0 if instance.get("retired") else 1
    actions = plan([a_pool(**{"replicas": count, **pool})], [an_instance(**instance)], NOW, [MARS])
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
def test_only_failures_count_as_failures(instance: dict, failure: bool) -> None:
    (action,) = plan([POOL], [an_instance(**instance)], NOW, [MARS])
    assert (action.kind, action.failure) == ("kill", failure)


def test_missing_instances_are_created_and_a_removed_pool_gets_none() -> None:
    made = plan([a_pool(replicas=3)], [an_instance(name="p-1", ordinal=1)], NOW, [MARS])
    assert [(one.kind, one.instance, one.ordinal) for one in made] == [("create", "p-0", 0), ("create", "p-2", 2)]
    assert [one.kind for one in plan([a_pool(replicas=3, removed=True)], [], NOW, [MARS])] == ["delete_pool"]


def test_instances_of_pools_outside_the_document_are_left_alone() -> None:
    assert plan([], [READY], NOW, [MARS]) == ()


def test_a_changed_configuration_is_rolled_out_a_quarter_at_a_time() -> None:
    first = plan([a_pool(replicas=8)], pool_of(8, config_hash="old"), NOW, [MARS])
    assert [(one.kind, one.instance) for one in first] == [("drain", "p-0"), ("drain", "p-1")]
    two_out = pool_of(8, config_hash="old")
    two_out[:2] = [dataclasses.replace(one, state="draining") for one in two_out[:2]]
    assert plan([a_pool(replicas=8)], two_out, NOW, [MARS]) == ()


def test_a_rollout_halts_while_the_new_configuration_fails() -> None:
    fleet = pool_of(4, config_hash="old")
    fleet[0] = an_instance(state="failed", next_start_at=NOW + 100)
    assert plan([a_pool(replicas=4)], fleet, NOW, [MARS]) == ()


def test_a_requested_restart_does_not_wait_for_its_turn() -> None:
    fleet = pool_of(4)
    fleet[0] = an_instance(state="failed", next_start_at=NOW + 100)
    fleet[2] = dataclasses.replace(fleet[2], restart_asked="ada")
    assert [(one.kind, one.instance) for one in plan([a_pool(replicas=4)], fleet, NOW, [MARS])] == [("drain", "p-2")]


@pytest.mark.parametrize(
    ("instance", "action", "words"),
    [
        ({"state": "stopped"}, "rest", NO_WORKER),
        ({"state": "stopped", "reason": NO_WORKER}, "", ""),
        ({"state": "failed"}, "", ""),
        ({"state": "starting", "since": NOW - CLAIM_S}, "", ""),
        ({"state": "unreachable", "since": NOW - LOST_AFTER_S}, "", ""),
        ({"state": "unreachable", "since": NOW - REPLACE_AFTER_S}, "", ""),
        ({"state": "unreachable", "since": NOW - LOST_AFTER_S, **STOP}, "rest", "stopped on request"),
        ({"state": "stopping", "since": NOW, "stop_deadline": NOW}, "kill", ""),
        ({"state": "stopping", "since": NOW - LOST_AFTER_S, "stop_deadline": NOW}, "rest", "its node mars is lost"),
    ],
)
def test_an_instance_pinned_to_a_silent_node_waits_for_it(instance: dict, action: str, words: str) -> None:
    actions = plan([a_pool(**ONLY_MARS)], [an_instance(**instance)], NOW, [AWAY])
    assert [one.kind for one in actions] == ([action] if action else [])
    assert all(words in one.reason for one in actions)


def test_instances_of_a_lost_node_are_started_elsewhere_after_a_while() -> None:
    away = an_instance(state="unreachable", since=NOW - LOST_AFTER_S)
    (action,) = plan([POOL], [away], NOW, [AWAY, NodeView("venus")])
    assert (action.kind, action.node, action.reason) == ("start", "venus", "its node mars is lost")


def test_a_drained_node_hands_its_instances_to_another_node() -> None:
    drained = dataclasses.replace(MARS, draining=True)
    assert plan([POOL], [READY], NOW, [drained]) == ()
    (action,) = plan([POOL], [READY], NOW, [drained, NodeView("venus")])
    assert (action.kind, action.reason) == ("drain", "node mars is being drained")


def test_an_instance_moves_off_a_node_that_its_placement_no_longer_allows() -> None:
    model = Model(a_pool(placement=Placement(nodes=("venus",))), [READY], [MARS, NodeView("venus")])
    for _ in range(20):
        model.step()
    assert (model.rows["p-0"].node, model.rows["p-0"].state) == ("venus", "ready")


STATES = ["starting", "loading", "ready", "draining", "stopping", "stopped", "failed", "unreachable"]


@st.composite
def models(draw: st.DrawFn) -> Model:
    update = Update(*draw(st.sampled_from([("in_place", None, None), ("in_place", None, 3), ("surge", 2, 0)])))
    pool = a_pool(replicas=draw(st.integers(0, 6)), removed=draw(st.booleans()), update=update)
    ordinals = draw(st.sets(st.integers(0, 8), max_size=9))
    instances = [
        an_instance(
            name=f"p-{n}",
            ordinal=n,
            state=draw(st.sampled_from(STATES)),
            desired=draw(st.sampled_from(["running", "running", "drained", "asleep", "stopped"])),
            config_hash=draw(st.sampled_from(["new", "new", "old", ""])),
            restart_asked=draw(st.sampled_from(["", "", "ada"])),
            next_start_at=draw(st.none() | st.just(NOW + 15)),
            stop_deadline=draw(st.none() | st.just(NOW + 3)),
            retired=draw(st.sampled_from(["", "", "scaled down"])),
            load=draw(st.integers(0, 3)),
        )
        for n in sorted(ordinals)
    ]
    return Model(pool, instances)


PRESSES = st.dictionaries(st.integers(0, 30), st.sampled_from(["running", "drained", "asleep"]), max_size=4)


@given(models(), PRESSES)
def test_repeated_plans_converge_to_the_declared_pool(model: Model, presses: dict[int, str]) -> None:
    for number in range(400):
        for row in list(model.rows.values()) if number in presses else ():
            if row.desired != "stopped":
                model.put(row.name, desired=presses[number])
        model.step()
        assert all(count in (0, 1) for count in model.processes.values())
    assert model.step() == ()
    if model.pool.removed:
        assert model.pool_deleted
        return
    assert len(model.rows) == model.pool.replicas
    for row in model.rows.values():
        expected = {"run": "ready", "stopped": "stopped"}.get(goal(model.pool, row), "draining")
        assert row.state == expected, row
        assert expected == "stopped" or not outdated(model.pool, row)
    assert differences(model.pool, list(model.rows.values())) == ()
