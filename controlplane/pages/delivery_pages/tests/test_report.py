"""Live and the wall show deliveries as lines read from Redis: the open ones, and aborts for ten minutes."""

import time
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.live.dashboard.frame import attention
from controlplane.live.dashboard.frame.build import FrameInputs, build_frame, delivery_text
from controlplane.pages.delivery_pages.report import report, shown
from controlplane.pages.delivery_pages.tests.values import finding
from controlplane.traffic.deliveries.models import Delivery, Look
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, Trigger
from controlplane.traffic.deliveries.tests.conftest import OTTO, WHY
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryLines
from router.contract.redis.published import FleetValue


@pytest.fixture
def running(live_redis, pool, delivery):
    for what, by in (
        (Trigger.START, Origin.PERSON),
        (Trigger.ARMED, Origin.SYSTEM),
        (Trigger.PASS, Origin.JUDGE),
    ):
        delivery = move(delivery, TransitionRequest(what, by, OTTO, WHY))
    Look.objects.create(
        delivery=delivery, state="step", step=1, generation=delivery.generation, findings=[finding().as_dict()]
    )
    return delivery


@pytest.fixture
def delivery(pool, policy):
    from controlplane.traffic.deliveries.tests.conftest import proposed

    return proposed(policy)


def test_the_line_is_stored_in_redis_and_expires(live_redis, running):
    report(timezone.now())
    found = codec.decode(DeliveryLines, live_redis.get(redis_keys.DELIVERIES))
    assert found is not None
    line = found.lines[0]
    assert (line.base, line.candidate, line.step, line.figure) == (
        "v1",
        "v2",
        "canary 5 %",
        "heavy 1.04× (0.97–1.12×)",
    )
    assert 0 < live_redis.ttl(redis_keys.DELIVERIES) <= redis_keys.DELIVERIES_TTL_S


def frame(value):
    fleets = {"demo": FleetValue(pool="demo", model="m", at=time.time(), instances=())}
    return build_frame(time.time(), FrameInputs(fleets=fleets, deliveries=value.lines))


def test_a_paused_line_says_first_that_it_is_paused_and_then_which_version_serves():
    line = {"base": "v1", "candidate": "v2", "figure": "", "state": "paused", "word": "paused"}
    assert delivery_text(line | {"step": "canary 5 %, live serves all"}) == "v1 → v2 canary 5 % paused, live serves all"
    assert delivery_text(line | {"step": ""}) == "v1 → v2 paused"


def test_the_frame_contains_the_text_of_the_line(running):
    assert frame(report(timezone.now()))["deliveries"][0]["text"] == ("v1 → v2 canary 5 % · heavy 1.04× (0.97–1.12×)")


def test_an_abort_stays_for_ten_minutes_and_needs_attention(running):
    move(running, TransitionRequest(Trigger.FAIL, Origin.JUDGE, why="heavy TTFT × 2"))
    now = timezone.now()
    found = frame(report(now))
    assert found["deliveries"][0]["text"].startswith("v1 → v2 aborted")
    items = [item for item in found["attention"] if item["rule"] == "delivery_waits"]
    assert [(item["severity"], item["reason"]) for item in items] == [(3, "aborted: heavy TTFT × 2")]
    assert shown(now + timedelta(minutes=9))
    assert not shown(now + timedelta(minutes=11))


def test_an_abort_by_a_person_names_that_person_and_is_not_an_alarm(running):
    move(running, TransitionRequest(Trigger.ABORT, Origin.PERSON, OTTO, "a typo in the limit"))
    (item,) = attention.delivery_waits(0.0, frame(report(timezone.now())))
    assert (item.severity, item.reason) == (1, f"aborted by {OTTO.name}: a typo in the limit")


def test_deliveries_that_ended_otherwise_stay_for_two_minutes(running):
    Delivery.objects.filter(pk=running.pk).update(state="withdrawn", ended_at=timezone.now())
    assert shown(timezone.now() + timedelta(minutes=1))
    assert not shown(timezone.now() + timedelta(minutes=3))


def test_a_pause_needs_attention_and_a_running_step_does_not(running):
    assert not list(attention.delivery_waits(0.0, frame(report(timezone.now()))))
    move(running, TransitionRequest(Trigger.PAUSE, Origin.PERSON, OTTO))
    found = list(attention.delivery_waits(0.0, frame(report(timezone.now()))))
    assert found == [(2, "default v1 → v2", "paused", f"/deliveries/{running.pk}/", ("demo",))]


def test_deliveries_of_other_pools_are_left_out(running):
    value = report(timezone.now())
    found = build_frame(time.time(), FrameInputs(deliveries=value.lines))
    assert found["deliveries"] == []
