"""A page that may show a secret once: it must not be cached, and has status 422 if its form has errors."""

from typing import Any

from django.forms import BaseForm
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def secret_page(request: HttpRequest, template: str, *, form: BaseForm, **context: Any) -> HttpResponse:
    response = render(request, template, {"form": form, **context}, status=422 if form.errors else 200)
    response.headers["Cache-Control"] = "no-store"
    return response
