"""Waiting for the database to be as this code needs it: processes start at once, whoever prepares it takes his time."""

import asyncio
import time
from typing import Any

from django.db import DatabaseError, connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

LIMIT_S = 60.0
STEP_S = 0.05


class NotMigrated(Exception):
    """Nobody has prepared the database; the message says who would."""


def missing(wanted: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of these migrations, those that have not been applied; all when the database does not answer yet."""
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
    """Return when every migration has been applied. NotMigrated after `limit_s`."""
    end, names = time.monotonic() + limit_s, wanted()
    while lacking := missing(names):
        if time.monotonic() >= end:
            listed = ", ".join(sorted(".".join(name) for name in lacking))
            raise NotMigrated(f"the database lacks {listed} after {limit_s:g} s: run `manage.py serve prepare`")
        time.sleep(STEP_S)


async def lifespan(scope: Any, receive: Any, send: Any) -> None:
    """ASGI's: a server listens once the database is there."""
    await receive()
    try:
        await asyncio.to_thread(wait, LIMIT_S)
    except NotMigrated as error:
        await send({"type": "lifespan.startup.failed", "message": str(error)})
        return
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})
