"""A database of the schedules' own, which all threads share: made once, emptied between the schedules."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.apps import apps
from django.core.management.color import no_style
from django.db import connection, connections

KEPT = ("auth", "contenttypes", "sessions")  # filled by migrations, or of no concern


@contextmanager
def shared_database(folder: Path) -> Iterator[None]:
    """On SQLite the tests' database is one of this thread's memory: its copy in a file is every thread's."""
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
