"""The page of the catalogue of profiles."""

from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from controlplane.evidence.profiles import services
from fleet.engine.tables import catalogue

LISTED = 60
MODEL_MAX = 200  # characters


@require_GET
def profiles(request: HttpRequest) -> HttpResponse:
    model = request.GET.get("model", "").strip()[:MODEL_MAX]
    gpus = sorted({one.gpu for one in catalogue().values()})
    gpu = request.GET.get("gpu", "")
    gpu = gpu if gpu in gpus else ""
    found = services.found(gpu, model)
    context = {
        "model": model,
        "gpu": gpu,
        "gpus": gpus,
        "rows": [services.shown(one) | {"layout": one.layout} for one in found[:LISTED]],
        "found": len(found),
        "of": len(catalogue()),
        "csv": urlencode({"format": "csv", "gpu": gpu, "model": model}),
    }
    return render(request, "profiles/profiles.html", context)
