"""Errors of the API, all in the form of RFC 9457 problem+json."""

import json
from collections.abc import Sequence
from typing import Any

import structlog
from django.http import HttpRequest, HttpResponse
from ninja import Field, Schema

from router.contract.net.retry_after import retry_after
from router.contract.values.problem import Problem, as_json

CONTENT_TYPE = "application/problem+json"
TITLES = {
    400: "The request cannot be read",
    401: "Authentication required",
    403: "Not allowed",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    412: "Changed by someone else",
    413: "The request is too large",
    415: "Unsupported media type",
    422: "Invalid input",
    428: "If-Match required",
    429: "Too many requests",
    500: "Internal error",
    503: "Temporarily unavailable",
    507: "The disk is full",
}


class FieldProblem(Schema):
    path: str = Field(description="Dotted path of the field, empty for the whole input")
    value: Any = Field(None, description="Sent value")
    message: str = Field(description="The reason, with the allowed values")


class ConflictField(Schema):
    path: str
    base: Any = Field(None, description="Value before both changes")
    theirs: Any = Field(None, description="Stored value")
    mine: Any = Field(None, description="Sent value")


class ProblemOut(Schema):
    """RFC 9457."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str = ""
    instance: str = ""
    request_id: str = ""
    errors: list[FieldProblem] = []
    conflicts: list[ConflictField] = []
    current: str = Field("", description="The ETag to send instead, after 409 and 412")


class ApiProblem(Exception):
    """An error that any operation may raise."""

    def __init__(
        self,
        status: int,
        title: str = "",
        detail: str = "",
        errors: Sequence[Problem] = (),
        *,
        headers: dict[str, str] | None = None,
        **extra: Any,  # for example conflicts=[{path, base, theirs, mine}], current="…"
    ) -> None:
        super().__init__(detail or title or TITLES.get(status, ""))
        self.status = status
        self.title = title or TITLES.get(status, "Error")
        self.detail = detail
        self.errors = errors
        after = retry_after(status)
        self.headers = {**({} if after is None else {"Retry-After": str(after)}), **(headers or {})}
        self.extra = extra


def request_id_of(request: HttpRequest) -> str:
    return str(getattr(request, "request_id", "") or structlog.contextvars.get_contextvars().get("request_id", ""))


def response(request: HttpRequest, problem: ApiProblem) -> HttpResponse:
    body = {
        "type": "about:blank",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": request.path,
        "request_id": request_id_of(request),
        "errors": [as_json(error) for error in problem.errors],
        "conflicts": [],
        "current": "",
        **problem.extra,
    }
    answer = HttpResponse(json.dumps(body, default=str), status=problem.status, content_type=CONTENT_TYPE)
    for name, value in problem.headers.items():
        answer.headers[name] = value
    return answer


def raw(path: str, problem: ApiProblem) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    """Return status, headers and body of the answer to a request that bypasses Django."""
    request = HttpRequest()
    request.path = path
    answer = response(request, problem)
    headers = [(name.lower().encode(), value.encode()) for name, value in answer.headers.items()]
    return answer.status_code, [*headers, (b"content-length", str(len(answer.content)).encode())], answer.content


# Errors of an operation beyond those that openapi.py describes for all: `response={200: Out, **errors(503)}`.
def errors(*statuses: int) -> dict[int, type[Schema]]:
    return dict.fromkeys(statuses, ProblemOut)
