"""An instance that routers report as stalled leaves routing for all routers, is restarted if Weir started it, and
returns when they report it as working.
"""

import dataclasses
import time
from typing import Any

import pytest
from django.utils import timezone
from msgspec import structs

from fleet.control.reconciler import reconcile_step
from fleet.models import InstanceEvent, State
from fleet.observe.stalls import reported, stall_step
from fleet.plan.reconcile import plan
from fleet.plan.state import REPLACE_UNPROVEN_S, InstanceRecord, Move, stall_move
from fleet.redis import connect
from fleet.tests.model import MARS, NOW, a_pool, an_instance
from fleet.tests.test_state import SEEN, WELL, move
from fleet.tests.world import World, deliver, roll_back
from router.contract.redis import codec, redis_keys
from router.contract.redis.router_status import RouterStatus, StalledInstance

WHY = "stalled: no token for 45 s with requests (limit 30 s)"


def status(name: str = "r-1", *, epoch: int = 1, stalled: bool = True, holds: bool = True, **more: Any) -> RouterStatus:
    found = {"p-0": StalledInstance(epoch, WHY, **more)} if stalled else {}
    return RouterStatus(id=name, at=time.time(), stalled=found, inflight={"p-0": (1, 0, 0)} if holds else {})


def tell(*routers: RouterStatus) -> list[str]:
    """Write the routers' reports and run the next step."""
    client = connect()
    client.delete(redis_keys.ROUTERS)
    for router in routers:
        client.set(redis_keys.router_key(router.id), codec.encode(router))
        client.zadd(redis_keys.ROUTERS, {router.id: time.time()})
    return stall_step(timezone.now())


@pytest.fixture
def serving(world: World) -> World:
    world.apply(1)
    world.until_ready(1)
    return world


def test_a_stalled_instance_leaves_routing_with_its_reason_and_returns(serving: World) -> None:
    assert tell(status()) == ["p-0"]
    assert (serving.one().state, serving.one().reason) == (State.UNREACHABLE, WHY)
    published = serving.published()["p-0"]
    assert (published["routable"], published["reason"]) == (False, WHY)
    serving.tick()
    assert tell(status()) == []
    assert serving.one().state == State.UNREACHABLE
    assert tell(status(stalled=False)) == ["p-0"]
    assert serving.one().state == State.READY
    assert serving.published()["p-0"]["routable"]
    kinds = [event.kind for event in InstanceEvent.objects.filter(instance="p-0", text=WHY)]
    assert kinds == ["unreachable"]


def test_a_stalled_instance_is_restarted_after_a_minute_as_a_failure(serving: World) -> None:
    pid, epoch = serving.one().pid, serving.one().epoch
    tell(status())
    serving.age(59)
    assert reconcile_step(timezone.now(), deliver, roll_back) == ()
    serving.age(2)
    serving.until(lambda: serving.one().state == State.FAILED)
    assert (serving.one().failures, serving.one().next_start_at is not None) == (1, True)
    serving.age(60)
    serving.until_ready(1)
    assert (serving.one().epoch, serving.one().pid == pid) == (epoch + 1, False)
    assert tell(status(epoch=epoch)) == []  # reported for the previous process


@pytest.mark.slow
def test_an_engine_whose_pages_are_late_stays_in_routing_while_tokens_arrive(serving: World) -> None:
    serving.tell(health_delay_s=60, metrics_delay_s=60)
    tell(structs.replace(status(stalled=False), producing={"p-0": serving.one().epoch}))
    serving.until(lambda: "tokens arrive" in serving.one().reason, limit_s=20)
    assert serving.one().state == State.READY
    tell(status(stalled=False))
    serving.until(serving.is_in(State.UNREACHABLE), limit_s=30)
    assert "no answer for" in serving.one().reason


def test_without_routers_no_instance_stays_out(serving: World) -> None:
    tell(status())
    assert tell() == ["p-0"]
    assert serving.one().state == State.READY


def test_a_router_that_gets_tokens_refutes_a_stall() -> None:
    assert reported([status(), status("r-2", stalled=False)]) == {}
    assert reported([status(), status("r-2", stalled=False, holds=False)]) == {("p-0", 1): WHY}
    assert reported([status(), status("r-2")]) == {("p-0", 1): WHY}
    assert reported([]) == {}


def test_a_process_without_a_token_since_its_start_gets_more_time_before_a_restart() -> None:
    (reason,) = reported([status(proven=False)]).values()
    assert reason == "stalled since its start: no token for 45 s with requests (limit 30 s)"
    out = {"state": "unreachable", "reason": reason}
    assert plan([a_pool()], [an_instance(**out, since=NOW - REPLACE_UNPROVEN_S + 1)], NOW, [MARS]) == ()
    (action,) = plan([a_pool()], [an_instance(**out, since=NOW - REPLACE_UNPROVEN_S)], NOW, [MARS])
    assert (action.kind, action.reason, action.failure) == ("kill", reason, True)


def test_an_engine_that_weir_did_not_start_is_never_restarted() -> None:
    out = an_instance(state="unreachable", reason=WHY, since=NOW - 86_400)
    assert plan([a_pool(launched=False)], [out], NOW, [MARS]) == ()


OUT = dataclasses.replace(SEEN, state="unreachable", reason=WHY)


@pytest.mark.parametrize(
    ("record", "reason", "expected"),
    [
        (SEEN, WHY, Move("unreachable", WHY)),
        (dataclasses.replace(SEEN, state="draining"), WHY, Move("unreachable", WHY)),
        (dataclasses.replace(SEEN, state="loading"), WHY, None),
        (SEEN, "", None),
        (OUT, WHY, None),
        (OUT, "", Move("ready", "answers /health and serves the model")),
        (dataclasses.replace(OUT, desired="drained"), "", Move("draining", "drained on request; the process stays")),
        (dataclasses.replace(OUT, reason="no answer for 3 s"), "", None),
    ],
)
def test_each_state_reacts_to_routers_reports(record: InstanceRecord, reason: str, expected: Move | None) -> None:
    assert stall_move(record, reason) == expected


def test_a_good_health_page_does_not_end_a_stall_and_a_silent_one_is_reported() -> None:
    assert WELL.health == "ok"
    assert move("unreachable", record={"reason": WHY}) is None
    lost = move("unreachable", record={"reason": WHY}, health="refused", silent_s=3.0, error="refused")
    assert lost == Move("unreachable", "no answer for 3.0 s: refused")
    ended = move("unreachable", record={"reason": WHY}, alive=False, failure_cause="killed")
    assert ended is not None
    assert ended.to == "failed"
