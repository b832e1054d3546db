"""What the server needs of an API's shape: reading a request, writing answers whole or as server-sent events."""

from collections.abc import Callable
from dataclasses import dataclass

from fleet.simengine.http.body import Body
from fleet.simengine.http.refusal import ApiError
from fleet.simengine.job import Ask, Choice, EngineJob


@dataclass(frozen=True, slots=True)
class ApiFormat:
    id_prefix: str
    parse: Callable[[Body], Ask]
    whole: Callable[[EngineJob], bytes]
    begin: Callable[[EngineJob], bytes]  # the events before the first token
    # The next tokens of one answer; their text needs no escaping in JSON (answers.py).
    chunk: Callable[[EngineJob, Choice, str], bytes]
    end: Callable[[EngineJob], bytes]  # the events after the last token
    refuse: Callable[[ApiError], bytes]
    broken: Callable[[ApiError], bytes]  # the event that ends a stream which cannot go on
