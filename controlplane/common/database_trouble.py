"""What a failed query says of the database as a whole, in words for pages and REST."""

import os
from pathlib import Path

from django.db import InterfaceError, InternalError, OperationalError, connection

AWAY = "the database does not answer or cannot be written"
READ_ONLY = "the database can be read but not written, so nothing was changed"
# SQLite's word for a file, folder or disk, PostgreSQL's for a standby or a server set so
_REFUSALS = ("readonly database", "read-only transaction")


def is_read_only(error: BaseException | None) -> bool:
    """True if the database refused a write that it would refuse to everybody."""
    return isinstance(error, OperationalError | InternalError) and any(words in str(error) for words in _REFUSALS)


def is_locked_away() -> bool:
    """True if SQLite's file may only be read; asks the file, not the database, so that a frame waits for neither."""
    path = Path(str(connection.settings_dict["NAME"]))
    return connection.vendor == "sqlite" and path.is_file() and not os.access(path, os.W_OK)


def trouble_of(error: BaseException | None) -> str:
    """Return what keeps the database from serving; empty if the query alone failed, or something else."""
    if is_read_only(error):
        return READ_ONLY
    return AWAY if isinstance(error, OperationalError | InterfaceError) else ""
