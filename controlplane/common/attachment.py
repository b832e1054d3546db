"""Answers that a browser saves as a file."""

from django.http import HttpResponse


def attachment(content: str | bytes, name: str, kind: str = "text/csv; charset=utf-8") -> HttpResponse:
    return HttpResponse(content, kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})
