"""A calibration is recorded when it is requested, and later with its result."""

import asyncio
import time
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from fleet import jobs
from fleet.calibration import selectors, services
from fleet.calibration.measure import CannotCalibrate
from fleet.models import Calibration, Instance, InstanceEvent, Pool, State
from fleet.services import NotPossible
from fleet.tests.calibration.rows import age, instance, measure_traffic_well, measure_well
from router.contract.redis import redis_keys
from router.contract.redis.codec import encode
from router.contract.redis.receipt import Receipt

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, live_redis: redis.Redis) -> None:
    monkeypatch.setattr(services, "measure", measure_well)
    monkeypatch.setattr(services, "measure_traffic", measure_traffic_well)


def failing(error: Exception) -> Any:
    async def fail(*words: Any, **options: Any) -> Any:
        raise error

    return fail


def test_a_calibration_is_stored_with_the_settings_it_was_measured_on() -> None:
    instance()
    row = services.ask_for("chat-0", "ada", 30)
    assert (row.status, row.pool, row.kind, row.model, row.node) == ("queued", "chat", "vllm", "m", "local")
    assert services.perform(row.pk)
    row.refresh_from_db()
    assert (row.status, row.config_hash) == ("done", Instance.objects.get().config_hash)
    assert row.constants["weights_s"] > 0
    assert row.limits["kv_blocks"] == 1024
    assert row.n == sum(point["n"] for point in row.points)
    assert row.notes == ["others ran too"]
    assert InstanceEvent.objects.get().text.startswith("calibrated: error ")


def test_a_newer_calibration_replaces_the_older_one_which_stays_as_history() -> None:
    instance()
    rows = [services.ask_for("chat-0", "ada")]
    services.perform(rows[0].pk)
    rows.append(services.ask_for("chat-0", "ada"))
    services.perform(rows[1].pk)
    assert selectors.newest("chat-0") == rows[1]
    assert Calibration.objects.count() == 2


def test_a_failed_calibration_leaves_the_older_one_in_force_and_gives_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    instance()
    good = services.ask_for("chat-0", "ada")
    services.perform(good.pk)
    monkeypatch.setattr(services, "measure", failing(CannotCalibrate("2 requests run on chat-0")))
    bad = services.ask_for("chat-0", "ada")
    assert not services.perform(bad.pk)
    assert selectors.newest("chat-0") == good
    last = selectors.last_asked("chat-0")
    assert last is not None
    assert (last.status, last.cause) == ("failed", "2 requests run on chat-0")
    assert InstanceEvent.objects.first().text == "not calibrated: 2 requests run on chat-0"  # type: ignore[union-attr]


def test_an_internal_error_is_a_failure_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "measure", failing(ZeroDivisionError("oh")))
    instance()
    row = services.ask_for("chat-0", "ada")
    assert not services.perform(row.pk)
    row.refresh_from_db()
    assert row.cause == "ZeroDivisionError: oh"


def test_a_calibration_fails_if_its_instance_is_gone() -> None:
    instance()
    row = services.ask_for("chat-0", "ada")
    Instance.objects.all().delete()
    assert not services.perform(row.pk)
    row.refresh_from_db()
    assert row.cause == "chat-0 is gone"


def test_a_second_message_for_the_same_calibration_does_nothing() -> None:
    instance()
    row = services.ask_for("chat-0", "ada")
    assert services.perform(row.pk)
    assert not services.perform(row.pk)


def test_a_second_calibration_at_once_is_refused() -> None:
    instance()
    services.ask_for("chat-0", "ada")
    with pytest.raises(NotPossible, match="is already being calibrated"):
        services.ask_for("chat-0", "bob")


def test_a_calibration_whose_worker_died_allows_another() -> None:
    instance()
    lost = services.ask_for("chat-0", "ada", 30)
    jobs.claim(Calibration, lost.pk)
    Calibration.objects.update(heartbeat_at=timezone.now() - timedelta(seconds=jobs.LOST_S + 1))
    services.ask_for("chat-0", "bob")
    lost.refresh_from_db()
    assert (lost.status, lost.cause) == ("failed", "worker lost: no heartbeat for 61 s")


def measuring(act: Any) -> Any:
    """Return a measurement that continues until it is stopped, after `act`."""

    async def measure(*words: Any, **options: Any) -> Any:
        act(words)
        await asyncio.sleep(30)

    return measure


def test_a_cancelled_calibration_stops_within_a_second_and_allows_another(monkeypatch: pytest.MonkeyPatch) -> None:
    instance()
    row = services.ask_for("chat-0", "ada")
    monkeypatch.setattr(jobs, "BEAT_S", 0.05)
    beats: list[str] = []

    def beat(self: jobs.Heartbeat, **progress: Any) -> None:
        if progress["step"]:
            services.cancel(row, "bob")
        beats.append(progress["step"])
        write(self, **progress)

    write = jobs.Heartbeat.beat
    monkeypatch.setattr(jobs.Heartbeat, "beat", beat)
    monkeypatch.setattr(services, "measure", measuring(lambda words: words[2]("round 1 of at most 9: 14 loads")))
    began = time.monotonic()
    assert not services.perform(row.pk)
    assert time.monotonic() - began < 20  # the measurement would take 30 s
    row.refresh_from_db()
    assert (row.status, row.cause, row.step) == ("cancelled", "cancelled by bob", "")
    assert beats[-1] == "round 1 of at most 9: 14 loads"
    assert InstanceEvent.objects.get().text == "not calibrated: cancelled by bob"
    assert services.ask_for("chat-0", "bob").pk != row.pk


def test_an_ended_calibration_cannot_be_cancelled() -> None:
    instance()
    row = services.ask_for("chat-0", "ada")
    services.perform(row.pk)
    assert not services.cancel(row, "bob")
    row.refresh_from_db()
    assert row.status == "done"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"state": State.LOADING, "reason": "reads weights"},
            r"chat-0 is loading \(reads weights\): to be measured it must be ready",
        ),
        ({"state": State.STOPPED}, "chat-0 is stopped: to be measured it must be ready or drained"),
        ({"state": State.DRAINING, "asleep": 1}, "chat-0 is asleep: wake it first"),
        ({"url": ""}, "it must be ready"),
    ],
)
def test_an_instance_that_is_not_ready_is_not_measured(fields: dict[str, Any], says: str) -> None:
    instance(**fields)
    with pytest.raises(NotPossible, match=says):
        services.ask_for("chat-0", "ada")
    assert not Calibration.objects.exists()


def test_a_drained_instance_can_be_measured() -> None:
    instance(state=State.DRAINING)
    assert services.perform(services.ask_for("chat-0", "ada").pk)


def test_a_store_cannot_be_measured() -> None:
    made = instance()
    Instance.objects.update(config={**made.config, "kind": "sim-store"})
    with pytest.raises(NotPossible, match="serves no requests"):
        services.ask_for("chat-0", "ada")


@pytest.mark.parametrize("seconds", [1, 10_000])
def test_the_time_of_a_sweep_is_limited(seconds: float) -> None:
    instance()
    with pytest.raises(NotPossible, match="allowed: 5 to 3600"):
        services.ask_for("chat-0", "ada", seconds)


def test_a_pool_uses_its_newest_calibration_with_equal_settings_or_else_the_newest() -> None:
    made = instance()
    rows = []
    for digest in (made.config_hash, "other"):
        Instance.objects.update(config_hash=digest)
        rows.append(services.ask_for("chat-0", "ada"))
        services.perform(rows[-1].pk)
    assert selectors.of_pool(made.pool) == rows[0]
    Pool.objects.update(engine={"max_num_seqs": 4})
    assert selectors.of_pool(Pool.objects.get()) == rows[1]
    Pool.objects.update(model="another")
    assert selectors.of_pool(Pool.objects.get()) is None


def test_a_calibration_is_stale_when_it_is_old_or_the_settings_have_changed() -> None:
    made = instance()
    row = services.ask_for("chat-0", "ada")
    services.perform(row.pk)
    row.refresh_from_db()
    assert selectors.stale(row, made.pool, timezone.now()) == ()
    age(row, days=8)
    row.refresh_from_db()
    Pool.objects.update(engine={"max_num_seqs": 4})
    assert selectors.stale(row, Pool.objects.get(), timezone.now()) == (
        "the calibration is 8 days old",
        "the engine's settings have changed since the calibration",
    )


def write_receipt(live_redis: redis.Redis, at: float, instance: str, **fields: Any) -> None:
    receipt = Receipt(request_id=str(at), at=at, instance=instance, **fields)
    live_redis.xadd(redis_keys.RECEIPTS, {"r": encode(receipt)})


def test_traffic_counts_from_one_minute_after_the_start_of_the_process(live_redis: redis.Redis) -> None:
    ready_at = timezone.now()
    instance(ready_at=ready_at)
    for after_s, name in ((-10, "chat-0"), (59, "chat-0"), (61, "chat-0"), (70, "chat-1"), (80, "chat-0")):
        write_receipt(live_redis, ready_at.timestamp() + after_s, name)
    write_receipt(live_redis, ready_at.timestamp() + 90, "chat-1", prefill_instance="chat-0")
    sweep = services.ask_for("chat-0", "ada")
    assert services.perform(sweep.pk)
    row = services.ask_for("chat-0", "ada", source="traffic")
    assert services.perform(row.pk)
    row.refresh_from_db()
    assert (row.status, row.source, row.notes) == ("done", "traffic", ["3 receipts, 1 starts"])
    assert (row.held_out["n"], row.held_out["ttft_mean"]) == (200, 0.024)
    assert row.constants["api_s_per_token"] == 1.1e-6
    assert selectors.newest("chat-0") == row


def test_traffic_without_redis_is_a_failure_with_its_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*words: Any) -> Any:
        raise redis.ConnectionError("connection refused")

    monkeypatch.setattr(services, "read_receipts", away)
    instance()
    row = services.ask_for("chat-0", "ada", source="traffic")
    assert not services.perform(row.pk)
    row.refresh_from_db()
    assert "connection refused" in row.cause
