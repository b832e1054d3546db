"""Lets processes that start before the database is migrated wait for it."""

import asyncio
import logging
import sqlite3
import time
from pathlib import Path
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

from controlplane.base.process import patience

STEP_S = 0.05
log = logging.getLogger(__name__)


class NotMigrated(Exception):
    """The database lacks migrations; the message names the command that applies them."""


def missing(wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the migrations of `wanted` that are not applied; all of them if the database does not answer."""
    try:
        return wanted - set(MigrationRecorder(connection).applied_migrations())
    except DatabaseError:
        return wanted
    finally:
        connection.close()


def wanted() -> set[tuple[str, str]]:
    """Return the last migration of each app."""
    loader = MigrationLoader(None)
    return {(app, name) for app, name in loader.graph.leaf_nodes()}


def mark() -> tuple[int, int]:
    """Return a mark that changes while the database is being migrated: the applied migrations and SQLite's last
    write."""
    try:
        applied = len(MigrationRecorder(connection).applied_migrations())
    except DatabaseError:
        applied = 0
    finally:
        connection.close()
    return applied, _last_write_ns() if connection.vendor == "sqlite" else 0


def _last_write_ns() -> int:
    name = Path(str(connection.settings_dict["NAME"]))
    files = [path for path in (name, Path(f"{name}-wal"), Path(f"{name}-journal")) if path.is_file()]
    return max((path.stat().st_mtime_ns for path in files), default=0)


def wait(idle_s: float) -> None:
    """Wait until every migration is applied. Raise NotMigrated after `idle_s` without progress."""
    waiting, names = patience.Patience(time.monotonic(), idle_s), wanted()
    while lacking := missing(names):
        listed = ", ".join(sorted(".".join(name) for name in lacking))
        try:
            is_news = waiting.look(mark(), time.monotonic())
        except patience.OutOfPatience as error:
            raise NotMigrated(f"the database lacks {listed}, {error}: run `manage.py serve prepare`") from None
        if is_news:
            log.warning("waiting for the database, which lacks %s", listed)
        time.sleep(STEP_S)


def hold_open() -> sqlite3.Connection | None:
    """Return a connection that stays open to SQLite; None for another database.
    While a connection is open, SQLite keeps its -wal and -shm files. A process that starts on a full disk could not
    create them, and then could not even read.
    """
    if connection.vendor != "sqlite":
        return None
    name = str(connection.settings_dict["NAME"])
    held = sqlite3.connect(name, check_same_thread=False, isolation_level=None, uri=name.startswith("file:"))
    held.execute("SELECT count(*) FROM sqlite_master")  # This opens the -wal and -shm files.
    return held


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    """Implement the ASGI lifespan: the server starts to listen once the database is migrated."""
    await receive()
    try:
        await asyncio.to_thread(wait, patience.IDLE_S)
    except NotMigrated as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    held = await asyncio.to_thread(hold_open)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    if held is not None:
        held.close()
    await send({"type": "lifespan.shutdown.complete"})
