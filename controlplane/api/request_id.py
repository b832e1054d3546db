"""Gives each request an id: in the X-Request-ID header of its answer, in log lines and in audit entries."""

import re
import uuid
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponseBase

GIVEN = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestId:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if GIVEN.fullmatch(given) else uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response.headers["X-Request-ID"] = request_id
        return response
