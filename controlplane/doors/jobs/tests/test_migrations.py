"""Jobs of an earlier release keep what they hold, forwards and backwards."""

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

pytestmark = pytest.mark.django_db(transaction=True)


def migrate(*targets: tuple[str, str | None]) -> Any:
    executor = MigrationExecutor(connection)
    executor.migrate(list(targets))
    known = [target for target in targets if target[1]]
    return MigrationExecutor(connection).loader.project_state(known).apps


def latest() -> list[tuple[str, str]]:
    return MigrationExecutor(connection).loader.graph.leaf_nodes()


@pytest.fixture(autouse=True)
def back_to_the_latest() -> Any:
    yield
    migrate(*latest())


def calibration(apps: Any, instance: str, status: str, **values: Any) -> Any:
    about = {"pool": "chat", "kind": "vllm", "model": "m", "config_hash": "c", "actor": "ada", "seconds": 30}
    return apps.get_model("fleet", "Calibration").objects.create(instance=instance, status=status, **about, **values)


def test_a_calibration_keeps_its_results_and_a_running_one_gets_a_heartbeat() -> None:
    old = migrate(("fleet", "0006_calibration"))
    calibration(old, "chat-0", "done", constants={"api_s": 0.1}, n=48)
    calibration(old, "chat-1", "running")
    new = migrate(("fleet", "0007_calibration_is_a_job")).get_model("fleet", "Calibration").objects
    done, running = new.get(instance="chat-0"), new.get(instance="chat-1")
    assert (done.status, done.constants, done.n, done.anyway) == ("done", {"api_s": 0.1}, 48, False)
    assert done.heartbeat_at is None
    assert running.started_at == running.asked_at
    assert running.heartbeat_at is not None


def test_back_in_the_earlier_release_a_cancelled_calibration_has_failed() -> None:
    new = migrate(("fleet", "0007_calibration_is_a_job"))
    calibration(new, "chat-0", "cancelled", cause="cancelled by ada")
    old = migrate(("fleet", "0006_calibration")).get_model("fleet", "Calibration").objects.get()
    assert (old.status, old.cause) == ("failed", "cancelled by ada")


def test_a_running_experiment_gets_a_heartbeat() -> None:
    old = migrate(("experiments", "0001_initial"))
    values = {"pacing": "timestamps", "load_factor": 1, "duration_s": 60, "time_scale": 1, "seeds": [1], "arms": []}
    model = old.get_model("experiments", "Experiment")
    for status in ("queued", "running", "done"):
        model.objects.create(name=status, trace="t", pool="demo", actor="ada", status=status, **values)
    new = migrate(("experiments", "0002_experiment_is_a_job")).get_model("experiments", "Experiment").objects
    assert [row.name for row in new.exclude(heartbeat_at=None)] == ["running"]


def test_a_trace_keeps_its_row_when_it_gets_an_app_of_its_own() -> None:
    old = migrate(("experiments", "0002_experiment_is_a_job"), ("traces", None)).get_model("experiments", "Trace")
    made = old.objects.create(name="mine.jsonl", format="mooncake", source="upload", sha256="a", bytes=3)
    new = migrate(("experiments", "0003_trace_has_its_own_app")).get_model("traces", "Trace")
    assert [(row.pk, row.name, row.bytes) for row in new.objects.all()] == [(made.pk, "mine.jsonl", 3)]
    again = migrate(("experiments", "0002_experiment_is_a_job"), ("traces", None)).get_model("experiments", "Trace")
    assert again.objects.get().name == "mine.jsonl"
