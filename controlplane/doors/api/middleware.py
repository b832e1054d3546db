"""The middleware of the API: each request gets an id, each error the API's shape."""

import re
import uuid
from collections.abc import Callable

import structlog
from django.http import HttpRequest, HttpResponseBase

from controlplane.doors.api.problems import CONTENT_TYPE, ApiProblem, response

GIVEN = re.compile(r"[A-Za-z0-9._-]{8,64}")


class Middleware:
    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        return self.get_response(request)


class RequestId(Middleware):
    """Sets the request id in the answer's header X-Request-ID, in log lines and in audit entries."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if GIVEN.fullmatch(given) else uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            response = self.get_response(request)
        response.headers["X-Request-ID"] = request_id
        return response


class ApiProblems(Middleware):
    """Gives ninja's own errors (405 for a wrong method) the API's error shape."""

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        answer = self.get_response(request)
        if not request.path.startswith("/api/") or answer.status_code < 400:
            return answer
        if answer.headers.get("Content-Type", "").startswith(CONTENT_TYPE):
            return answer
        if answer.status_code == 405:
            allowed = answer.headers.get("Allow", "")
            problem = ApiProblem(405, detail=f"allowed here: {allowed}", headers={"Allow": allowed})
            return response(request, problem)
        return answer
