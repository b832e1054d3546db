"""The command palette, and the page of the first minutes."""

from dataclasses import asdict

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET

from controlplane.pages.palette.search import search


@require_GET
@never_cache
def find(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"found": [asdict(one) for one in search(request.GET.get("q", ""), request.user)]})


@require_GET
def first_minutes(request: HttpRequest) -> HttpResponse:
    return render(request, "help/first_minutes.html")
