"""Processes that start before the database is prepared wait for it."""

import contextlib
import itertools
import os
import sqlite3
from types import SimpleNamespace

import pytest
from django.db import DatabaseError
from django.db.migrations.recorder import MigrationRecorder

from controlplane.base import worker
from controlplane.base.process import migrated

UNKNOWN = ("fleet", "9999_of_tomorrow")


@pytest.fixture
def asked(monkeypatch):
    """Return these answers in turn instead of the database's; repeat the last one forever."""

    def answering(*answers):
        left = list(answers)
        monkeypatch.setattr(migrated, "STEP_S", 0.0)
        monkeypatch.setattr(migrated, "mark", lambda: len(left))
        monkeypatch.setattr(migrated, "missing", lambda wanted: left.pop(0) if len(left) > 1 else left[0])
        return left

    return answering


async def starting():
    """Return the messages that a server gets through the lifespan protocol."""
    said = []

    async def receive():
        return {"type": "lifespan.startup" if not said else "lifespan.shutdown"}

    async def send(message):
        said.append(message)

    await migrated.lifespan({"type": "lifespan"}, receive, send)
    return said


@pytest.mark.django_db
def test_a_database_with_every_migration_lacks_nothing(monkeypatch):
    monkeypatch.setattr(migrated.connection, "close", lambda: None)  # the test's own
    assert migrated.missing(migrated.wanted()) == set()
    assert migrated.missing({UNKNOWN}) == {UNKNOWN}


def test_a_database_that_does_not_answer_lacks_everything(monkeypatch):
    def refuses(recorder):
        raise DatabaseError("away")

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", refuses)
    monkeypatch.setattr(migrated.connection, "close", lambda: None)
    assert migrated.missing({UNKNOWN}) == {UNKNOWN}


def test_the_database_is_polled_until_no_migration_is_missing(asked):
    left = asked({UNKNOWN}, {UNKNOWN}, set())
    migrated.wait(60)
    assert left == [set()]


def test_the_wait_for_migrations_continues_while_they_progress_and_is_reported(asked, monkeypatch, caplog):
    """Each poll takes a second, on a machine so slow that all of them together far exceed the idle limit."""
    seconds = itertools.count()
    monkeypatch.setattr(migrated, "time", SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _s: None))
    left = asked(*[{UNKNOWN}] * 40, set())
    migrated.wait(10)
    assert left == [set()]
    told = "waiting for the database, which lacks fleet.9999_of_tomorrow"
    assert [record.message for record in caplog.records] == [told] * 2


def test_a_write_to_the_database_is_progress(tmp_path, monkeypatch):
    class Sqlite:
        vendor, settings_dict = "sqlite", {"NAME": tmp_path / "some.sqlite3"}
        close = staticmethod(lambda: None)

    def refuses(recorder):
        raise DatabaseError("locked by the migration")

    monkeypatch.setattr(MigrationRecorder, "applied_migrations", refuses)
    monkeypatch.setattr(migrated, "connection", Sqlite)
    assert migrated.mark() == (0, 0)
    wal = tmp_path / "some.sqlite3-wal"
    wal.write_bytes(b"x")
    os.utime(wal, ns=(7, 7))
    assert migrated.mark() == (0, 7)


def test_in_the_end_missing_migrations_are_named_with_their_apps(asked):
    asked({UNKNOWN})
    with pytest.raises(
        migrated.NotMigrated, match=r"lacks fleet\.9999_of_tomorrow, no progress for 0 s: .*serve prepare"
    ):
        migrated.wait(idle_s=0)


async def test_a_server_listens_once_the_database_is_ready(asked):
    asked({UNKNOWN}, set())
    assert [message["type"] for message in await starting()] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
    ]


async def test_a_server_without_its_database_ends_and_gives_the_reason(asked, monkeypatch):
    asked({UNKNOWN})
    monkeypatch.setattr(migrated.patience, "IDLE_S", 0.0)
    (failed,) = await starting()
    assert failed["type"] == "lifespan.startup.failed"
    assert "9999_of_tomorrow" in failed["message"]


def test_a_worker_without_its_database_ends_and_gives_the_reason(asked, monkeypatch):
    asked({UNKNOWN})
    monkeypatch.setattr(migrated.patience, "IDLE_S", 0.0)
    with pytest.raises(SystemExit, match="weir: the database lacks"):
        worker.wait_for_database()


def test_an_sqlite_database_is_held_open_so_that_it_can_be_read_on_a_full_disk(tmp_path, monkeypatch):
    class Sqlite:
        vendor, settings_dict = "sqlite", {"NAME": tmp_path / "some.sqlite3"}

    with contextlib.closing(sqlite3.connect(Sqlite.settings_dict["NAME"])) as first:
        first.execute("PRAGMA journal_mode=WAL")
        first.execute("CREATE TABLE one (x)")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["some.sqlite3"]
    monkeypatch.setattr(migrated, "connection", Sqlite)
    with contextlib.closing(migrated.hold_open()):
        kept = ["some.sqlite3", "some.sqlite3-shm", "some.sqlite3-wal"]
        assert sorted(each.name for each in tmp_path.iterdir()) == kept


def test_another_database_is_not_held_open(monkeypatch):
    class Other:
        vendor = "postgresql"

    monkeypatch.setattr(migrated, "connection", Other)
    assert migrated.hold_open() is None
