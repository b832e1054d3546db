"""Conclusions from a failed query about the database as a whole, as text for pages and REST."""

from django.db import InterfaceError, InternalError, OperationalError

AWAY = "the database does not answer or cannot be written"
READ_ONLY = "the database can be read but not written, so nothing was changed"
# SQLite's code for a read-only file, folder or disk, and PostgreSQL's for a standby or a read-only server
_REFUSALS = ("readonly database", "read-only transaction")


def says_read_only(message: str) -> bool:
    """Return whether the error means that the database refuses all writes."""
    return any(words in message for words in _REFUSALS)


def is_read_only(error: BaseException | None) -> bool:
    return isinstance(error, OperationalError | InternalError) and says_read_only(str(error))


def trouble_of(error: BaseException | None) -> str:
    """Return why the database cannot serve; empty if only the query failed or the error is unrelated."""
    if is_read_only(error):
        return READ_ONLY
    return AWAY if isinstance(error, OperationalError | InterfaceError) else ""
