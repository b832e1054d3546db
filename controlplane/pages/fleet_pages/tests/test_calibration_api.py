"""Calibrations over REST, as scripts of operators request them and wait for them."""

from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.people.audit.models import AuditEntry
from fleet import tasks
from fleet.calibration import services
from fleet.models import Calibration, Pool, State
from fleet.tests.calibration.rows import instance, measure_traffic_well, measure_well

pytestmark = pytest.mark.django_db
PATH = "/api/v1/instances/chat-0"


@pytest.fixture(autouse=True)
def sent(monkeypatch: pytest.MonkeyPatch, live_redis: redis.Redis) -> list[Any]:
    """Collects the tasks that would be queued."""
    found: list[Any] = []
    monkeypatch.setattr(services, "measure", measure_well)
    monkeypatch.setattr(services, "measure_traffic", measure_traffic_well)
    monkeypatch.setattr(
        "controlplane.celery.app.send_task", lambda name, args, queue: found.append((name, args, queue))
    )
    return found


def ask(client: Client, **body: Any) -> Any:
    return client.post(f"{PATH}/calibrate", body, content_type="application/json")


def test_a_calibration_is_accepted_performed_by_the_nodes_worker_and_read(operator: Client, sent: list[Any]) -> None:
    instance(node="gpu-1")
    answer = ask(operator, seconds=30, reason="new driver", anyway=True)
    assert answer.status_code == 202, answer.content
    assert answer.json()["status"] == "queued"
    assert sent == [("fleet.calibrate", [answer.json()["id"]], "node.gpu-1")]
    assert AuditEntry.objects.get().reason == "new driver"
    tasks.calibrate(*sent[0][1])
    read = operator.get(f"{PATH}/calibration").json()
    assert read["measured"]["status"] == "done"
    assert read["measured"]["constants"]["api_s"] > 0
    assert read["measured"]["points"][0]["concurrency"] == 1
    assert read["stale"] == []
    assert read["last"] == read["measured"]


def test_a_change_of_settings_makes_a_calibration_stale(operator: Client, sent: list[Any]) -> None:
    instance()
    ask(operator)
    tasks.calibrate(*sent[0][1])
    Pool.objects.update(engine={"max_num_seqs": 4})
    read = operator.get(f"{PATH}/calibration").json()
    assert read["stale"] == ["the engine's settings have changed since the calibration"]


def test_an_instance_without_a_node_is_measured_by_the_control_worker(operator: Client, sent: list[Any]) -> None:
    instance(node="")
    ask(operator)
    assert sent[0][2] == "control"


def test_a_waiting_calibration_is_listed_before_any_is_measured(operator: Client) -> None:
    instance()
    ask(operator)
    read = operator.get(f"{PATH}/calibration").json()
    assert (read["measured"], read["last"]["status"]) == (None, "queued")


def test_an_unmeasured_instance_is_not_found_and_says_how_to_measure_it(operator: Client) -> None:
    instance()
    answer = operator.get(f"{PATH}/calibration")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "chat-0 has not been calibrated: POST /api/v1/instances/chat-0/calibrate"


def test_an_unknown_instance_is_not_found(operator: Client) -> None:
    assert ask(operator).status_code == 404


def test_an_instance_that_cannot_be_measured_is_a_conflict(operator: Client, sent: list[Any]) -> None:
    instance(state=State.LOADING)
    answer = ask(operator)
    assert answer.status_code == 409
    assert "it must be ready" in answer.json()["detail"]
    assert sent == []


def test_seconds_beyond_the_limits_are_refused(operator: Client) -> None:
    instance()
    assert ask(operator, seconds=1).status_code == 422


def test_a_viewer_can_only_read(viewer: Client) -> None:
    instance()
    assert ask(viewer).status_code == 403
    assert viewer.get(f"{PATH}/calibration").status_code == 404
    assert not Calibration.objects.exists()


def test_a_waiting_or_running_calibration_is_cancelled(operator: Client, sent: list[Any]) -> None:
    instance()
    ask(operator)
    answer = operator.post(f"{PATH}/calibration/cancel")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert AuditEntry.objects.first().action == "instance.cancel_calibration"  # type: ignore[union-attr]
    tasks.calibrate(*sent[0][1])
    assert Calibration.objects.get().cause == "cancelled by operator-cast"
    again = operator.post(f"{PATH}/calibration/cancel")
    assert again.status_code == 409
    assert again.json()["detail"] == "chat-0 is not being calibrated: there is nothing to cancel"


def test_a_viewer_cancels_nothing(viewer: Client) -> None:
    instance()
    assert viewer.post(f"{PATH}/calibration/cancel").status_code == 403


def test_a_fit_to_traffic_reports_its_errors_on_held_out_requests(operator: Client, sent: list[Any]) -> None:
    instance()
    assert ask(operator, source="traffic").json()["source"] == "traffic"
    tasks.calibrate(*sent[0][1])
    read = operator.get(f"{PATH}/calibration").json()["measured"]
    assert read["held_out"] == {
        "n": 200,
        "ttft": 0.08,
        "tpot": 0.03,
        "ttft_mean": 0.024,
        "ttft_p99": -0.051,
        "tpot_mean": 0.017,
        "e2e_mean": 0.02,
        "blocks": 4,
    }
    assert read["load_range"] == {"in_flight": [1, 24], "new_tokens": [90, 12_000]}
    assert read["limits"]["async_scheduling"] is True
    assert read["points"] == []


def test_another_source_is_refused(operator: Client) -> None:
    instance()
    answer = ask(operator, source="hearsay")
    assert answer.status_code == 422
    assert "source" in answer.content.decode()
