"""Metrics of deliveries and notices, from the database."""

from datetime import timedelta

import pytest
from django.utils import timezone

from controlplane.doors.telemetry.tests.test_metrics import page, undocumented, values
from controlplane.people.notices import services as notices
from controlplane.people.notices.models import Notice, Status
from controlplane.people.notices.services import ChannelTerms
from controlplane.traffic.deliveries import services
from controlplane.traffic.deliveries.judge.findings import GuardFinding
from controlplane.traffic.deliveries.models import Look
from controlplane.traffic.deliveries.moving import TransitionRequest, move
from controlplane.traffic.deliveries.states import Origin, Trigger
from controlplane.traffic.deliveries.tests.conftest import CANARY, FULL, OTTO, WHY, proposed
from controlplane.traffic.policies.tests.conftest import ADA, policy, pool  # noqa: F401  (fixtures)

pytestmark = pytest.mark.usefixtures("redis_away", "pool")

SLOWER = GuardFinding(
    metric="ttft",
    verdict="inconclusive",
    text="",
    request_class="heavy",
    pool="demo",
    estimate=0.04,
    lower=-0.03,
    upper=0.12,
    n=(120, 2300),
)


@pytest.fixture
def running(policy):  # noqa: F811
    """A delivery in a canary step of 5 %."""
    row = proposed(policy, CANARY, FULL)
    for what, by in ((Trigger.START, Origin.PERSON), (Trigger.ARMED, Origin.SYSTEM)):
        row = move(row, TransitionRequest(what, by, OTTO, WHY))
    return row


def look(row, **more):
    fields = {"state": row.state, "step": row.step, "generation": row.generation, "proposal": "stay"}
    return Look.objects.create(delivery=row, **fields, **more)


def test_an_open_delivery_reports_its_step(running, vera):
    found = page(vera)
    assert values(found["weir_delivery_state"], policy="default") == [1]
    assert [sample.labels["state"] for sample in found["weir_delivery_state"]] == ["step"]
    assert values(found["weir_delivery_candidate"]) == [2]
    assert values(found["weir_delivery_step"]) == [1]
    assert values(found["weir_delivery_share"]) == [0.05]
    assert values(found["weir_delivery_shadow_share"]) == [0]
    assert 0 <= values(found["weir_delivery_state_seconds"])[0] < 60


def test_the_latest_look_is_shown_with_its_guards(running, vera):
    look(running, findings=[{"metric": "ttft", "class": "heavy", "verdict": "fine", "pool": "demo"}])
    arms = GuardFinding(metric="arms", verdict="fine", text="", pool="demo", estimate=0.05)
    look(
        running,
        findings=[SLOWER.as_dict(), arms.as_dict()],
        facts={"ms": 12.5},
        at=timezone.now() - timedelta(seconds=3),
    )
    found = page(vera)
    heavy = {"policy": "default", "pool": "demo", "metric": "ttft", "class": "heavy"}
    bounds = {sample.labels["bound"]: sample.value for sample in found["weir_delivery_difference"]}
    assert len(found["weir_delivery_difference"]) == 3
    assert bounds == {"lower": -0.03, "estimate": 0.04, "upper": 0.12}
    assert values(found["weir_delivery_verdict"], **heavy, verdict="inconclusive") == [1]
    assert values(found["weir_delivery_verdict"], metric="arms", verdict="fine") == [1]
    assert len(found["weir_delivery_verdict"]) == 2
    assert values(found["weir_delivery_requests"], **heavy, arm="candidate") == [120]
    assert values(found["weir_delivery_requests"], **heavy, arm="control") == [2300]
    assert values(found["weir_delivery_look_seconds"]) == [0.0125]


def test_a_silent_judge_is_visible_by_the_age_of_its_latest_look(running, vera):
    type(running).objects.update(state_at=timezone.now() - timedelta(hours=1))
    (age,) = values(page(vera)["weir_delivery_look_age_seconds"])
    assert age == pytest.approx(3600, abs=60)
    look(running, at=timezone.now() - timedelta(seconds=90))
    (age,) = values(page(vera)["weir_delivery_look_age_seconds"])
    assert age == pytest.approx(90, abs=30)


def test_a_delivery_that_is_not_judged_has_no_age_of_a_look(policy, vera):  # noqa: F811
    proposed(policy, CANARY, FULL)
    assert "weir_delivery_look_age_seconds" not in {name for name, samples in page(vera).items() if samples}


def test_ended_deliveries_are_counted_from_zero(running, vera):
    assert values(page(vera)["weir_delivery_ended"], policy="default", state="aborted") == [0]
    services.abort(running, OTTO)
    found = page(vera)
    assert values(found["weir_delivery_ended"], policy="default", state="aborted") == [1]
    assert found["weir_delivery_state"] == []


def test_a_channel_reports_its_unsent_notices(running, vera):
    row, _ = notices.create_channel("webhook", ChannelTerms(name="pager", url="https://example.com/x"), ADA)
    notices.enqueue("delivery.aborted", "s", "t")
    notices.enqueue("delivery.aborted", "s", "t")
    Notice.objects.filter(pk=Notice.objects.first().pk).update(status=Status.GIVEN_UP)
    Notice.objects.filter(status=Status.WAITING).update(at=timezone.now() - timedelta(minutes=5))
    found = page(vera)
    assert values(found["weir_notices_waiting"], channel=row.name) == [1]
    assert values(found["weir_notices_given_up"], channel=row.name) == [1]
    assert values(found["weir_notices_oldest_seconds"], channel=row.name)[0] == pytest.approx(300, abs=30)


def test_every_metric_is_documented(running, vera):
    look(running, findings=[SLOWER.as_dict()], facts={"ms": 1})
    notices.create_channel("webhook", ChannelTerms(name="pager", url="https://example.com/x"), ADA)
    names = [name for name in page(vera) if name.startswith(("weir_delivery", "weir_notices"))]
    assert len(names) > 12
    assert undocumented(names) == []
