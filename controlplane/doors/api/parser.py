"""Parses JSON bodies strictly: values that a database or a router cannot store are refused."""

import json
import re
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja.parser import Parser

from controlplane.doors.api.problems import ApiProblem
from router.contract.strict_text import check_depth, unique_keys

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
        # curl -d sends a form content type. Reading JSON from it would let a foreign page's form post with a session,
        # so application/json is required.
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiProblem(415, detail=f"send application/json, not {kind or 'a body without Content-Type'}")
        return loads(request.body)
