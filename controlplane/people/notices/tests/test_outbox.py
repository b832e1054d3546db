"""A notice is committed together with its event, or not at all."""

import pytest
from django.db import transaction

from controlplane.people.audit.services import Actor
from controlplane.people.notices import services
from controlplane.people.notices.events import EVENTS, choices, matches
from controlplane.people.notices.models import Notice
from fleet.models import InstanceEvent, Pool
from router.contract.redis import codec, redis_keys
from router.contract.redis.fleet_status import FleetEvent
from router.contract.values.problem import InvalidInput

OTTO = Actor("user", "otto")


def test_each_subscribed_channel_gets_a_notice(make_channel) -> None:
    make_channel("all")
    make_channel("deliveries", events=["delivery.*"])
    make_channel("aborts", events=["delivery.aborted"])
    make_channel("off", enabled=False)
    services.notify("delivery.aborted", "policy default v44", "Heavy TTFT is worse.", {"step": 2})
    services.notify("policy.published", "policy default v45", "why")
    got = list(Notice.objects.order_by("pk").values_list("channel__name", "event", "facts"))
    assert sorted(got, key=str) == sorted(
        [
            ("all", "delivery.aborted", {"step": 2}),
            ("deliveries", "delivery.aborted", {"step": 2}),
            ("aborts", "delivery.aborted", {"step": 2}),
            ("all", "policy.published", {}),
        ],
        key=str,
    )


def test_the_notice_is_rolled_back_with_the_callers_transaction(make_channel, live_redis) -> None:
    make_channel()

    def fail() -> None:
        with transaction.atomic():
            services.notify("delivery.aborted", "policy default v44", "why")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert not Notice.objects.exists()
    assert not live_redis.exists(redis_keys.EVENTS)


def test_the_commit_adds_a_mark_to_the_charts(db, live_redis, django_capture_on_commit_callbacks) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        services.notify("delivery.aborted", "policy default v44", "Heavy TTFT is worse.", actor="judge")
    ((_, fields),) = live_redis.xrange(redis_keys.EVENTS)
    event = codec.decode(FleetEvent, fields[b"e"])
    assert (event.kind, event.subject, event.text) == ("delivery.aborted", "policy default v44", "Heavy TTFT is worse.")
    assert event.actor == "judge"


def test_without_redis_the_notice_is_stored(make_channel, redis_away, django_capture_on_commit_callbacks) -> None:
    make_channel()
    with django_capture_on_commit_callbacks(execute=True):
        services.notify("delivery.aborted", "policy default v44", "why")
    assert Notice.objects.count() == 1


def test_an_unknown_event_is_a_programming_error(db) -> None:
    with pytest.raises(ValueError, match=r"unknown event delivery\.exploded; known: "):
        services.notify("delivery.exploded", "policy default v44", "why")


def test_every_name_for_subscriptions_matches_an_event() -> None:
    for choice in choices():
        assert any(matches([choice], event) for event in EVENTS)
    assert not matches(["delivery.*"], "policy.published")
    assert not matches([], "policy.published")


def test_a_note_is_in_the_pools_history_on_the_charts_and_in_the_outbox(
    make_channel, live_redis, django_capture_on_commit_callbacks
) -> None:
    pool = Pool.objects.create(name="chat")
    make_channel(events=["note.written"])
    with django_capture_on_commit_callbacks(execute=True):
        services.write_note(pool, "  we change the switch  ", OTTO)
    event = InstanceEvent.objects.get()
    assert (event.pool, event.kind, event.text, event.actor) == ("chat", "note", "we change the switch", "otto")
    assert Notice.objects.get().text == "otto: we change the switch"
    assert live_redis.xlen(redis_keys.EVENTS) == 1


@pytest.mark.parametrize("text", ["", "   ", "x" * 501])
def test_the_length_of_a_note_is_limited(db, text) -> None:
    with pytest.raises(InvalidInput, match="1 to 500 characters"):
        services.write_note(Pool.objects.create(name="chat"), text, OTTO)
