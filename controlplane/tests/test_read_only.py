"""A database that can be read but not written: pages and REST can be read, a write is refused with an explanation
and changes nothing."""

import time
from collections.abc import Iterator

import orjson
import pytest
import redis
from django.contrib.auth.models import User
from django.db import InterfaceError, InternalError, OperationalError, connection
from django.test import Client

from controlplane.base.schedule.lanes import Schedule
from controlplane.common.database_trouble import AWAY, READ_ONLY, trouble_of
from controlplane.doors.api.tests import versioned_kinds as kinds
from controlplane.live.dashboard.frame import banners
from controlplane.live.dashboard.step import step
from controlplane.people.accounts.models import ApiToken
from controlplane.people.audit.models import AuditEntry
from controlplane.testing import ApiCaller, api_caller
from controlplane.traffic.policies.models import Policy
from controlplane.traffic.policies.services import ensure_default_policy

SWITCH = {
    "sqlite": "PRAGMA query_only = {}",
    "postgresql": "SET default_transaction_read_only = {}",
}
PAGES = ("/live", "/policies/default/", "/deliveries/", "/fleet/pools/demo/", "/fleet/apply", "/audit/", "/use/")
READS = ("/fleet", "/policies", "/audit")
PASSWORD = "correct-horse-battery"  # the user exists for one test
FORMS = ("/policies/default/draft/open", "/models/open", "/deliveries/try")


def switch(state: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SWITCH[connection.vendor].format(state))


@pytest.fixture
def caller(transactional_db: None, redis_away: None, ada: User, data_dir: object) -> ApiCaller:
    """Ada, a caller over REST. She has used her token before, because the time of its first use cannot be written
    later.
    """
    ensure_default_policy()
    kinds.pool()
    return api_caller(ada)


@pytest.fixture
def reading(caller: ApiCaller, ada: User) -> Iterator[Client]:
    client = Client(raise_request_exception=False)
    ada.set_password(PASSWORD)
    ada.save()
    client.force_login(ada)
    switch("ON")
    yield client
    switch("OFF")


def test_everything_can_be_read_and_nothing_written(reading: Client, caller: ApiCaller) -> None:
    before = AuditEntry.objects.count()
    assert {path: reading.get(path).status_code for path in PAGES} == dict.fromkeys(PAGES, 200)
    assert {path: caller.get(path).status_code for path in READS} == dict.fromkeys(READS, 200)
    for path in FORMS:
        answer = reading.post(path)
        assert (path, answer.status_code) == (path, 503)
        assert b"The database is read-only" in answer.content
        assert b"send again what you entered" in answer.content
        assert int(answer.headers["Retry-After"]) > 0
    refused = caller.call("POST", "/policies", {"name": "other", "reason": kinds.WHY})
    assert (refused.status_code, refused.json()["detail"]) == (503, READ_ONLY)
    assert Client().get("/healthz").status_code == 200
    assert (AuditEntry.objects.count(), ApiToken.objects.count(), Policy.objects.count()) == (before, 1, 1)


def test_nobody_can_sign_in_and_the_page_says_so(reading: Client) -> None:
    answer = Client(raise_request_exception=False).post("/login", {"username": "ada", "password": PASSWORD})
    assert (answer.status_code, reading.get("/live").status_code) == (503, 200)
    assert b"nobody can sign in or out" in answer.content


def test_every_page_shows_the_control_workers_banner_until_it_can_write_again(
    transactional_db: None, live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.base.schedule.lanes.close_old_connections", lambda: None)  # the test's own
    control, now = Schedule("control@a", {}), time.time()

    def said(second: int) -> list[str]:
        control._keep_lease()
        return [banner["text"] for banner in orjson.loads(step(live_redis, now + second, "worker") or b"")["banners"]]

    assert said(0) == []
    switch("ON")
    try:
        assert said(1) == [banners.READ_ONLY]
    finally:
        switch("OFF")
    assert said(2) == []


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OperationalError("attempt to write a readonly database"), READ_ONLY),
        (InternalError("cannot execute INSERT in a read-only transaction"), READ_ONLY),
        (OperationalError("database is locked"), AWAY),
        (InterfaceError("connection already closed"), AWAY),
        (InternalError("current transaction is aborted"), ""),
        (ValueError("readonly database"), ""),
        (None, ""),
    ],
)
def test_a_database_error_is_classified_by_its_message(error: Exception | None, said: str) -> None:
    assert trouble_of(error) == said
