"""Processes start before the database is migrated, and wait here until it is."""

import asyncio
import sqlite3
import time
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

LIMIT_S = 60.0
STEP_S = 0.05


class NotMigrated(Exception):
    """The database lacks migrations; the message names the command that applies them."""


def missing(wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """The migrations of `wanted` that are not applied; all of them while the database does not answer."""
    try:
        return wanted - set(MigrationRecorder(connection).applied_migrations())
    except DatabaseError:
        return wanted
    finally:
        connection.close()


def wanted() -> set[tuple[str, str]]:
    """The last migration of each app."""
    loader = MigrationLoader(None)
    return {(app, name) for app, name in loader.graph.leaf_nodes()}


def wait(limit_s: float) -> None:
    """Return when every migration is applied. NotMigrated after `limit_s`."""
    end, names = time.monotonic() + limit_s, wanted()
    while lacking := missing(names):
        if time.monotonic() >= end:
            listed = ", ".join(sorted(".".join(name) for name in lacking))
            raise NotMigrated(f"the database lacks {listed} after {limit_s:g} s: run `manage.py serve prepare`")
        time.sleep(STEP_S)


def hold_open() -> sqlite3.Connection | None:
    """A connection to SQLite that stays open; None with another database.

    While one is open, SQLite keeps its -wal and -shm files. A process that starts on a full disk could not make them,
    and could not even read.
    """
    if connection.vendor != "sqlite":
        return None
    name = str(connection.settings_dict["NAME"])
    held = sqlite3.connect(name, check_same_thread=False, isolation_level=None, uri=name.startswith("file:"))
    held.execute("SELECT count(*) FROM sqlite_master")  # opens those files
    return held


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    """The ASGI lifespan: the server starts to listen when the database is migrated."""
    await receive()
    try:
        await asyncio.to_thread(wait, LIMIT_S)
    except NotMigrated as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    held = await asyncio.to_thread(hold_open)
    await send({"type": "lifespan.startup.complete"})
    await receive()
    if held is not None:
        held.close()
    await send({"type": "lifespan.shutdown.complete"})
