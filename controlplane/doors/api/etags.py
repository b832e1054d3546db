"""Rows of an answer, single or as a page, and their ETags."""

from typing import Any, TypeVar

from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Field, Schema

from controlplane.common import as_seen
from controlplane.common.as_seen import found as found

M = TypeVar("M", bound=Model)


# ETag, If-Match and If-None-Match, which detect concurrent writes and wait for changes


def if_match(request: HttpRequest) -> str | None:
    """Return the etag in If-Match without quotes; None without the header and for `*`. An empty etag matches
    nothing."""
    return _named(request, "If-Match")


def if_none_match(request: HttpRequest) -> str | None:
    return _named(request, "If-None-Match")


def _named(request: HttpRequest, header: str) -> str | None:
    value = request.headers.get(header, "*").strip()
    return None if value == "*" else value.removeprefix("W/").strip('"')


def put(response: HttpResponse, etag: str) -> None:
    response.headers["ETag"] = f'"{etag}"'


def of(response: HttpResponse, row: M) -> M:
    """Return the row, after setting its ETag on the answer."""
    put(response, getattr(row, "etag", None) or as_seen.etag(row))
    return row


def row_of(rows: type[M] | QuerySet[M], what: str, number: int) -> M:
    """Return the row with this number. Raise Http404."""
    row = (rows if isinstance(rows, QuerySet) else rows._default_manager).filter(pk=number).first()
    return found(row, f"there is no {what} {number}")


class Etag(Schema):
    """An object whose ETag If-Match accepts."""

    etag: str = Field(description="Send as If-Match to change it")


class Versioned(Etag):
    """The ETag of a row, or of a mapping that has one."""

    @staticmethod
    def resolve_etag(row: Any) -> str:
        return row["etag"] if isinstance(row, dict) else as_seen.etag(row)


def page(rows: QuerySet[M], before: int | None, limit: int, by: str = "pk") -> list[M]:
    """Return the first `limit` rows, or the first rows below `before`."""
    return list((rows if before is None else rows.filter(**{f"{by}__lt": before}))[:limit])
