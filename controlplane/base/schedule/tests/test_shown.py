"""The page Nodes, `doctor` and /metrics show which worker leads and which step is late."""

import time

import pytest
import redis
from django.contrib.auth.models import User
from django.test import Client

from controlplane.base.schedule import reports
from controlplane.base.schedule.lease import Leadership
from controlplane.base.schedule.workers import control_workers
from controlplane.doors import doctor
from controlplane.testing import api_caller
from router.contract.redis.fleet_status import StepReport
from router.contract.redis.staleness import STEP_LATE_S


def report(age_s: float, error: str = "", every_s: float = 1.0) -> StepReport:
    at = time.time() - age_s
    return StepReport(at=at, every_s=every_s, took_s=0.25, what="starting instances", worker="control@a", error=error)


@pytest.fixture
def leader(db: None) -> Leadership:
    made = Leadership("control@a")
    made.step()
    for name in ("control@a", "control@b"):
        reports.tell_worker(name)
    return made


def test_the_page_nodes_names_who_leads_and_who_stands_by(leader: Leadership, vera_client: Client) -> None:
    page = vera_client.get("/fleet/nodes/").content.decode()
    assert page.index("control@a") < page.index("leads") < page.index("control@b") < page.index("stands by")


def test_the_page_nodes_reports_that_no_control_worker_runs(db: None, vera_client: Client) -> None:
    assert "No control worker is there" in vera_client.get("/fleet/nodes/").content.decode()


def test_without_redis_only_the_leader_is_known(leader: Leadership, redis_away: None) -> None:
    assert [(worker.name, worker.text) for worker in control_workers()] == [("control@a", "no heartbeat")]


def test_doctor_says_who_leads_and_who_stands_by(leader: Leadership) -> None:
    reports.write("fleet.reconcile", report(2))
    found = doctor.control_workers()
    assert (found.good, found.text) == (True, "control@a leads, control@b stands by")


def test_doctor_names_a_late_step_and_why(leader: Leadership) -> None:
    reports.write("fleet.reconcile", report(40, "OperationalError: database is locked"))
    found = doctor.control_workers()
    assert not found.good
    assert found.text.endswith("; starting instances is late (OperationalError: database is locked)")


def test_doctor_says_that_no_control_worker_runs(db: None) -> None:
    assert "no control worker runs" in doctor.control_workers().text


def test_doctor_leaves_it_to_another_check_to_report_that_redis_is_unreachable(db: None, redis_away: None) -> None:
    assert doctor.control_workers().good


def test_a_leader_that_has_ended_no_longer_counts(leader: Leadership, live_redis: redis.Redis) -> None:
    live_redis.zrem("weir:control-workers", "control@a")
    found = doctor.control_workers()
    assert (found.good, found.text) == (False, "nobody leads, control@b stands by")


def test_metrics_report_who_leads_and_when_each_step_last_ran(leader: Leadership, ada: User) -> None:
    reports.write("fleet.reconcile", report(40))
    answer = Client().get("/metrics", headers={"authorization": f"Bearer {api_caller(ada).token}"})
    lines = answer.content.decode().splitlines()
    assert 'weir_control_leader{worker="control@a"} 1.0' in lines
    (last,) = (
        line for line in lines if line.startswith('weir_step_last_run_timestamp_seconds{step="fleet.reconcile"}')
    )
    assert 39 < time.time() - float(last.split()[-1]) < 120
    assert 'weir_step_duration_seconds{step="fleet.reconcile"} 0.25' in lines


@pytest.mark.parametrize(
    ("age_s", "every_s", "late"),
    [(STEP_LATE_S - 1, 1.0, False), (STEP_LATE_S + 1, 1.0, True), (100.0, 60.0, False), (200.0, 60.0, True)],
)
def test_a_step_is_late_after_some_of_its_periods_but_never_within_seconds(
    age_s: float, every_s: float, late: bool
) -> None:
    assert report(age_s, every_s=every_s).is_late(time.time()) is late
