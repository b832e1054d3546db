"""The API reference page, made from the OpenAPI document."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.accounts.decorators import viewer_required
from controlplane.api.api import api
from controlplane.api.reference.inputs import inputs_of
from controlplane.permissions import SCOPES


@login_required
@viewer_required
@require_GET
def reference(request: HttpRequest) -> HttpResponse:
    schema: dict[str, Any] = api.get_openapi_schema()
    groups: dict[str, list[dict[str, Any]]] = {}
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            inputs = inputs_of(operation, schema["components"]["schemas"])
            row = {"method": method.upper(), "path": path, "operation": operation, "inputs": inputs}
            groups.setdefault((operation.get("tags") or ["other"])[0], []).append(row)
    context = {
        "groups": sorted(groups.items()),
        "scopes": SCOPES.items(),
        "origin": request.build_absolute_uri("/")[:-1],
    }
    return render(request, "api/reference.html", context)
