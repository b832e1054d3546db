"""ETag and If-Match: detect concurrent writes."""

from django.http import HttpRequest, HttpResponse


def if_match(request: HttpRequest) -> str | None:
    """The etag in If-Match without quotes; None when there is none or it is `*`."""
    value = request.headers.get("If-Match", "").strip()
    if not value or value == "*":
        return None
    return value.removeprefix("W/").strip('"')


def put(response: HttpResponse, etag: str) -> None:
    response.headers["ETag"] = f'"{etag}"'
