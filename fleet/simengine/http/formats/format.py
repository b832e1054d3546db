"""The format of one API: parsing requests, writing responses whole or as server-sent events."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from fleet.simengine.http.body import Body
from fleet.simengine.http.errors import ApiError
from fleet.simengine.job import Choice, EngineJob, RequestParams


@dataclass(frozen=True, slots=True)
class ApiFormat:
    id_prefix: str
    parse: Callable[[Body], RequestParams]
    whole: Callable[[EngineJob], bytes]
    begin: Callable[[EngineJob], bytes]  # returns the events before the first token
    # Returns the next tokens of one choice; their text needs no escaping in JSON (generation.py).
    chunk: Callable[[EngineJob, Choice, str], bytes]
    end: Callable[[EngineJob], bytes]  # returns the events after the last token
    error_body: Callable[[ApiError], bytes]
    error_event: Callable[[ApiError], bytes]  # returns the event that ends a failed stream


def sse_event(kind: str, **fields: Any) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), msgspec.json.encode({"type": kind, **fields}))
