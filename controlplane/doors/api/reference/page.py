"""The API reference page, made from the OpenAPI document."""

from dataclasses import dataclass

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.doors.api.api import api
from controlplane.doors.api.reference.inputs import Input, inputs_of
from controlplane.people.accounts.decorators import viewer_required
from controlplane.people.permissions import SCOPES


@dataclass(frozen=True, slots=True)
class OperationRow:
    name: str  # such as GET /api/v1/policies
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
