"""The step with the database and Redis: it reads what routers write, and writes transitions and watches."""

import json
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone
from msgspec.structs import replace

from controlplane.doors.steps import STEPS
from controlplane.evidence.previews.models import Preview
from controlplane.traffic.deliveries import results, services
from controlplane.traffic.deliveries.judge import memory, step
from controlplane.traffic.deliveries.judge.step import judge
from controlplane.traffic.deliveries.judge.tests.traffic import Cells, cells
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.plan import stored_plan
from controlplane.traffic.deliveries.states import State, Trigger
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OTTO, SHADOW, WHY, proposed
from controlplane.traffic.policies.models import Policy
from fleet.models import Pool
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryTally, ShadowTally, StopValue, WatchValue
from router.contract.redis.receipt import Receipt
from router.contract.redis.router_status import RouterStatus, ServedPool, Window
from router.contract.values import sketch

TENTH = {**CANARY, "share": 0.1}
BACK = {"mode": "switchback", "block_s": 60, "washout_s": 10, "pairs": 4}
POOL_GUARD = {"metric": "pool.ttft_p90_ms", "class": "warm", "above": 500, "for_s": 5}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow these tests a long time between looks."""
    monkeypatch.setattr(step, "AWAY_S", 1e9)


@pytest.fixture
def impatient(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "AWAY_S", float(redis_keys.WATCH_TTL_S))


class Fleet:
    """Routers as the judge sees them: their statuses and tallies, at chosen times."""

    def __init__(self, client: redis.Redis, *names: str) -> None:
        self.client, self.names, self.written = client, names or ("r1",), 0
        self.windows: dict[str, dict[str, Window]] = {}

    def alive(self, delivery: Delivery, split: str = "on", generation: int | None = None) -> None:
        generation = delivery.generation if generation is None else generation
        served = ServedPool(policy="default", version=1, generation=generation, split=split)  # type: ignore[arg-type]
        for name in self.names:
            self.client.zadd(redis_keys.ROUTERS, {name: time.time()})
            status = RouterStatus(id=name, at=time.time(), pools={"demo": served}, classes=self.windows)
            self.client.set(redis_keys.router_key(name), codec.encode(status))

    def write(self, delivery: Delivery, counted: Cells | None = None, **changes: Any) -> None:
        """Write the same for every router."""
        self.alive(delivery)
        self.written += 1
        for name in self.names:
            given: dict[str, Any] = {
                "delivery": delivery.pk,
                "generation": delivery.generation,
                "pool": "demo",
                "router": name,
                "life": "a",
                "at": time.time(),
                "written": self.written,
                "cells": counted or {},
            }
            tally = DeliveryTally(**{**given, **changes})
            into = redis_keys.delivery_field("demo", name, "a", tally.generation)
            self.client.hset(redis_keys.delivery_key(delivery.pk), into, codec.encode(tally))

    def watch(self) -> WatchValue | None:
        return codec.decode(WatchValue, self.client.get(redis_keys.watch_key("demo")))


def started(policy: Policy, *steps: dict[str, Any], fleet: Fleet, **more: Any) -> Delivery:
    """A delivery in its first step."""
    delivery = services.start(proposed(policy, *steps, **more), OTTO)
    fleet.alive(delivery, "off")
    delivery = judge(delivery, time.time())
    assert delivery.state == State.STEP
    return delivery


def latest(delivery: Delivery) -> Look:
    found = delivery.looks.first()
    assert found is not None
    return found


@pytest.fixture
def canary(policy: Policy, pool: Pool, fleet: Fleet) -> Delivery:
    return started(policy, TENTH, FULL, fleet=fleet)


def later(delivery: Delivery, seconds: float) -> float:
    """Return the time this many seconds after the start of the step."""
    assert delivery.step_started_at is not None
    return delivery.step_started_at.timestamp() + seconds


def test_arming_ends_when_the_routers_have_acknowledged(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = services.start(proposed(policy, TENTH, FULL), OTTO)
    fleet.alive(delivery, "off", generation=0)
    assert judge(delivery, time.time()).state == State.ARMING
    fleet.alive(delivery, "off")
    assert judge(delivery, time.time()).state == State.STEP


def test_the_watch_is_renewed_while_a_step_runs(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(400))
    judge(canary, later(canary, 5))
    watch = fleet.watch()
    assert watch is not None
    assert (watch.delivery, watch.generation) == (canary.pk, canary.generation)
    assert 25 < fleet.client.ttl(redis_keys.watch_key("demo")) <= 30


def test_a_look_is_stored_with_its_findings(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(4_000))
    judge(canary, later(canary, 5))
    look = latest(canary)
    assert (look.proposal, look.state, look.generation) == (Trigger.STAY, State.STEP, canary.generation)
    found = {(each["metric"], each["class"]): each for each in look.findings}
    assert found["ttft", "warm"]["pool"] == "demo"
    assert sum(found["ttft", "warm"]["n"]) > 1_500
    assert look.facts["routers"] == 1
    json.dumps(look.findings, allow_nan=False)


def test_a_fine_canary_passes_after_its_duration(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(12_000))
    assert judge(canary, later(canary, 59)).state == State.STEP
    fleet.write(canary, cells(12_000))
    done = judge(canary, later(canary, 61))
    assert (done.state, done.share) == (State.BAKING, 0.0)
    assert done.why.startswith("10 % for 1 min 1 s: demo: warm TTFT ")
    assert done.memory["pools"] == {}


def test_a_canary_defers_a_rare_class_to_a_larger_one(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = started(policy, TENTH, {**CANARY, "share": 0.5}, FULL, fleet=fleet)
    fleet.write(delivery, cells(4_000, mix=(0.55, 0.4, 0.05)))
    larger = judge(delivery, later(delivery, 61))
    assert (larger.state, larger.step) == (State.STEP, 1)
    assert larger.why.startswith("10 % for 1 min 1 s: demo: heavy TTFT: 29 of 30 requests")
    fleet.write(larger, cells(700, 0.5, mix=(0.55, 0.4, 0.05)))
    assert judge(larger, later(larger, 61)).step == 1


def test_a_failed_guard_aborts(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(factors={"heavy": 2.5}))
    done = judge(canary, later(canary, 20))
    assert (done.state, done.share, done.what) == (State.ABORTED, 0.0, Trigger.FAIL)
    assert "heavy TTFT" in done.why


def test_a_stalled_delivery_is_not_judged(canary: Delivery, fleet: Fleet) -> None:
    """Live decides every request, so the candidate causes nothing that is observed."""
    looks = canary.looks.count()
    paused = services.pause(canary, OTTO)
    fleet.write(paused, cells(factors={"heavy": 2.5}))
    assert judge(paused, later(canary, 20)).state == State.PAUSED
    assert paused.looks.count() == looks


def test_routers_keep_the_split_ready_during_a_hold_and_drop_it_in_a_pause(canary: Delivery, fleet: Fleet) -> None:
    fleet.client.delete(redis_keys.ROUTERS)
    held = judge(canary, later(canary, 5))
    assert (held.state, fleet.watch() is not None) == (State.HOLDING, True)
    fleet.client.delete(redis_keys.watch_key("demo"))
    judge(services.pause(held, OTTO), later(canary, 10))
    assert fleet.watch() is None


@pytest.mark.usefixtures("impatient")
def test_a_judge_pauses_at_once_after_an_absence_and_says_how_long_it_was(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(400))
    canary = judge(canary, later(canary, 5))
    away = later(canary, 66)
    fleet.write(canary, cells(400))
    done = judge(canary, away)
    assert (done.state, done.share) == (State.PAUSED, 0.0)
    assert f"to {datetime.fromtimestamp(away, UTC):%H:%M:%S} UTC; live served every request" in done.why
    assert "resume to begin the step again" in done.why


@pytest.mark.usefixtures("impatient")
def test_a_judge_that_was_slightly_late_continues(canary: Delivery, fleet: Fleet) -> None:
    for seconds in (5, 34):
        fleet.write(canary, cells(400))
        canary = judge(canary, later(canary, seconds))
    assert canary.state == State.STEP


def test_the_tallies_of_two_routers_are_added(policy: Policy, pool: Pool, live_redis: redis.Redis) -> None:
    fleet = Fleet(live_redis, "r1", "r2")
    delivery = started(policy, TENTH, FULL, fleet=fleet)
    fleet.write(delivery, cells(1_000))
    judge(delivery, later(delivery, 5))
    arms = next(each for each in latest(delivery).findings if each["metric"] == "arms")
    assert sum(arms["n"]) == 1_000


def test_lost_tallies_cause_a_hold_and_three_good_looks_end_it(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(4_000))
    held = judge(canary, later(canary, 5))
    fleet.write(held, cells(400))
    held = judge(held, later(canary, 10))
    assert (held.state, held.holds[0]["code"]) == (State.HOLDING, "tallies")
    assert "and had 4000" in held.holds[0]["text"]
    fleet.write(held, cells(4_400))
    for seconds in (15, 20, 25):
        held = judge(held, later(canary, seconds))
        fleet.write(held, cells(4_400))
    assert held.state == State.STEP


def test_an_unreadable_tally_causes_a_hold(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(400))
    field = redis_keys.delivery_field("demo", "r9", "a", canary.generation)
    fleet.client.hset(redis_keys.delivery_key(canary.pk), field, b"{")
    held = judge(canary, later(canary, 5))
    assert (held.state, held.holds[0]["text"]) == (State.HOLDING, f"demo: the tally of {field} is unreadable")


def test_a_router_that_does_not_write_causes_a_hold(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(400))
    judge(canary, later(canary, 5))
    canary.refresh_from_db()
    fleet.alive(canary)
    held = judge(canary, later(canary, 22))
    assert held.state == State.HOLDING
    assert "has not written its tally for 17 s" in held.holds[0]["text"]


@pytest.mark.parametrize(("split", "behind"), [("on", 1), ("unwatched", 0), ("unreadable", 0)])
def test_a_router_that_is_behind_causes_a_hold_after_five_seconds(
    canary: Delivery, fleet: Fleet, split: str, behind: int
) -> None:
    for seconds, state in ((2, State.STEP), (7, State.HOLDING)):
        fleet.write(canary, cells(400))
        fleet.alive(canary, split, generation=canary.generation - behind)
        canary = judge(canary, later(canary, seconds))
        assert canary.state == state
    assert canary.holds[0]["code"] == "routers"
    assert "r1" in canary.holds[0]["text"]


def test_a_pool_without_a_router_causes_a_hold(canary: Delivery, fleet: Fleet) -> None:
    fleet.client.delete(redis_keys.ROUTERS)
    held = judge(canary, later(canary, 5))
    assert (held.state, held.holds[0]["text"]) == (State.HOLDING, "demo: no router serves the pool")


def test_an_unreachable_redis_causes_a_hold_and_does_not_count_as_harm(
    canary: Delivery, fleet: Fleet, redis_away: None
) -> None:
    held = judge(canary, later(canary, 5))
    assert (held.state, held.holds[0]["code"]) == (State.HOLDING, "tallies")
    assert "Redis does not answer" in held.holds[0]["text"]


def test_an_unreachable_redis_leaves_a_paused_delivery_alone(canary: Delivery, fleet: Fleet, redis_away: None) -> None:
    paused = services.pause(canary, OTTO)
    assert judge(paused, later(canary, 5)).state == State.PAUSED


@pytest.mark.parametrize("number", [0, None])
def test_the_router_that_stopped_a_delivery_is_recorded(canary: Delivery, fleet: Fleet, number: int | None) -> None:
    stop = StopValue(
        delivery=canary.pk if number is None else number, why="KeyError: 'x'", by="router", request="q1", at=time.time()
    )
    fleet.client.set(redis_keys.stop_key("demo"), codec.encode(stop))
    done = judge(canary, later(canary, 5))
    assert (done.state, done.what) == (State.ABORTED, Trigger.TRIP)
    assert "request q1" in done.why


def test_a_stop_of_another_delivery_is_ignored(canary: Delivery, fleet: Fleet) -> None:
    stop = StopValue(delivery=canary.pk + 1, why="x", by="router", at=time.time())
    fleet.client.set(redis_keys.stop_key("demo"), codec.encode(stop))
    fleet.write(canary, cells(400))
    assert judge(canary, later(canary, 5)).state == State.STEP


def test_a_step_without_traffic_waits_and_then_pauses(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = started(policy, {**TENTH, "max_s": 3600}, FULL, fleet=fleet, hold={"no_data_s": 60, "error_s": 600})
    for seconds, state in ((5, State.STEP), (55, State.STEP), (70, State.PAUSED)):
        fleet.write(delivery)
        delivery = judge(delivery, later(delivery, seconds))
        assert delivery.state == state
    assert delivery.why.startswith("no data for 1 min: ")


def test_an_undecided_canary_pauses_at_its_end(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = started(policy, {**TENTH, "max_s": 60}, FULL, fleet=fleet)
    fleet.write(delivery, cells(2_500, factors={"warm": 1.1}))
    done = judge(delivery, later(delivery, 61))
    assert (done.state, done.what) == (State.PAUSED, Trigger.PAUSE)
    assert "not enough to go on after 1 min: demo: warm TTFT" in done.why


def test_a_shadow_passes_and_its_exception_aborts(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = started(policy, SHADOW, TENTH, FULL, fleet=fleet)
    quiet = ShadowTally(n=200, changed=20, to={"a": 100, "b": 100}, live_to={"a": 100, "b": 100})
    fleet.write(delivery, shadow=quiet)
    passed = judge(delivery, later(delivery, 61))
    assert (passed.state, passed.step, passed.share) == (State.STEP, 1, 0.1)
    assert passed.memory["pools"] == {}


def test_an_exception_in_a_shadow_aborts(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = started(policy, SHADOW, TENTH, FULL, fleet=fleet)
    fleet.write(delivery, shadow=ShadowTally(n=3, raised=1))
    assert judge(delivery, later(delivery, 5)).state == State.ABORTED


@pytest.mark.parametrize(("source", "state"), [("recorded", State.PAUSED), ("built-in", State.STEP)])
def test_a_shadow_is_compared_with_the_preview_on_recorded_traffic(
    policy: Policy,
    pool: Pool,
    fleet: Fleet,
    source: str,
    state: str,
) -> None:
    delivery = started(policy, SHADOW, TENTH, FULL, fleet=fleet)
    Preview.objects.create(
        policy=policy, live_version=1, live_sha256="", draft_revision=1, draft_sha256=delivery.candidate.sha256,
        draft_document={}, pool="demo", trace_name="t", trace={"source": source}, max_requests=1, seeds=[1], key="k",
        status="done", result={"changed": {"low": 0.6, "high": 0.7}},
    )  # fmt: skip
    fleet.write(delivery, shadow=ShadowTally(n=200, changed=20, to={"a": 200}, live_to={"a": 200}))
    assert judge(delivery, later(delivery, 10)).state == state


def through_blocks(
    delivery: Delivery, fleet: Fleet, requests: int = 1_200, **options: Any
) -> tuple[Delivery, list[float]]:
    """Run each of the switchback's blocks, with their shares; after that every block is over, and live has the pool."""
    shares = []
    for block in range(8):
        shares.append(delivery.share)
        for seconds in (60 * block + 30, 60 * block + 61):
            fleet.write(delivery, cells(requests, delivery.share, seed=block, **options))
            delivery = judge(delivery, later(delivery, seconds))
    assert (delivery.state, delivery.block, delivery.share) == (State.STEP, 8, 0.0)
    return delivery, shares


def test_a_switchback_changes_blocks_and_is_judged_at_its_end(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = services.advance(started(policy, TENTH, BACK, FULL, fleet=fleet), OTTO, WHY)
    schedule = delivery.blocks
    delivery, shares = through_blocks(delivery, fleet)
    assert shares == [float(each) for each in schedule]
    fleet.write(delivery)
    done = judge(delivery, later(delivery, 486))
    assert done.state == State.BAKING
    assert "4 pairs of blocks" in done.why
    shown = {
        f"{each.metric} {each.request_class}": each
        for each in results.read(done.results, stored_plan.read(done.plan))[-1].shown
    }
    assert shown["ttft warm"].word == "no worse"
    assert shown["ttft warm"].estimate == pytest.approx(0.0, abs=0.1)


def test_a_switchback_waits_for_late_answers_of_its_blocks(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = services.advance(started(policy, TENTH, BACK, FULL, fleet=fleet), OTTO, WHY)
    delivery, _ = through_blocks(delivery, fleet)
    last = delivery.generation - 1
    unended = {arm: {name: {cell: replace(one, n=one.n + 1) for cell, one in each.items()}
               for name, each in classes.items()}
               for arm, classes in cells(1_200, float(delivery.blocks[7]), seed=7).items()}  # fmt: skip
    fleet.write(delivery, unended, generation=last)
    fleet.write(delivery)
    waiting = judge(delivery, later(delivery, 486))
    assert waiting.state == State.STEP
    assert "answers of the blocks have not ended" in json.dumps(latest(waiting).findings)
    fleet.write(delivery, unended, generation=last)
    fleet.write(delivery)
    assert judge(waiting, later(delivery, 545)).state == State.BAKING


def test_an_inconclusive_switchback_pauses_and_continues_with_more_pairs(
    policy: Policy, pool: Pool, fleet: Fleet
) -> None:
    delivery = services.advance(started(policy, TENTH, BACK, FULL, fleet=fleet), OTTO, WHY)
    delivery, _ = through_blocks(delivery, fleet, requests=180, mix=(0.8, 0.12, 0.08))
    fleet.write(delivery)
    paused = judge(delivery, later(delivery, 486))
    assert paused.state == State.PAUSED
    assert paused.why.startswith("cannot tell after 4 pairs: ")
    arming = services.extend(paused, OTTO, WHY, 2)
    fleet.alive(arming, "off")
    going_on = judge(arming, later(delivery, 500))
    assert (going_on.state, going_on.block, len(going_on.blocks)) == (State.STEP, 8, 12)
    blocks = memory.load(going_on.memory).pools["demo"].blocks
    assert [block.total("n") > 0 for block in blocks] == [True] * 8 + [False]


def test_the_breaker_ends_a_switchback_at_once(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    delivery = services.advance(started(policy, TENTH, BACK, FULL, fleet=fleet), OTTO, WHY)
    while delivery.share == 0:
        fleet.write(delivery, cells(600, 0.0))
        delivery = judge(delivery, later(delivery, 60 * (delivery.block + 1) + 1))
    fleet.write(delivery, cells(600, 1.0, errors=(0.5, 0.0)))
    done = judge(delivery, later(delivery, 60 * delivery.block + 20))
    assert done.state == State.ABORTED
    assert "failed since the split began" in done.why


@pytest.mark.parametrize(("does", "state"), [("pause", State.PAUSED), ("abort", State.ABORTED)])
def test_a_pool_guard_does_what_the_plan_says(
    policy: Policy,
    pool: Pool,
    fleet: Fleet,
    does: str,
    state: str,
) -> None:
    guards = [{"metric": "ttft", "worse": 0.1, "fine": 0.25}, {**POOL_GUARD, "does": does}]
    delivery = started(policy, TENTH, FULL, fleet=fleet, guards=guards)
    late: dict[int, int] = {}
    for _ in range(40):
        sketch.add(late, 900.0)
    fleet.windows = {"demo": {"warm": Window(n=40, ttft=late)}}
    for seconds, expected in ((5, State.STEP), (11, state)):
        fleet.write(delivery, cells(400))
        delivery = judge(delivery, later(delivery, seconds))
        assert delivery.state == expected


def test_errors_after_promotion_roll_it_back(canary: Delivery, fleet: Fleet) -> None:
    baking = services.advance(canary, OTTO, WHY)
    for seconds, failed in ((0, 0), (20, 20)):
        fleet.windows = {"demo": {"warm": Window(n=100, ok=100 - failed, error=failed)}}
        fleet.alive(baking, "")
        done = judge(baking, later(baking, seconds))
    assert (done.state, done.policy.live) == (State.ROLLED_BACK, 3)
    assert "20 of 100 requests failed" in done.why


def test_errors_of_the_previous_version_roll_nothing_back(canary: Delivery, fleet: Fleet) -> None:
    baking = services.advance(canary, OTTO, WHY)
    fleet.windows = {"demo": {"warm": Window(n=100, ok=80, error=20)}}
    for seconds in (0, 20, 60):
        fleet.alive(baking, "")
        baking = judge(baking, later(baking, seconds))
        assert baking.state == State.BAKING


def test_limits_of_slow_come_from_the_receipts_of_live(policy: Policy, pool: Pool, fleet: Fleet) -> None:
    for number in range(60):
        receipt = Receipt(
            request_id=f"q{number}", at=0.0, pool="demo", version=1 if number < 50 else 9, outcome="ok",
            request_class="warm", prompt_tokens=1_000 + number, ttft_ms=100.0 + number,
        )  # fmt: skip
        fleet.client.xadd(redis_keys.RECEIPTS, {"r": codec.encode(receipt)})
    fleet.client.xadd(redis_keys.RECEIPTS, {"r": b"{"})
    delivery = started(policy, TENTH, FULL, fleet=fleet)
    assert set(delivery.slow) == {"warm"}
    value = json.loads(fleet.client.get(redis_keys.policy_key("demo")) or b"")
    assert value["rollout"]["slow"]["warm"] == delivery.slow["warm"]


def test_a_delivery_that_cannot_be_judged_does_not_stop_the_others(
    canary: Delivery, fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(step, "proposal", refuse)
    step.step()
    canary.refresh_from_db()
    assert canary.state == State.STEP
    assert canary.looks.count() == 1  # while arming


def test_old_looks_are_deleted_and_uneventful_ones_thinned(canary: Delivery) -> None:
    now = timezone.now()
    canary.looks.all().delete()
    for age, what, count in (
        (timedelta(days=31), Trigger.FAIL, 2),
        (timedelta(hours=2), Trigger.STAY, 24),
        (timedelta(hours=2), Trigger.PASS, 3),
        (timedelta(minutes=5), Trigger.STAY, 4),
    ):
        for _ in range(count):
            canary.looks.create(at=now - age, state=State.STEP, step=0, generation=1, proposal=what)
    step.prune(now.timestamp())
    assert canary.looks.filter(proposal=Trigger.PASS).count() == 3
    assert canary.looks.filter(proposal=Trigger.STAY).count() == 4 + 2
    assert not canary.looks.filter(proposal=Trigger.FAIL).exists()
    step.prune(now.timestamp())


def test_memory_written_by_another_version_is_discarded(canary: Delivery, fleet: Fleet) -> None:
    Delivery.objects.filter(pk=canary.pk).update(memory={"pools": 7})
    canary.refresh_from_db()
    fleet.write(canary, cells(400))
    assert judge(canary, later(canary, 5)).state == State.STEP


def test_ten_routers_are_judged_in_a_fifth_of_a_second(policy: Policy, pool: Pool, live_redis: redis.Redis) -> None:
    fleet = Fleet(live_redis, *(f"r{number}" for number in range(10)))
    delivery = started(policy, TENTH, FULL, fleet=fleet)
    fleet.write(delivery, cells(12_000))
    times = []
    for seconds in (5, 10, 15):
        began = time.thread_time()  # other processes must not count
        delivery = judge(delivery, later(delivery, seconds))
        times.append(time.thread_time() - began)
    assert min(times) <= 0.2


def test_the_control_worker_takes_the_step(canary: Delivery, fleet: Fleet) -> None:
    fleet.write(canary, cells(400))
    STEPS["deliveries.judge"].run()
    assert canary.looks.count() >= 1
    assert datetime.now(UTC).timestamp() - latest(canary).at.timestamp() < 30
