"""Reads rows for an answer: one, or a page of them."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from controlplane.doors.api.problems import ApiProblem

Row = TypeVar("Row")
M = TypeVar("M", bound=Model)


def found(row: Row | None, detail: str) -> Row:
    if row is None:
        raise ApiProblem(404, detail=detail)
    return row


def page(rows: QuerySet[M], before: int | None, limit: int, by: str = "pk") -> list[M]:
    """Return the first `limit` rows, or those below `before`."""
    return list((rows if before is None else rows.filter(**{f"{by}__lt": before}))[:limit])
