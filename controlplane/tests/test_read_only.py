"""A database that can be read but not written: pages and REST still read, a write is refused in words and changes
nothing."""

import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import User
from django.db import InterfaceError, InternalError, OperationalError, connection
from django.test import Client

from controlplane.common import database_trouble
from controlplane.common.database_trouble import AWAY, READ_ONLY, is_locked_away, trouble_of
from controlplane.doors.api.tests import versioned_kinds as kinds
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
FORMS = ("/policies/default/draft/open", "/models/open", "/deliveries/try")


def switch(state: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(SWITCH[connection.vendor].format(state))


@pytest.fixture
def caller(transactional_db: None, redis_away: None, ada: User, data_dir: object) -> ApiCaller:
    """Ada over REST, who has used her token already: the time of its use cannot be written later."""
    ensure_default_policy()
    kinds.pool()
    return api_caller(ada)


@pytest.fixture
def reading(caller: ApiCaller, ada: User) -> Iterator[Client]:
    client = Client(raise_request_exception=False)
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


@pytest.mark.parametrize(("mount", "said"), [("ro", True), ("rw", False)])
def test_the_file_says_whether_it_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mount: str, said: bool
) -> None:
    (tmp_path / "weir.sqlite3").touch()
    file = SimpleNamespace(vendor="sqlite", settings_dict={"NAME": tmp_path / "weir.sqlite3"})
    monkeypatch.setattr(database_trouble, "connection", file)
    monkeypatch.setattr(os, "access", lambda *_: mount == "rw")  # root may write any file, but not on such a disk
    assert is_locked_away() is said


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
def test_what_an_error_says_of_the_database(error: Exception | None, said: str) -> None:
    assert trouble_of(error) == said
