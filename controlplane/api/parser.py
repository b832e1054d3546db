"""Reading JSON bodies strictly: what a database or a router could not hold is refused at the door."""

import json
import re
from typing import Any, NoReturn

from django.http import HttpRequest
from ninja.parser import Parser

from controlplane.api.problems import ApiProblem
from router.contract.strict_text import unique_keys

NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")  # an escaped NUL, not a backslash followed by letters


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def loads(raw: bytes) -> Any:
    """ValueError for keys given twice, NaN, Infinity, NUL characters, lone surrogates and nesting beyond reason."""
    try:
        value = json.loads(raw, parse_constant=_no_constant, object_pairs_hook=unique_keys)
        if b"\\u" in raw:
            text = json.dumps(value, ensure_ascii=False)
            text.encode()  # UnicodeEncodeError, a ValueError, for a lone surrogate
            if NUL.search(text):
                raise ValueError("strings may not hold NUL characters")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return value


class StrictJson(Parser):
    def parse_body(self, request: HttpRequest) -> Any:
        kind = (request.content_type or "").lower()
        # curl -d without a header says "form"; reading JSON from it is a kindness that CSRF forbids for sessions,
        # so the header is asked for.
        if kind != "application/json" and not kind.endswith("+json"):
            raise ApiProblem(415, detail=f"send application/json, not {kind or 'a body without Content-Type'}")
        return loads(request.body)
