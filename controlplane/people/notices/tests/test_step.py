"""Sending: at least once, with retries, and safe against kill -9."""

import json
import threading
from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.people.notices import services, step
from controlplane.people.notices.models import Cursor, Notice, Status
from controlplane.people.notices.senders import signing
from controlplane.people.notices.step import CLAIM, GIVEN_UP_AFTER, SETTLED, claim, collect_fleet_events
from controlplane.people.notices.tests.conftest import ADA
from fleet.models import InstanceEvent

TEXT = "Heavy TTFT is 1.21 times as high."


@pytest.fixture
def notice(channel) -> Notice:
    services.notify("delivery.aborted", "policy default v44", TEXT, {"estimate": 1.21})
    return Notice.objects.get()


def send(after: timedelta = timedelta(0)) -> int:
    return step.step(timezone.now() + after)


def state(notice: Notice) -> Notice:
    notice.refresh_from_db()
    return notice


def test_a_webhook_receives_the_signed_event(notice, receiver) -> None:
    assert send() == 1
    ((headers, body),) = receiver.got
    assert json.loads(body) == {
        "type": "delivery.aborted",
        "timestamp": notice.at.isoformat(),
        "sequence": notice.pk,
        "data": {"subject": "policy default v44", "text": TEXT, "facts": {"estimate": 1.21}},
    }
    at = int(headers["webhook-timestamp"])
    expected = signing.headers(notice.message_id, at, body, [notice.channel.secret])
    assert {name: headers[name] for name in expected} == expected
    assert headers["host"] == receiver.url.split("/")[2]
    assert (state(notice).status, notice.outcome, notice.attempts) == (Status.SENT, "204", 1)
    assert send() == 0


def test_during_a_rotation_both_secrets_sign(channel, receiver) -> None:
    old = channel.secret
    new = services.rotate_secret(channel, ADA)
    for after in (timedelta(0), timedelta(hours=25)):
        services.notify("delivery.aborted", "s", TEXT)
        send(after)
    (first, body), (later, _) = receiver.got
    expected = signing.headers(first["webhook-id"], int(first["webhook-timestamp"]), body, [new, old])
    assert first["webhook-signature"] == expected["webhook-signature"]
    assert " " not in later["webhook-signature"]


def test_a_fleet_event_that_cannot_be_sent_delays_no_other_notice(notice, receiver, monkeypatch) -> None:
    def fails(now):
        raise ValueError("strange")

    monkeypatch.setattr(step, "collect_fleet_events", fails)
    with pytest.raises(ValueError, match="strange"):
        send()
    assert state(notice).status == Status.SENT


def test_a_failure_is_retried_later_with_the_same_id(notice, receiver) -> None:
    receiver.status = 503
    send()
    assert (state(notice).status, notice.outcome) == (Status.WAITING, "the receiver answered 503")
    assert send() == 0
    receiver.status = 200
    assert send(timedelta(seconds=6)) == 1
    assert state(notice).status == Status.SENT
    assert {headers["webhook-id"] for headers, _ in receiver.got} == {notice.message_id}


@pytest.mark.slow
def test_retries_continue_for_a_day_and_then_end(notice, receiver) -> None:
    receiver.status = 500
    now, times = timezone.now(), []
    while state(notice).status == Status.WAITING:
        now = max(now, notice.due_at)
        step.step(now)
        times.append(now)
    assert notice.status == Status.GIVEN_UP
    assert timedelta(hours=22) < times[-1] - notice.at <= GIVEN_UP_AFTER
    assert 20 < len(times) < 40


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_is_not_followed(notice, receiver, status) -> None:
    receiver.status, receiver.headers = status, {"Location": receiver.url}
    send()
    assert len(receiver.got) == 1
    assert "redirects are not followed" in state(notice).outcome


def test_a_long_answer_is_not_read_to_its_end(notice, receiver) -> None:
    receiver.status, receiver.answer = 200, b"x" * 5_000_000
    send()
    assert state(notice).status == Status.SENT


def test_a_receiver_that_hangs_takes_the_time_limit_and_delays_no_other(notice, receiver, monkeypatch) -> None:
    monkeypatch.setattr(step, "SEND_S", 0.3)
    receiver.hold = threading.Event()
    send()
    assert (state(notice).status, notice.outcome) == (Status.WAITING, "no answer within 0.3 s")


def test_an_unreachable_receiver_is_reported_without_its_url(notice, settings) -> None:
    type(notice.channel).objects.update(url="http://127.0.0.1:1/hook?token=s3cret")
    send()
    assert state(notice).status == Status.WAITING
    assert "ConnectError" in notice.outcome
    assert "s3cret" not in notice.outcome


def test_no_connection_to_a_private_address_is_made(notice, receiver, settings) -> None:
    settings.NOTICE_NETWORKS = []
    send()
    assert receiver.got == []
    assert "127.0.0.1 is not public; WEIR_NOTICE_NETWORKS may allow" in state(notice).outcome


def test_the_sender_connects_to_the_address_that_was_checked(notice, receiver, monkeypatch) -> None:
    """The name is resolved only once, so changing its address after the check has no effect."""
    from router.contract.net import pinned_http

    asked = []

    async def resolve(host, port, reach):
        asked.append((host, port))
        return ["127.0.0.1"]

    monkeypatch.setattr(pinned_http, "resolve", resolve)
    port = receiver.url.split(":")[2].split("/")[0]
    type(notice.channel).objects.update(url=f"http://rebinding.invalid:{port}/hook")
    send()
    assert asked == [("rebinding.invalid", int(port))]
    assert receiver.got[0][0]["host"] == f"rebinding.invalid:{port}"


def test_only_one_of_two_processes_claims_a_notice(notice) -> None:
    now = timezone.now()
    assert [message.pk for message in claim(now)] == [notice.pk]
    assert claim(now) == []


def test_two_processes_that_saw_the_same_row_claim_it_once(notice, monkeypatch) -> None:
    now = timezone.now()
    seen = step._due(now)
    monkeypatch.setattr(step, "_due", lambda now: seen)
    assert len(claim(now)) == 1
    assert claim(now) == []


def test_a_notice_whose_sender_was_killed_is_sent_again(notice, receiver) -> None:
    claim(timezone.now())  # and the process dies
    assert send() == 0
    assert send(CLAIM + timedelta(seconds=1)) == 1
    assert state(notice).status == Status.SENT


def test_a_notice_that_kills_its_sender_every_time_is_abandoned_after_a_day(notice) -> None:
    now = timezone.now()
    claim(now)
    assert claim(now + GIVEN_UP_AFTER + timedelta(minutes=1)) == []
    assert (state(notice).status, notice.outcome) == (Status.GIVEN_UP, "not sent within 24 hours")


def test_a_first_attempt_is_made_even_after_a_day_without_a_worker(notice, receiver) -> None:
    assert send(timedelta(days=2)) == 1
    assert state(notice).status == Status.SENT


def test_one_channel_takes_only_part_of_a_step(channel, make_channel, receiver) -> None:
    for _ in range(step.PER_CHANNEL + 3):
        services.notify("delivery.aborted", "s", TEXT)
    make_channel("second", url=receiver.url, events=["policy.*"])
    services.notify("policy.published", "s", TEXT)
    names = [Notice.objects.get(pk=message.pk).channel.name for message in claim(timezone.now())]
    assert names.count("ops") == step.PER_CHANNEL
    assert names.count("second") == 1


def texts(receiver) -> list[str]:
    return [json.loads(body)["data"]["text"] for _, body in receiver.got]


def written(*names: str) -> None:
    for name in names:
        services.notify("delivery.aborted", "s", name)


def test_notices_of_a_channel_arrive_in_their_order(channel, receiver, monkeypatch) -> None:
    monkeypatch.setattr(step, "PER_CHANNEL", 5)
    written(*"abcdefg")
    assert [send(), send()] == [5, 2]
    assert texts(receiver) == list("abcdefg")
    sequences = [json.loads(body)["sequence"] for _, body in receiver.got]
    assert sequences == sorted(set(sequences))


def test_later_notices_wait_for_a_failing_notice_and_follow_it_in_order(channel, receiver) -> None:
    receiver.status = 503
    written("a", "b", "c")
    assert send() == 1
    receiver.status = 204
    assert send() == 0
    assert send(timedelta(seconds=6)) == 3
    assert texts(receiver) == ["a", "a", "b", "c"]
    assert [notice.attempts for notice in Notice.objects.order_by("pk")] == [2, 1, 1]


def test_after_three_failures_a_notice_is_overtaken_by_later_ones(channel, receiver) -> None:
    receiver.status = 503
    written("poison")
    now = timezone.now()
    for _ in range(step.HOLDS):
        step.step(now)
        now = Notice.objects.get().due_at
    receiver.status, receiver.got[:] = 204, []
    written("b", "c")
    assert step.step(now - timedelta(seconds=1)) == 2
    assert texts(receiver) == ["b", "c"]
    assert step.step(now) == 1
    assert texts(receiver) == ["b", "c", "poison"]


def test_a_channel_whose_receiver_hangs_delays_no_other(channel, make_channel, receiver, monkeypatch) -> None:
    monkeypatch.setattr(step, "SEND_S", 0.3)
    type(channel).objects.update(url="http://127.0.0.1:1/hook")
    written("a", "b")
    make_channel("second", url=receiver.url, events=["policy.*"])
    services.notify("policy.published", "s", "c")
    assert send() == 2
    assert texts(receiver) == ["c"]


def test_disabling_a_channel_drops_its_waiting_notices(notice) -> None:
    services.change_channel(notice.channel, services.ChannelEdit(enabled=False), ADA)
    assert (state(notice).status, notice.outcome) == (Status.GIVEN_UP, "the channel was disabled")


def test_a_channel_deleted_while_its_notice_is_sent_leaves_nothing(notice) -> None:
    services.delete_channel(notice.channel, ADA)
    step.store(notice.pk, "204", timezone.now())
    assert not Notice.objects.exists()


def test_an_unexpected_error_is_reported_only_by_its_type(notice) -> None:
    step.store(notice.pk, KeyError("https://x/s3cret"), timezone.now())
    assert state(notice).outcome == "failed: KeyError"


def test_old_notices_are_deleted_and_waiting_ones_kept(notice) -> None:
    late = timezone.now() + timedelta(days=31)
    assert step.forget_old(late) == 0
    step.store(notice.pk, "204", timezone.now())
    assert step.forget_old(late) == 1


def happened(kind: str, **names: str) -> None:
    InstanceEvent.objects.create(kind=kind, text="no heartbeat", at=timezone.now() - 2 * SETTLED, **names)


def test_failed_instances_and_silent_nodes_become_notices_once(channel) -> None:
    happened("failed", instance="chat-1", pool="chat")
    collect_fleet_events(timezone.now())  # earlier events are not sent
    happened("failed", instance="chat-0", pool="chat")
    happened("ready", instance="chat-0", pool="chat")
    happened("failed", instance="exp-1-0", pool="exp-1-2")
    happened("silent", node="gpu-1")
    for _ in range(2):
        collect_fleet_events(timezone.now())
    rows = list(Notice.objects.order_by("pk").values_list("event", "subject", "text"))
    assert rows == [
        ("instance.failed", "instance chat-0", "chat-0: no heartbeat"),
        ("node.silent", "node gpu-1", "gpu-1: no heartbeat"),
    ]


def test_an_event_waits_while_an_older_one_may_still_be_uncommitted(channel) -> None:
    collect_fleet_events(timezone.now())
    InstanceEvent.objects.create(kind="failed", instance="chat-0", pool="chat", text="x")
    collect_fleet_events(timezone.now())
    assert not Notice.objects.exists()
    collect_fleet_events(timezone.now() + 2 * SETTLED)
    assert Notice.objects.count() == 1


def test_of_two_processes_only_one_moves_the_cursor(channel, monkeypatch) -> None:
    collect_fleet_events(timezone.now())
    happened("failed", instance="chat-0", pool="chat")
    stale = Cursor.objects.get()
    collect_fleet_events(timezone.now())
    monkeypatch.setattr(Cursor.objects, "filter", _first_time(stale, Cursor.objects.filter))
    collect_fleet_events(timezone.now())
    assert Notice.objects.count() == 1


def _first_time(stale, real):
    """The first poll finds the row as it was before."""

    class Looked:
        @staticmethod
        def first():
            return stale

    looks = [Looked()]
    return lambda **where: looks.pop() if looks else real(**where)
