"""Refuses input that a changing operation does not read: otherwise a misspelt `?dry_run=true` would apply the document.
Reading operations ignore unknown query parameters.
"""

import functools
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from django.core.exceptions import TooManyFieldsSent, TooManyFilesSent
from django.http import HttpRequest, HttpResponseBase
from django.http.multipartparser import MultiPartParserError
from ninja import Schema
from ninja.operation import Operation
from ninja.parser import Parser
from pydantic import ConfigDict

from controlplane.doors.api.auth import SAFE, principal_of
from controlplane.doors.api.problems import ApiProblem
from router.contract.values.problem import Problem
from router.contract.values.strict_text import check_depth, unique_keys

BODIES = ("body", "form", "file")
FORMS = ("multipart/form-data", "application/x-www-form-urlencoded")
Run = Callable[..., HttpResponseBase]


# Parses JSON bodies strictly: values that a database or a router cannot store are refused
NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # an escaped NUL, not a backslash followed by letters


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def loads(raw: bytes) -> Any:
    """Parse JSON. ValueError for duplicate keys, NaN, Infinity, NUL characters, lone surrogates and deep nesting."""
    try:
        value = json.loads(raw, parse_constant=_no_constant, object_pairs_hook=unique_keys)
        check_depth(value)
        if b"\\u" in raw:
            text = json.dumps(value, ensure_ascii=False)
            text.encode()  # raises UnicodeEncodeError, a ValueError, for a lone surrogate
            if NUL.search(text):
                raise ValueError("strings must not contain NUL characters")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


class StrictJson(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        kind = (request.content_type or "").lower()
        # curl -d sends a form content type. If JSON were read from it, a foreign page's form could post with the user's
        # session, so application/json is required.
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiProblem(415, detail=f"send application/json, not {kind or 'a body without Content-Type'}")
        value = loads(request.body)
        return {} if value is None else value  # some clients send null instead of an empty body


class Body(Schema):
    """The base of request bodies: unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")


def refuse_unread(run: Run) -> Run:
    """Wrap `Operation.run`; a caller without credentials gets the operation's 401."""
    operation: Operation = run.__self__  # type: ignore[attr-defined]
    names = [name for model in operation.models if model.__ninja_param_source__ == "query" for name in _names(model)]
    has_body = _has_body(operation)

    @functools.wraps(run)
    def checked(request: HttpRequest, **path: Any) -> HttpResponseBase:
        try:
            if request.method not in SAFE and principal_of(request) is not None:
                _check_query(request, names)
                if not has_body:
                    _check_no_body(request)
        except Exception as error:
            return operation.api.on_exception(request, error)
        return run(request, **path)

    return checked


def _names(model: Any) -> list[str]:
    return list(model.__ninja_flatten_map__)


def _has_body(operation: Operation) -> bool:
    """Return whether there is a body: one from a model, or one that the operation reads itself and then describes."""
    sources = {model.__ninja_param_source__ for model in operation.models}
    return not sources.isdisjoint(BODIES) or "requestBody" in (operation.openapi_extra or {})


def _check_query(request: HttpRequest, names: list[str]) -> None:
    allowed = ", ".join(names) or "none"
    given = request.GET.items()
    unknown = [Problem(name, value, "unknown query parameter", allowed) for name, value in given if name not in names]
    if unknown:
        raise ApiProblem(422, detail="some query parameters are unknown", errors=unknown)


def _check_no_body(request: HttpRequest) -> None:
    """Refuse a body. An empty object or form is accepted, because some clients send one with each POST."""
    sent = _sent(request)
    if sent not in (None, {}):
        raise ApiProblem(422, detail="this operation takes no body", errors=[Problem("", sent, "send none")])


def _sent(request: HttpRequest) -> Any:
    if request.content_type in FORMS:
        return _form(request)
    try:
        return loads(request.body) if request.body.strip() else None
    except ValueError:
        return request.body[:200].decode(errors="replace")


def _form(request: HttpRequest) -> Any:
    try:
        fields = {**request.POST.dict(), **dict.fromkeys(request.FILES, "a file")}
    except (MultiPartParserError, TooManyFieldsSent, TooManyFilesSent):
        return "a form that cannot be read"
    return {name: value for name, value in fields.items() if name != "csrfmiddlewaretoken"}
