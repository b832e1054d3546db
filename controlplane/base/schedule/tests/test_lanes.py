"""The leading worker runs each step on time, whatever happens in other lanes or steps."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from controlplane.base.schedule import reports
from controlplane.base.schedule.lanes import FIRST_RARE_S, Schedule, Step, StepThread
from controlplane.base.schedule.lease import Leadership
from controlplane.base.schedule.models import Lease
from controlplane.base.schedule.tests.test_lease import Clock
from controlplane.doors import steps
from controlplane.doors.steps import STEPS
from fleet.tries import RowsFailed, tries

PATIENCE_S = 30.0


class Counted:
    def __init__(self, error: Exception | None = None) -> None:
        self.runs = 0
        self.error = error

    def __call__(self) -> None:
        self.runs += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def leader(db: None, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Leadership:
    monkeypatch.setattr("controlplane.base.schedule.lanes.close_old_connections", lambda: None)  # the test's own
    made = Leadership("control@a", clock=clock)
    made.step()
    return made


def lane(leader: Leadership, clock: Clock, **steps: Step) -> StepThread:
    return StepThread(steps, leader, clock)


def go_on(lane: StepThread, clock: Clock, leader: Leadership, seconds: int) -> None:
    for _ in range(seconds):
        lane.step()
        clock.now += 1.0
        leader.step()


def test_each_step_is_taken_as_often_as_declared(leader: Leadership, clock: Clock) -> None:
    often, seldom, rare = Counted(), Counted(), Counted()
    made = lane(
        leader, clock, a=Step(often, 1.0, "x", "a"), b=Step(seldom, 5.0, "x", "b"), c=Step(rare, 3600.0, "x", "c")
    )
    go_on(made, clock, leader, 20)
    assert (often.runs, seldom.runs, rare.runs) == (20, 4, 0)
    clock.now += FIRST_RARE_S
    leader.step()
    made.step()
    assert rare.runs == 1


def test_a_worker_that_does_not_lead_runs_only_steps_of_every_worker(leader: Leadership, clock: Clock) -> None:
    led, own = Counted(), Counted()
    steps = {"led": Step(led, 1.0, "x", "led"), "own": Step(own, 1.0, "x", "own", by_leader=False)}
    StepThread(steps, Leadership("control@b", clock=clock), clock).step()
    assert (led.runs, own.runs) == (0, 1)


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, bool]]:
    """The log lines of the steps, each with whether a traceback follows."""
    return [(record.getMessage(), record.exc_info is not None) for record in caplog.records if record.name != "root"]


def rows_that_fail(error: Exception) -> Callable[[], None]:
    def run() -> None:
        with tries() as row:
            for number in range(20):
                with row(f"row {number}"):
                    raise error

    return run


def test_a_full_redis_is_logged_in_one_line_for_each_step_and_minute(
    leader: Leadership, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    full = redis.exceptions.OutOfMemoryError("command not allowed when used memory > 'maxmemory'")
    steps = {"one": Step(Counted(full), 1.0, "x", "one"), "rows": Step(rows_that_fail(full), 1.0, "x", "rows")}
    go_on(StepThread(steps, leader, clock), clock, leader, 150)
    lines = [line for line, _ in told(caplog)]
    assert len(lines) == 2 * 3
    assert not any(traceback for _, traceback in told(caplog))
    assert lines[0] == f"step one failed: OutOfMemoryError: {full}"
    assert lines[1].startswith("step rows failed: RowsFailed: row 0: OutOfMemoryError: ")
    assert lines[1].endswith("; and 17 more")


def test_our_own_error_is_logged_with_its_traceback_and_a_new_reason_at_once(
    leader: Leadership, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    bad = Counted(KeyError("a"))
    made = lane(leader, clock, a=Step(bad, 1.0, "x", "a"))
    go_on(made, clock, leader, 10)
    bad.error = ConnectionResetError("by the store")
    go_on(made, clock, leader, 10)
    bad.error = None
    caplog.set_level("INFO")
    go_on(made, clock, leader, 10)
    assert told(caplog) == [
        ("step a failed", True),
        ("step a failed: ConnectionResetError: by the store", False),
        ("step a works again", False),
    ]


def test_no_step_fills_the_log_while_redis_is_full(
    leader: Leadership, clock: Clock, live_redis: redis.Redis, caplog: pytest.LogCaptureFixture
) -> None:
    """All steps of the product, each taken three times."""
    steps = {name: Step(step.run, 1.0, "all", step.what, step.by_leader) for name, step in STEPS.items()}
    before = live_redis.config_get("maxmemory")["maxmemory"]
    live_redis.config_set("maxmemory", 1)
    try:
        go_on(StepThread(steps, leader, clock), clock, leader, 3)
    finally:
        live_redis.config_set("maxmemory", before)
    of_steps = [record for record in caplog.records if record.name == "controlplane.base.schedule.lanes"]
    assert of_steps
    assert len(of_steps) <= len(steps)
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []


def test_a_failing_step_is_reported_and_neither_it_nor_other_steps_miss_their_next_turn(
    leader: Leadership, clock: Clock, live_redis: redis.Redis
) -> None:
    bad, good = Counted(ValueError("no such pool")), Counted()
    go_on(lane(leader, clock, a=Step(bad, 1.0, "x", "a"), b=Step(good, 1.0, "x", "b")), clock, leader, 3)
    assert (bad.runs, good.runs) == (3, 3)
    found = reports.read(live_redis)
    assert (found["a"].error, found["b"].error) == ("ValueError: no such pool", "")
    assert found["a"].at < found["b"].at


def test_a_worker_that_lost_the_lease_in_a_step_reports_nothing(
    leader: Leadership, clock: Clock, live_redis: redis.Redis
) -> None:
    def overtaken() -> None:
        Lease.objects.update(token=2, holder="control@b")
        live_redis.delete("weir:steps")
        Lease.objects.update(beat=1)

    lane(leader, clock, a=Step(overtaken, 1.0, "x", "a")).step()
    assert reports.read(live_redis) == {}


def test_steps_run_without_redis(leader: Leadership, clock: Clock, redis_away: None) -> None:
    step = Counted()
    lane(leader, clock, a=Step(step, 1.0, "x", "a")).step()
    assert step.runs == 1


@pytest.fixture
def started() -> Iterator[Any]:
    made: list[Schedule] = []

    def start(**steps: Step) -> Schedule:
        made.append(Schedule("control@a", steps))
        made[-1].start()
        return made[-1]

    yield start
    for each in made:
        each.stop()


@pytest.mark.django_db(transaction=True)
def test_a_step_that_hangs_delays_no_other_lane(started: Any) -> None:
    hangs, go, thrice = threading.Event(), threading.Event(), threading.Event()
    runs: list[int] = []

    def hang() -> None:
        hangs.set()
        go.wait(PATIENCE_S)

    def count() -> None:
        if hangs.is_set():
            runs.append(1)
        if len(runs) >= 3:
            thrice.set()

    started(slow=Step(hang, 0.1, "slow", "slow"), quick=Step(count, 0.1, "quick", "quick"))
    try:
        assert thrice.wait(PATIENCE_S)
        assert not go.is_set()
    finally:
        go.set()


@pytest.mark.django_db(transaction=True)
def test_a_worker_that_ends_gives_the_lease_back(started: Any) -> None:
    ran = threading.Event()
    started(a=Step(ran.set, 0.1, "x", "a"))._keep_lease()
    assert ran.wait(PATIENCE_S)
    assert reports.workers() == ["control@a"]
    Schedule.stop(_first(started), 5.0)
    assert Lease.objects.get().holder == ""


def _first(started: Any) -> Schedule:
    found: Schedule = started.__closure__[0].cell_contents[0]
    return found


def test_a_new_leader_forgets_steps_of_another_release(
    leader: Leadership, clock: Clock, live_redis: redis.Redis
) -> None:
    lane(leader, clock, a=Step(Counted(), 1.0, "x", "a"), b=Step(Counted(), 1.0, "x", "b")).step()
    reports.forget_all_but({"a"})
    assert list(reports.read(live_redis)) == ["a"]


def test_the_lane_of_reconciling_has_no_other_step() -> None:
    assert [name for name, step in STEPS.items() if step.lane == STEPS["fleet.reconcile"].lane] == ["fleet.reconcile"]


@pytest.mark.parametrize(
    ("step", "owner", "first", "second"),
    [
        (steps.publish_fleet, steps, "publish_step", "expire_step"),
        (steps.republish_keys, steps.keys, "republish", "take_last_uses"),
    ],
    ids=["fleet", "keys"],
)
def test_the_second_half_of_a_step_runs_although_the_first_failed(
    step: Any, owner: Any, first: str, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = []

    def fails(*_: object) -> None:
        raise RowsFailed({"pool a": ValueError("strange")})

    monkeypatch.setattr(owner, first, fails)
    monkeypatch.setattr(owner, second, lambda *_: done.append(second))
    with pytest.raises(RowsFailed):
        step()
    assert done == [second]
