"""Changes that others have made to the fleet since a form was opened, shown before submitting the form would undo
them."""

from dataclasses import dataclass
from typing import Any

from controlplane.people.audit import selectors
from controlplane.people.audit.views import shown_row
from fleet import services

KINDS = ("fleet", "pool")  # kinds of audit entries that a fleet document may undo
MOST = 5  # entries shown, newest first


@dataclass(frozen=True, slots=True)
class Meanwhile:
    rows: list[dict[str, Any]]  # as on the audit page; empty if no entry was recorded
    more: bool = False


def mark() -> str:
    """Return a mark of the fleet's state in a form: its digest, and the newest audit entry."""
    return f"{services.digest()}:{selectors.newest_id()}"


def since(opened: str) -> Meanwhile | None:
    """Return the changes since the mark; None if the fleet is unchanged or the mark is invalid."""
    digest, _, newest = opened.partition(":")
    if not newest.isascii() or not newest.isdigit() or len(newest) > 18 or digest == services.digest():
        return None
    entries = selectors.after(int(newest), KINDS, MOST + 1)
    return Meanwhile([shown_row(entry) for entry in entries[:MOST]], more=len(entries) > MOST)
