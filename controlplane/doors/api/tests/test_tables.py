"""Every list of the API is available as CSV and Parquet."""

import csv
import hashlib
import tempfile
from datetime import datetime, timedelta
from importlib.util import find_spec
from typing import Any

import pytest
from django.utils import timezone

from controlplane.doors.api.api import api
from controlplane.doors.api.routes.traffic.use import UseLineOut
from controlplane.doors.api.tables import csv_of, kind, parquet_of, table_of
from controlplane.people.audit.services import SYSTEM
from controlplane.testing import ApiCaller
from controlplane.traffic.keys import services
from controlplane.traffic.keys.services import KeyTerms
from controlplane.traffic.use.selectors import COLUMNS as USE

OPERATIONS = {
    operation.view_func.__name__: operation
    for _, router in api._routers
    for view in router.path_operations.values()
    for operation in view.operations
}
COLUMNS = {"name": str, "n": int, "share": float, "on": bool, "pools": str}
ROWS: list[dict[str, Any]] = [
    {"name": "=1+1", "n": 3, "share": 1, "on": True, "pools": ["a", "b"]},
    {"name": "ü", "n": None, "share": 0.5, "on": None, "pools": []},
    {"name": None, "n": -1, "share": None, "on": False, "pools": None},
]


def read_by_duckdb(file: bytes) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Return the column types and the rows."""
    assert find_spec("duckdb"), "DuckDB is not installed: make test-deploy installs it (requirements-deploy.txt)"
    import duckdb

    with tempfile.NamedTemporaryFile(suffix=".parquet") as written, duckdb.connect() as connection:
        written.write(file)
        written.flush()
        found = connection.read_parquet(written.name)
        types = dict(zip(found.columns, map(str, found.types), strict=True))
        return types, [dict(zip(types, row, strict=True)) for row in found.fetchall()]


def test_every_list_is_a_table() -> None:
    named = {name for name, operation in OPERATIONS.items() if name.startswith("list_")}
    tables = {name for name, operation in OPERATIONS.items() if table_of(operation) is not None}
    assert named <= tables
    assert {"get_kv_usage", "get_gpu_use"} <= tables - named
    assert table_of(OPERATIONS["list_receipts"])[1] == "receipts"  # type: ignore[index]
    assert "class" in table_of(OPERATIONS["list_receipts"])[0]  # type: ignore[index]  # by the names that answers have


def test_the_openapi_document_lists_the_formats() -> None:
    document = api.get_openapi_schema(path_params={})
    listed = document["paths"]["/api/v1/keys"]["get"]
    assert [each["name"] for each in listed["parameters"]] == ["format"]
    assert listed["responses"][200]["content"].keys() == {
        *("application/json", "text/csv", "application/vnd.apache.parquet")
    }
    single = document["paths"]["/api/v1/pools/{name}"]["get"]
    assert "format" not in [each["name"] for each in single["parameters"]]


def test_a_table_has_a_cell_for_each_value() -> None:
    assert list(csv.reader(csv_of(COLUMNS, ROWS).splitlines())) == [
        list(COLUMNS),
        ["'=1+1", "3", "1", "true", '["a","b"]'],
        ["ü", "", "0.500000", "", "[]"],
        ["", "-1", "", "false", ""],
    ]
    # PyArrow 25 has read the file with these values and types.
    assert (
        hashlib.sha256(parquet_of(COLUMNS, ROWS)).hexdigest()
        == "35fe08731f5a191bb45453c87191e96dd925a3b41032d65201bd851b1aa0fa76"
    )


def test_a_list_is_downloaded_in_each_form(ada_api: ApiCaller, ci: ApiCaller) -> None:
    soon = timezone.now() + timedelta(days=1)
    services.create_key("=cmd", KeyTerms(requests_per_min=7, expires_at=soon), SYSTEM)
    answer = ada_api.get("/keys?format=csv")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == 'attachment; filename="keys.csv"'
    (row,) = csv.DictReader(answer.content.decode().splitlines())
    assert (row["name"], row["requests_per_min"], row["tokens_per_min"], row["pools"]) == ("'=cmd", "7", "", "[]")
    assert abs((datetime.fromisoformat(row["expires_at"]) - soon).total_seconds()) < 0.01
    parquet = ada_api.get("/keys?format=parquet")
    assert parquet.content[:4] == parquet.content[-4:] == b"PAR1"
    assert ada_api.get("/audit?format=csv&limit=1").content.decode().count("\n") == 2
    assert ada_api.get("/use?format=parquet").content[:4] == b"PAR1"
    assert ada_api.get("/keys?format=json").json()[0]["name"] == "=cmd"
    refused = ada_api.get("/keys?format=xlsx")
    assert (refused.status_code, "json, csv, parquet" in refused.json()["errors"][0]["message"]) == (422, True)
    forbidden = ci.get("/tokens?format=csv")
    assert (forbidden.status_code, forbidden.headers["Content-Type"]) == (403, "application/problem+json")


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_an_empty_list_is_a_table_without_rows(ada_api: ApiCaller, form: str) -> None:
    answer = ada_api.get(f"/channels?format={form}")
    assert answer.status_code == 200
    assert b"name" in answer.content


DUCKDB = {int: "BIGINT", float: "DOUBLE", bool: "BOOLEAN", str: "VARCHAR"}
CELLS: dict[type, list[Any]] = {
    int: [0, None, -(2**53)],
    float: [0.5, None, -1e300],
    bool: [True, None, False],
    str: ["ü, =1+1", None, ""],
}


@pytest.mark.deploy
def test_duckdb_reads_the_table_of_every_list() -> None:
    tables = {name: found[0] for name, operation in OPERATIONS.items() if (found := table_of(operation)) is not None}
    assert len(tables) > 20
    for name, columns in (tables | {"use": {field: kind(UseLineOut, field) for field in USE}}).items():
        rows = [{column: CELLS[type_][i] for column, type_ in columns.items()} for i in range(3)]
        for listed in (rows, []):
            types = {column: DUCKDB[type_] for column, type_ in columns.items()}
            assert read_by_duckdb(parquet_of(columns, listed)) == (types, listed), name


@pytest.mark.deploy
def test_duckdb_reads_a_download(ada_api: ApiCaller) -> None:
    services.create_key("=cmd", KeyTerms(requests_per_min=7), SYSTEM)
    (row,) = read_by_duckdb(ada_api.get("/keys?format=parquet").content)[1]
    assert (row["name"], row["requests_per_min"], row["tokens_per_min"], row["pools"]) == ("=cmd", 7, None, "[]")
    assert "gpu_seconds" in read_by_duckdb(ada_api.get("/use?format=parquet").content)[0]
