"""ETag, If-Match and If-None-Match: detect concurrent writes, and wait for changes."""

from django.http import HttpRequest, HttpResponse


def if_match(request: HttpRequest) -> str | None:
    """The etag in If-Match without quotes; None when there is none or it is `*`."""
    return _named(request, "If-Match")


def if_none_match(request: HttpRequest) -> str | None:
    return _named(request, "If-None-Match")


def _named(request: HttpRequest, header: str) -> str | None:
    value = request.headers.get(header, "").strip()
    if not value or value == "*":
        return None
    return value.removeprefix("W/").strip('"')


def put(response: HttpResponse, etag: str) -> None:
    response.headers["ETag"] = f'"{etag}"'
