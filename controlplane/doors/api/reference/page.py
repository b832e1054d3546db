"""The API reference page, made from the OpenAPI document."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.doors.api.api import api
from controlplane.people.accounts.decorators import viewer_required
from controlplane.people.permissions import SCOPES

Json = Mapping[str, Any]
TYPES = {"integer": "whole number", "string": "text", "boolean": "true or false"}
LIMITS = (("minimum", "maximum", ""), ("minLength", "maxLength", " characters"), ("minItems", "maxItems", " of them"))


@dataclass(frozen=True, slots=True)
class Input:
    name: str
    place: str  # path, query, header or body
    required: bool
    allowed: str
    meaning: str


def inputs_of(operation: Json, schemas: Json) -> list[Input]:
    """Return the inputs. `schemas` are the referenced schemas of the document, by name."""
    return [*_parameters(operation, schemas), *_body(operation, schemas)]


def _parameters(operation: Json, schemas: Json) -> Iterator[Input]:
    for each in operation.get("parameters") or ():
        allowed = _allowed(each["schema"], schemas)
        yield Input(each["name"], each["in"], bool(each.get("required")), allowed, each.get("description") or "")


def _body(operation: Json, schemas: Json) -> Iterator[Input]:
    body = operation.get("requestBody") or {}
    kinds = body.get("content") or {}
    if kinds and "application/json" not in kinds:
        yield Input(" or ".join(kinds), "body", True, "", body.get("description") or "")
        return
    schema = _followed((kinds.get("application/json") or {}).get("schema") or {}, schemas)
    needed = schema.get("required") or ()
    for name, field in (schema.get("properties") or {}).items():
        yield Input(name, "body", name in needed, _allowed(field, schemas), field.get("description") or "")


def _followed(schema: Json, schemas: Json) -> Json:
    """Resolve a reference; an optional body is wrapped in an allOf with one entry."""
    (schema,) = schema.get("allOf", (schema,))
    found: Json = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    return found


def _allowed(schema: Json, schemas: Json) -> str:
    default = schema.get("default")
    return _kind(schema, schemas) + (f"; default {default}" if default not in (None, "", [], {}) else "")


def _kind(schema: Json, schemas: Json) -> str:
    forms = schema.get("anyOf") or schema.get("oneOf")
    if forms:
        return " or ".join(_kind(each, schemas) for each in forms if each.get("type") != "null")
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(map(str, schema["enum"])) if "enum" in schema else str(schema["const"])
    if "$ref" in schema:
        return "object with " + ", ".join(_followed(schema, schemas).get("properties") or ())
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items') or {}, schemas)}{_limits(schema)}"
    return str(TYPES.get(schema.get("type", ""), schema.get("type", "anything"))) + _limits(schema)


def _limits(schema: Json) -> str:
    found = [(schema.get(low), schema.get(high), what) for low, high, what in LIMITS]
    return "".join(f", {_range(low, high)}{what}" for low, high, what in found if low is not None or high is not None)


def _range(low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"at most {high:,}" if low is None else f"at least {low:,}"
    return f"{low:,} to {high:,}"


@dataclass(frozen=True, slots=True)
class OperationRow:
    name: str  # for example GET /api/v1/policies
    id: str
    summary: str
    inputs: list[Input]


@login_required
@viewer_required
@require_GET
def reference(request: HttpRequest) -> HttpResponse:
    schema = api.get_openapi_schema()
    groups: dict[str, list[OperationRow]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            inputs = inputs_of(operation, schema["components"]["schemas"])
            row = OperationRow(f"{method.upper()} {path}", operation["operationId"], operation["summary"], inputs)
            groups.setdefault((operation.get("tags") or ["other"])[0], []).append(row)
    context = {
        "groups": sorted(groups.items()),
        "scopes": SCOPES.items(),
        "origin": request.build_absolute_uri("/")[:-1],
    }
    return render(request, "api/reference.html", context)
