"""The calibration on the page of an instance: the button, the measurement, and reasons to doubt it."""

import re
from typing import Any

import pytest
import redis
from django.test import Client

from fleet import tasks
from fleet.calibration import services
from fleet.models import Calibration, Instance, Pool, State
from fleet.tests.calibration.rows import age, instance, measure_traffic_well, measure_well

pytestmark = pytest.mark.django_db
PATH = "/fleet/instances/chat-0"


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch, live_redis: redis.Redis) -> list[Any]:
    """Collects the tasks that would be queued."""
    found: list[Any] = []
    monkeypatch.setattr(services, "measure", measure_well)
    monkeypatch.setattr(services, "measure_traffic", measure_traffic_well)
    monkeypatch.setattr("controlplane.celery.app.send_task", lambda name, args, queue: found.append(args))
    return found


def read(client: Client, path: str = f"{PATH}/") -> str:
    return text_of(client.get(path))


def text_of(answer: Any) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", answer.content.decode()).split())


def test_an_operator_measures_an_engine_and_reads_the_result(operator: Client, sent: list[Any]) -> None:
    instance()
    assert "Not measured. The twin needs one calibrated engine" in read(operator)
    answer = operator.post(f"{PATH}/calibrate", {"reason": "new driver"}, follow=True)
    assert "chat-0: calibration requested; it takes up to 120 s." in text_of(answer)
    assert "queued requested by operator-cast" in text_of(answer)
    tasks.calibrate(*sent[0])
    said = read(operator)
    assert re.search(r"Error \d.*? TTFT, \d.*? TPOT, n = 48", said)
    assert re.search(r"Smallest step \d", said)
    assert "others ran too" in said
    assert "stale" not in said


def test_a_calibration_before_a_change_of_settings_or_older_than_a_week_is_called_stale(
    operator: Client, sent: list[Any]
) -> None:
    instance()
    operator.post(f"{PATH}/calibrate")
    tasks.calibrate(*sent[0])
    age(Calibration.objects.get(), days=8)
    Pool.objects.update(engine={"max_num_seqs": 4})
    said = read(operator)
    assert "stale the calibration is 8 days old" in said
    assert "stale the engine's settings have changed since" in said.replace("&#x27;", "'")


def test_a_failed_calibration_shows_the_reason(operator: Client, sent: list[Any]) -> None:
    instance()
    operator.post(f"{PATH}/calibrate")
    Instance.objects.update(state=State.FAILED)
    tasks.calibrate(*sent[0])
    assert "failed chat-0 is failed: to be measured it must be ready or drained" in read(operator)


def test_a_waiting_calibration_is_cancelled_on_the_page(operator: Client) -> None:
    instance()
    assert "Cancel calibration" in text_of(operator.post(f"{PATH}/calibrate", follow=True))
    said = text_of(operator.post(f"{PATH}/calibration/cancel", follow=True))
    assert "chat-0: calibration cancelled." in said
    assert "cancelled by operator-cast" in said
    assert "Cancel calibration" not in said
    assert "nothing to cancel" in text_of(operator.post(f"{PATH}/calibration/cancel", follow=True))


def test_an_instance_that_cannot_be_measured_now_shows_the_reason(operator: Client, sent: list[Any]) -> None:
    instance(state=State.LOADING)
    answer = operator.post(f"{PATH}/calibrate", follow=True)
    assert "chat-0 is loading: to be measured it must be ready" in text_of(answer)
    assert sent == []


def test_an_engine_with_a_known_law_has_no_button_to_calibrate(operator: Client) -> None:
    instance()
    assert "Calibrate" in read(operator)
    Pool.objects.update(kind="sim", engine={})
    assert "Calibrat" not in read(operator)


def test_a_viewer_cannot_start_a_calibration(viewer: Client, sent: list[Any]) -> None:
    instance()
    assert viewer.post(f"{PATH}/calibrate").status_code == 403
    assert sent == []


def test_an_unknown_resource_is_not_found(operator: Client) -> None:
    assert operator.post("/fleet/instances/nobody-0/calibrate").status_code == 404


def test_an_operator_fits_the_twin_to_traffic_and_reads_the_held_out_errors(operator: Client, sent: list[Any]) -> None:
    instance()
    assert "Calibrate from traffic" in read(operator)
    answer = operator.post(f"{PATH}/calibrate-from-traffic", follow=True)
    assert "chat-0: calibration requested; it uses recorded requests." in text_of(answer)
    assert "; from recorded requests" in text_of(answer)
    tasks.calibrate(*sent[0])
    said = read(operator)
    assert "Held out: mean TTFT +2.4 % Held out: TTFT p99 −5.1 % Held out: mean TPOT +1.7 %" in said
    assert "Calibrated for requests at once 1 to 24 Calibrated for new tokens in a prompt 90 to 12,000" in said
    assert "Measured and fitted" not in said  # no sweep, no loads
