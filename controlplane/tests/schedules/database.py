"""The schedules' own database, which all threads share: created once, emptied between schedules."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import connection, connections

KEPT = ("auth", "contenttypes", "sessions")  # filled by migrations, or irrelevant


@contextmanager
def shared_database(folder: Path) -> Iterator[None]:
    """Copy the tests' SQLite database, which is in this thread's memory, into a file that every thread can open."""
    if connection.vendor != "sqlite":
        yield
        return
    connection.ensure_connection()
    memory: Any = connections["default"]
    name, file = memory.settings_dict["NAME"], folder / "schedules.sqlite3"
    with sqlite3.connect(file) as target:
        memory.connection.backup(target)
    target.close()
    settings = connections.settings["default"]
    settings["NAME"] = str(file)
    connections["default"] = connections.create_connection("default")  # type: ignore[assignment]
    try:
        yield
    finally:
        connections["default"].close()
        settings["NAME"] = name
        connections["default"] = memory


def tables() -> list[str]:
    models = (model for app in apps.get_app_configs() if app.label not in KEPT for model in app.get_models())
    return sorted({model._meta.db_table for model in models if model._meta.managed})


def empty(names: list[str]) -> None:
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), names))
