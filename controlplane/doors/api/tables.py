"""Offers every list of the API as CSV and Parquet: `?format=csv`, `?format=parquet`. Each field is a column, in the
order of the schema; lists and objects are written as JSON."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Any, get_args, get_origin

import orjson
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from ninja import Schema
from ninja.operation import Operation

from controlplane.common import parquet
from controlplane.common.attachment import attachment
from controlplane.common.csv_cell import csv_text
from router.contract.values.problem import invalid

FORMATS = {"csv": "text/csv; charset=utf-8", "parquet": "application/vnd.apache.parquet"}
Run = Callable[..., HttpResponseBase]
Row = Mapping[str, Any]
Columns = Mapping[str, type]  # int, float, bool or str by column


def tabled(run: Run) -> Run:
    """Wrap `Operation.run` of an operation that answers with a list."""
    operation: Operation = inspect.unwrap(run).__self__
    found = table_of(operation)
    if found is None:
        return run
    columns, key = found

    @functools.wraps(run)
    def answered(request: HttpRequest, **path: Any) -> HttpResponseBase:
        chosen = request.GET.get("format", "json")
        answer = run(request, **path)
        if chosen == "json" or answer.status_code != 200 or not isinstance(answer, HttpResponse):
            return answer
        if chosen not in FORMATS:
            problem = invalid("format", chosen[:40], "unknown", "json, csv, parquet")
            return operation.api.on_exception(request, problem)
        body = orjson.loads(answer.content)
        return as_file(columns, body[key] if key else body, chosen, operation.view_func.__name__)

    return answered


def as_file(columns: Columns, rows: Sequence[Row], chosen: str, name: str) -> HttpResponse:
    made = csv_of(columns, rows) if chosen == "csv" else parquet_of(columns, rows)
    return attachment(made, f"{name.removeprefix('list_')}.{chosen}", FORMATS[chosen])


def table_of(operation: Operation) -> tuple[Columns, str] | None:
    """Return (columns, key) of an operation's list; key is empty if the answer is the list itself. None without a
    list."""
    if "GET" not in operation.methods:
        return None
    model: Any = operation.response_models.get(200)
    answer = model.model_fields["response"].annotation if hasattr(model, "model_fields") else None
    row = _row_of(answer)
    if row is not None:
        return _columns(row), ""
    if operation.view_func.__name__.startswith("list_") and isinstance(answer, type) and issubclass(answer, Schema):
        for name, field in answer.model_fields.items():
            row = _row_of(field.annotation)
            if row is not None:
                return _columns(row), field.alias or name
    return None


def _row_of(annotation: Any) -> Any:
    """Return the model of a list's rows."""
    rows = get_args(annotation) if get_origin(annotation) is list else ()
    return rows[0] if rows and (hasattr(rows[0], "model_fields") or hasattr(rows[0], "__annotations__")) else None


def _columns(row: Any) -> Columns:
    if hasattr(row, "model_fields"):
        return {field.alias or name: _kind(field.annotation) for name, field in row.model_fields.items()}
    return {name: _kind(annotation) for name, annotation in row.__annotations__.items()}


def kind(row: Any, name: str) -> type:
    return _columns(row)[name]


def _kind(annotation: Any) -> type:
    kinds = {each for each in get_args(annotation) or (annotation,) if each is not NoneType}
    if get_origin(annotation) in (list, dict, tuple) or len(kinds) != 1:
        return float if kinds == {int, float} else str
    kind = kinds.pop()
    return kind if kind in (int, float, bool) else str


def csv_of(columns: Columns, rows: Sequence[Row]) -> str:
    return csv_text(columns, ([_plain(row.get(name)) for name in columns] for row in rows))


def parquet_of(columns: Columns, rows: Sequence[Row]) -> bytes:
    return parquet.table(
        {name: (kind, [_value(row.get(name), kind) for row in rows]) for name, kind in columns.items()}
    )


def _value(value: Any, kind: type) -> Any:
    if value is None:
        return None
    return str(_plain(value)) if kind is str else kind(value)


def _plain(value: Any) -> Any:
    """Return lists, objects, true and false as JSON."""
    if isinstance(value, list | dict | bool):
        return orjson.dumps(value).decode()
    return value
