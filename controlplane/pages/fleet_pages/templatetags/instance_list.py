"""Selects the instances of a pool or a node for a table: if there are many, those with problems are listed first, and a
search text finds the others."""

from collections.abc import Sequence
from dataclasses import dataclass

from django import template

from controlplane.live.dashboard.frame.status import ORDER
from controlplane.pages.fleet_ops.rows import InstanceRow, failures_first

LISTED = 100

register = template.Library()


@dataclass(frozen=True, slots=True)
class InstanceList:
    rows: Sequence[InstanceRow]
    found: int
    of: int
    text: str  # text to find in name, status or node

    @property
    def summary(self) -> str:
        """The summary; empty if every instance is listed."""
        if self.text:
            shown = f", {len(self.rows)} of them listed" if self.found > len(self.rows) else ""
            return f"{self.found:,} of {self.of:,} instances match “{self.text}”{shown}"
        if self.found > len(self.rows):
            return f"{len(self.rows)} of {self.of:,} instances: those in trouble first, then the fullest"
        return ""


@register.filter
def listed(rows: Sequence[InstanceRow], text: str = "") -> InstanceList:
    found = [row for row in rows if _matches(row, text.lower())] if text else list(rows)
    if len(found) <= LISTED:
        return InstanceList(failures_first(found), len(found), len(rows), text)
    worst = sorted(found, key=lambda row: (ORDER.index(row.status), -(row.kv_percent or 0.0)))
    return InstanceList(worst[:LISTED], len(found), len(rows), text)


@register.filter
def is_long(rows: Sequence[InstanceRow]) -> bool:
    return len(rows) > LISTED


def _matches(row: InstanceRow, text: str) -> bool:
    return any(text in part.lower() for part in (row.instance.name, row.status, row.instance.node))
