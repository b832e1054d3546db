"""What API keys used and cost, over REST."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal

from django.http import HttpRequest
from django.utils import timezone
from ninja import Field, Router, Schema
from ninja.params.functions import Query

from controlplane.common.attachment import attachment
from controlplane.common.csv_cell import csv_text
from controlplane.doors.api import tables
from controlplane.doors.api.auth import needs
from controlplane.traffic.use.selectors import BY, COLUMNS, IDLE, UseLine, UseQuery, lines
from router.contract.values.problem import invalid

router = Router(tags=["use"])
WEEK = timedelta(days=7)


def csv_of(found: Iterable[UseLine]) -> str:
    return csv_text(COLUMNS, ([_value(line, column) for column in COLUMNS] for line in found))


def _value(line: UseLine, column: str) -> object:
    return IDLE if line.idle and column == "key" else getattr(line, column)


class UseLineOut(Schema):
    start: datetime | None = Field(description="Start of the period; null: the whole time")
    key: str | None = Field(description='Id of the key; "": without one; null: not asked for')
    name: str | None
    pool: str | None
    model: str | None
    idle: bool = Field(description="GPU time that instances held and no request was charged")
    requests: int
    refused: int
    failed: int
    cancelled: int
    input_tokens: int = Field(description="Cached ones included")
    cached_tokens: int
    output_tokens: int
    estimated: int = Field(description="Requests whose engine reported no usage; their tokens are estimates")
    gpu_seconds: float
    dollars: float
    audio_seconds: float = Field(description="Seconds of audio in transcriptions, as their engine reports them")
    images: int = Field(description="Images that answered requests asked for")
    client_errors: int = Field(description="Requests that were invalid, such as a prompt that is too long")


class UseOut(Schema):
    begin: datetime = Field(alias="from")
    to: datetime
    lines: list[UseLineOut] = Field(description="By time, then the dearest first; idle ones last")


@router.get("", response=UseOut, by_alias=True, auth=needs("use:read"))
def get_use(
    request: HttpRequest,
    begin: Annotated[datetime | None, Query(alias="from", description="A week before `to` if left out")] = None,
    to: Annotated[datetime | None, Query(description="Now if left out")] = None,
    by: str = Query("key,pool,model", max_length=40, description="Any of key, pool and model, separated by commas"),
    per: Literal["", "hour", "day", "month"] = "",
    format: Literal["json", "csv", "parquet"] = "json",
) -> Any:
    """Use and cost by key, pool and model; ?format=csv or parquet"""
    end = _moment("to", to) or timezone.now()
    query = UseQuery(_moment("from", begin) or end - WEEK, end, _by(by), per)
    found = lines(query)
    if format == "csv":
        return attachment(csv_of(found), "use.csv")
    if format == "parquet":
        rows = [{name: _cell(getattr(line, name)) for name in COLUMNS} for line in found]
        return tables.as_file({name: tables.kind(UseLineOut, name) for name in COLUMNS}, rows, "parquet", "use")
    return {"from": query.begin, "to": query.end, "lines": found}


def _cell(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def _moment(path: str, given: datetime | None) -> datetime | None:
    if given is not None and not 1 < given.year < 9999:
        raise invalid(path, given.isoformat(), "out of range", "years 2 to 9998")
    return given if given is None or given.tzinfo is not None else given.replace(tzinfo=UTC)


def _by(given: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))
    for name in names:
        if name not in BY:
            raise invalid("by", name, "unknown", ", ".join(BY))
    return names
