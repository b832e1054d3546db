"""Every write checks a version: each pair of writes to each kind of object, in sequence and concurrently.
On PostgreSQL the same tests run with `make test-deploy`.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby
from operator import itemgetter
from threading import Barrier
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.db import connection, connections, transaction

from controlplane.doors.api.tests.versioned_kinds import DELIVERY, KINDS, Kind, Path, Write, delivery, post
from controlplane.management.commands import openapi_export
from controlplane.people.audit.differences import flatten
from controlplane.testing import ApiCaller, api_caller
from controlplane.tests.schedules.database import empty, shared_database, tables
from controlplane.traffic.policies import acknowledged

# Writes that create something or change nothing.
CREATE = {
    "create_budget", "create_channel", "create_key", "create_policy", "create_share", "create_token", "add_freeze",
    "open_draft", "open_models_draft", "start_experiment", "repeat_experiment", "start_matrix", "start_plan",
    "start_tuning", "calibrate_instance", "test_channel", "write_note", "upload_trace", "check_fleet",
    "discover_engines", "make_profile", "ask_system",
}  # fmt: skip
REFUSED = (404, 409, 412)
OPERATIONS = {
    (method.upper(), path.removeprefix("/api/v1")): operation
    for path, methods in openapi_export.schema()["paths"].items()
    for method, operation in methods.items()
}

of_kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Notify no worker, and wait for no router."""
    monkeypatch.setattr("controlplane.celery.app.send_task", lambda *_, **__: None)
    monkeypatch.setattr(acknowledged, "WAIT_S", 0.0)


def at(path: str, of: Path) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: str(of[name[1]]), path)


def sent(api: ApiCaller, write: Write, of: Path, seen: str | None) -> Any:
    headers = {} if seen is None else {"If_Match": seen}
    return api.call(write.method, at(write.path, of) + write.query, write.body, **headers)


def etag(api: ApiCaller, kind: Kind, of: Path) -> str | None:
    """Return the object's ETag; None if it no longer exists."""
    answer = api.get(at(kind.path, of))
    assert answer.status_code in (200, 404), answer.content
    return answer.headers["ETag"] if answer.status_code == 200 else None


def operation_of(write: Write) -> dict[str, Any]:
    path = write.path
    known = OPERATIONS.get((write.method, path))
    return known or OPERATIONS[write.method, re.sub(r"/[a-z]+$", "/{verb}", path)]


def test_every_operation_that_changes_something_takes_the_version_that_the_caller_saw() -> None:
    takes = {
        operation["operationId"]
        for (method, _), operation in OPERATIONS.items()
        if any(parameter["name"] == "If-Match" for parameter in operation["parameters"])
    }
    changing = {operation["operationId"] for (method, _), operation in OPERATIONS.items() if method != "GET"}
    assert takes == changing - CREATE
    assert {operation_of(write)["operationId"] for kind in KINDS for write in kind.writes} == takes


def test_every_operation_that_takes_a_version_documents_the_answer_to_a_stale_one() -> None:
    for kind in KINDS:
        for write in kind.writes:
            assert "412" in operation_of(write)["responses"], write


@of_kinds
def test_a_write_with_an_old_version_is_refused_with_the_current_one(ada_api: ApiCaller, kind: Kind) -> None:
    of = kind.make()
    present = etag(ada_api, kind, of)
    for write in kind.writes:
        answer = sent(ada_api, write, of, '"seen-long-ago"')
        assert (answer.status_code, answer.headers["Content-Type"]) == (412, "application/problem+json"), write
        assert f'"{answer.json()["current"]}"' == present, write
    assert etag(ada_api, kind, of) == present


def test_a_write_with_an_empty_version_is_refused(ada_api: ApiCaller) -> None:
    """Send an empty If-Match, like a program with an unset variable."""
    kind = next(kind for kind in KINDS if kind.name == "key")
    assert sent(ada_api, kind.writes[0], kind.make(), "").status_code == 412


@of_kinds
def test_of_two_writes_with_the_same_version_the_second_is_refused(ada_api: ApiCaller, kind: Kind) -> None:
    pairs = {pair for first, second in kind.pairs() for pair in ((first, second), (second, first))}
    of = kind.make()
    seen = etag(ada_api, kind, of)
    for first, of_first in groupby(sorted(pairs, key=str), key=itemgetter(0)):
        mark = transaction.savepoint()
        answer = sent(ada_api, first, of, seen)
        assert answer.status_code < 300, (first, answer.content)
        after = etag(ada_api, kind, of)
        assert after != seen, first
        for _, second in of_first:
            assert sent(ada_api, second, of, seen).status_code in REFUSED, (first, second)
        assert etag(ada_api, kind, of) == after, first
        transaction.savepoint_rollback(mark)


# Concurrent: two threads, each with its own connection


class World:
    """A database for these tests only, emptied before each pair."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool, self._tables = pool, tables()

    def fresh(self) -> ApiCaller:
        empty(self._tables)
        ada, made = User.objects.get_or_create(username="ada")
        if made:
            ada.groups.add(Group.objects.get_or_create(name="admin")[0])
        return api_caller(ada)

    def both(self, api: ApiCaller, of: Path, seen: str | None, *writes: Write) -> list[Any]:
        """Return both answers; neither call begins before the other one is ready."""
        ready = Barrier(len(writes), timeout=10)

        def begun(write: Write) -> Any:
            ready.wait()
            return sent(ApiCaller(api.token), write, of, seen)

        return [future.result(timeout=30) for future in [self._pool.submit(begun, write) for write in writes]]


@pytest.fixture
def world(transactional_db: None, tmp_path: Any) -> Iterator[World]:
    with shared_database(tmp_path), ThreadPoolExecutor(2) as pool:
        yield World(pool)
        idle = Barrier(2)  # lets each thread close its own connection
        wait([pool.submit(lambda: (idle.wait(), connections.close_all())) for _ in range(2)])
        if connection.vendor != "sqlite":
            User.objects.filter(username="ada").delete()


@of_kinds
def test_of_two_concurrent_writes_with_the_same_version_one_is_done_and_one_refused(world: World, kind: Kind) -> None:
    for first, second in kind.pairs():
        api = world.fresh()
        of = kind.make()
        seen = etag(api, kind, of)
        answers = world.both(api, of, seen, first, second)
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses[0] < 300, (first, second, [answer.content for answer in answers])
        assert statuses[1] in REFUSED, (first, second, statuses)


def changes_of(kind: Kind) -> Iterator[tuple[Write, Write]]:
    """Return two writes that change different fields."""
    for first, second in kind.pairs():
        if first is not second and all(write.method in ("PATCH", "PUT") for write in (first, second)):
            yield first, second


def given(write: Write) -> dict[str, Any]:
    return {name: value for name, value in write.body.get("overrides", write.body).items() if name != "reason"}


OF_FIELDS = [kind for kind in KINDS if kind.name in ("freeze", "key", "budget", "channel", "rules", "draft")]


@pytest.mark.parametrize("kind", OF_FIELDS, ids=lambda kind: kind.name)
def test_concurrent_writes_of_different_fields_without_a_version_are_both_kept(world: World, kind: Kind) -> None:
    for first, second in changes_of(kind):
        api = world.fresh()
        of = kind.make()
        answers = world.both(api, of, None, first, second)
        assert [answer.status_code for answer in answers] == [200, 200], (first, second, answers[0].content)
        stored, expected = flatten(kind.shown(api.get(at(kind.path, of)).json())), given(first) | given(second)
        assert {name: stored[name] for name in expected} == expected, (first, second)


def test_an_abort_without_a_version_ends_a_delivery_that_someone_starts_at_the_same_moment(world: World) -> None:
    for _ in range(5):
        api = world.fresh()
        of = delivery()
        start, abort = post(f"{DELIVERY}/start"), post(f"{DELIVERY}/abort")
        answers = world.both(api, of, None, start, abort)
        assert answers[1].status_code == 200, answers[1].content
        assert api.get(at(DELIVERY, of)).json()["state"] == "aborted"
