"""Shared parts of the OpenAPI document."""

from http import HTTPStatus
from typing import Annotated, Any

from ninja import Path
from ninja.params.functions import Query

ROW_MAX = 2**31 - 1  # largest value of an id or number column of every database
Number = Annotated[int, Path(ge=1, le=ROW_MAX)]
Before = Annotated[int | None, Query(ge=1, le=ROW_MAX, description="Only rows with a smaller id or number")]


def _header(name: str, description: str, max_length: int) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": max_length, "pattern": "^[!-~]+$"}
    return {"in": "header", "name": name, "required": False, "description": description, "schema": schema}


_IF_MATCH = _header("If-Match", "The ETag from the last read; 412 when the resource has changed since", 80)
_IF_NONE_MATCH = _header("If-None-Match", "The ETag from the last read; 304 while it is the current one", 80)
_IDEMPOTENT = _header("Idempotency-Key", "A repeated key gets the first answer again, for 24 hours", 200)
# Headers that etags.py reads from the request, given as `openapi_extra=IF_MATCH`
IF_MATCH, IF_NONE_MATCH = {"parameters": [_IF_MATCH]}, {"parameters": [_IF_NONE_MATCH]}

_CHECKS = ("check_fleet",)  # POSTs that change nothing, so a repeated one needs no key
_ALWAYS_FOUND = ("list_node_events",)  # returns 200 even for a node that was forgotten
_SCHEMAS = "#/components/schemas/"
_JSON, _PROBLEM, _REF = "application/json", "application/problem+json", f"{_SCHEMAS}ProblemOut"
# Names in the document for classes whose own names are specific only within their package
_NAMES = {name: f"System{name}" for name in ("Axis", "Chart", "Fact", "Link", "Play", "Series", "Table")}


FORMAT = {
    "in": "query",
    "name": "format",
    "required": False,
    "description": "csv and parquet: a table with a column for each field",
    "schema": {"type": "string", "enum": ["json", "csv", "parquet"], "default": "json"},
}


YAML, CSV, PARQUET = "application/yaml", "text/csv", "application/vnd.apache.parquet"
_FORMATS = {"csv": CSV, "parquet": PARQUET}  # media type by the value of `?format=`


def answers(*kinds: str) -> dict[str, Any]:
    """Return the `openapi_extra` of an operation whose successful answer may have other types than JSON."""
    return {"responses": {200: {"content": {kind: {"schema": {"type": "string"}} for kind in kinds}}}}


def describe_table(operation: dict[str, Any]) -> None:
    """Describe an operation whose list is available as a table (controlplane/doors/api/tables.py)."""
    operation["parameters"].append(FORMAT)


def _formats_of(operation: dict[str, Any]) -> list[str]:
    """Return the media types of its query parameter `format`."""
    asked = [each["schema"].get("enum", []) for each in operation["parameters"] if each["name"] == "format"]
    return [_FORMATS[name] for names in asked for name in names if name in _FORMATS]


def describe(method: str, operation: dict[str, Any]) -> None:
    """Add the parts that all operations share. Ninja uses a docstring as the description; here it is the summary."""
    operation["summary"] = operation.pop("description")
    if method == "post" and operation["operationId"] not in _CHECKS:  # the middleware reads it
        inputs = operation["parameters"]
        inputs.insert(sum(each["in"] != "header" for each in inputs), _IDEMPOTENT)
    responses = operation["responses"]
    if kinds := _formats_of(operation):
        responses[200]["content"] |= answers(*kinds)["responses"][200]["content"]
    for status in _errors_of(method, operation):
        responses.setdefault(status, {"description": HTTPStatus(status).phrase, "content": _problem()})
    for answer in responses.values():
        if answer.get("content", {}).get(_JSON, {}).get("schema", {}).get("$ref") == _REF:
            answer["content"] = _problem()


def named(value: Any) -> Any:
    """Return the document, or a part of it, with specific names of schemas."""
    if isinstance(value, dict):
        return {key: named(each) for key, each in value.items()}
    if isinstance(value, list):
        return [named(each) for each in value]
    if isinstance(value, str) and value.startswith(_SCHEMAS):
        return _SCHEMAS + _NAMES.get(value.removeprefix(_SCHEMAS), value.removeprefix(_SCHEMAS))
    return value


def name_schemas(document: Any) -> None:
    """Give schemas specific names."""
    schemas = document["components"]["schemas"]
    document["components"]["schemas"] = {_NAMES.get(name, name): named(schema) for name, schema in schemas.items()}
    document["paths"] = named(document["paths"])


def _problem() -> dict[str, Any]:
    return {_PROBLEM: {"schema": {"$ref": _REF}}}


def _errors_of(method: str, operation: dict[str, Any]) -> set[int]:
    found = {400, 401, 403}
    if operation["parameters"] or operation.get("requestBody") or method != "get":
        found.add(422)  # An operation that changes something also refuses query parameters that it does not read.
    if operation.get("requestBody"):
        found |= {413, 415}
    if _IF_MATCH in operation["parameters"]:
        found.add(412)
    if operation["operationId"] not in _ALWAYS_FOUND and any(each["in"] == "path" for each in operation["parameters"]):
        found.add(404)
    return found | {409} if method == "post" else found  # the same Idempotency-Key may be in use by a running request
