"""`manage.py calibrate`, as used at a terminal."""

import re
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command

from controlplane.people.audit.models import AuditEntry
from fleet.calibration import services
from fleet.calibration.measure import CannotCalibrate
from fleet.calibration.streamed_request import NotStreamed
from fleet.models import Calibration, State
from fleet.tests.calibration.rows import instance, measure_traffic_well, measure_well

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch, live_redis: redis.Redis) -> None:
    monkeypatch.setattr(services, "measure", measure_well)
    monkeypatch.setattr(services, "measure_traffic", measure_traffic_well)


def calibrate(*words: str) -> str:
    out = StringIO()
    call_command("calibrate", *words, stdout=out)
    return out.getvalue()


def test_the_command_warns_of_its_load_and_prints_measured_beside_fitted_times() -> None:
    instance()
    said = calibrate("chat-0", "--seconds", "30", "--reason", "new driver")
    assert said.startswith("chat-0 is measured with test requests for up to 30 s")
    assert "TTFT ms    fitted   TPOT ms    fitted" in said
    assert re.search(r"^ +1 +256 +3 +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d +\d+\.\d\d$", said, re.M)
    assert re.search(r"^ +32 +1024 +3 +– +– +\d+\.\d\d +\d+\.\d\d$", said, re.M)
    assert re.search(r"^Smallest step: \d", said, re.M)
    assert re.search(r"^error \d\.\d % TTFT, \d\.\d % TPOT, n = 48$", said, re.M)
    assert said.endswith("note: others ran too\n")
    entry = AuditEntry.objects.get()
    assert (entry.action, entry.subject, entry.reason) == ("instance.calibrate", "chat-0", "new driver")
    assert Calibration.objects.get().actor == entry.actor_name


def test_an_unknown_instance_is_refused_with_the_known_ones() -> None:
    instance()
    with pytest.raises(CommandError, match="no instance is named chat-9; there are: chat-0"):
        calibrate("chat-9")


def test_an_instance_that_is_not_ready_is_not_measured() -> None:
    instance(state=State.LOADING)
    with pytest.raises(CommandError, match="chat-0 is loading: to be measured it must be ready"):
        calibrate("chat-0")
    assert not AuditEntry.objects.exists()


@pytest.mark.parametrize(
    "error",
    [CannotCalibrate("3 requests run on chat-0 and would distort it"), NotStreamed("the engine does not stream")],
)
def test_a_failed_calibration_is_one_clear_line(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    async def fail(*words: Any, **options: Any) -> Any:
        raise error

    monkeypatch.setattr(services, "measure", fail)
    instance()
    with pytest.raises(CommandError, match=f"^chat-0: {error}"):
        calibrate("chat-0")


def test_the_flag_anyway_reaches_the_worker_that_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []

    async def measure(*words: Any, anyway: bool) -> Any:
        told.append(anyway)
        return await measure_well()

    monkeypatch.setattr(services, "measure", measure)
    instance()
    calibrate("chat-0", "--anyway")
    calibrate("chat-0")
    assert told == [True, False]


def test_a_calibration_from_traffic_sends_nothing_and_prints_the_held_out_errors() -> None:
    instance()
    said = calibrate("chat-0", "--from-traffic")
    assert said.startswith("chat-0 is calibrated with the requests that routers recorded\n")
    assert "TPOT ms" not in said
    assert "Held out: mean TTFT: +2.4 %\nHeld out: TTFT p99: −5.1 %\nHeld out: mean TPOT: +1.7 %" in said
    assert "Calibrated for requests at once: 1 to 24\n" in said
    assert AuditEntry.objects.get().after == {"seconds": 120.0, "source": "traffic"}
