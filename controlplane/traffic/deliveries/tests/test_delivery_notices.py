"""Each transition becomes a notice in its transaction, and names who caused it."""

import pytest
from django.db import transaction

from controlplane.people.notices import services as notices
from controlplane.people.notices.models import Notice
from controlplane.people.notices.services import ChannelTerms
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, Trigger
from controlplane.traffic.deliveries.tests.conftest import ADA, OTTO, proposed
from controlplane.traffic.policies.errors import Conflict

pytestmark = pytest.mark.usefixtures("redis_away", "pool")


@pytest.fixture(autouse=True)
def channel(db):
    return notices.create_channel(
        "webhook", ChannelTerms(name="ops", url="https://example.com/x", events=["delivery.*"]), ADA
    )


def sent():
    return list(Notice.objects.order_by("pk").values_list("event", "text"))


def test_the_notices_of_a_delivery_name_who_caused_each_step(policy) -> None:
    row = services.start(proposed(policy), OTTO)
    row = move(row, TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
    services.abort(row, ADA, "answers are odd")
    assert sent() == [
        ("delivery.ready", "policy default v2: ready by otto: less prefill on warm instances"),
        ("delivery.arming", "policy default v2: arming by otto"),
        ("delivery.step", "policy default v2: step by weir"),
        ("delivery.aborted", "policy default v2: aborted by ada: answers are odd"),
    ]
    facts = Notice.objects.first().facts
    assert (facts["policy"], facts["version"], facts["base"], facts["by"]) == ("default", 2, 1, "ada")


def test_a_deliverys_marks_on_the_charts_are_short(policy, monkeypatch, django_capture_on_commit_callbacks) -> None:
    marks = []
    monkeypatch.setattr(notices, "announce", lambda *given: marks.append(given[2]))
    with django_capture_on_commit_callbacks(execute=True):
        row = move(services.start(proposed(policy), OTTO), TransitionRequest(Trigger.ARMED, Origin.SYSTEM))
        move(
            row,
            TransitionRequest(
                Trigger.FAIL, Origin.JUDGE, why="heavy TTFT × 1.52 (1.30–1.77); slow heavy requests: +9.1 points"
            ),
        )
    assert marks[2:] == ["default v2: shadow", "default v2: aborted: heavy TTFT × 1.52 (1.30–1.77)"]


def test_an_emergency_has_its_own_notice(policy) -> None:
    row = proposed(policy, approvals={"needed": 1})
    services.go_without(row, ADA, "prefill melts the GPUs")
    assert [event for event, _ in sent()] == ["delivery.proposed", "delivery.ready", "delivery.emergency"]
    assert sent()[-1][1].endswith("emergency by ada: prefill melts the GPUs")


def test_a_refused_or_rolled_back_transition_sends_no_notice(policy) -> None:
    row = proposed(policy)
    before = len(sent())
    with pytest.raises(Conflict):
        services.pause(row, OTTO)

    def fail() -> None:
        with transaction.atomic():
            services.abort(row, OTTO)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert len(sent()) == before
