"""What the server needs of an API's shape: reading a request, writing answers whole or as server-sent events."""

from collections.abc import Callable
from dataclasses import dataclass

from fleet.simengine.http.body import Body
from fleet.simengine.http.refusal import Refusal
from fleet.simengine.job import Ask, Job, Part


@dataclass(frozen=True, slots=True)
class Format:
    id_prefix: str
    parse: Callable[[Body], Ask]
    whole: Callable[[Job], bytes]
    begin: Callable[[Job], bytes]  # the events before the first token
    # The next tokens of one answer; their text needs no escaping in JSON (answers.py).
    chunk: Callable[[Job, Part, str], bytes]
    end: Callable[[Job], bytes]  # the events after the last token
    refuse: Callable[[Refusal], bytes]
    broken: Callable[[Refusal], bytes]  # the event that ends a stream which cannot go on
