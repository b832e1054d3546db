"""Values found in an engine's answer: fields of an event, an error, the end. Pure."""

from typing import Any

import msgspec

from router.contract.values.json_value import JsonObject


class AnswerError(msgspec.Struct, frozen=True):
    """An error that an engine reported inside an answer."""

    message: str
    status: int | None = None  # HTTP status, if the error has one
    is_clients: bool = False  # by code and type, the request is invalid, so that any engine would refuse it
    body: bytes = b""  # the error as an answer's body; empty without an object


class SaidChoice(msgspec.Struct):
    delta: Any = None
    text: Any = None
    finish_reason: Any = None
    error: Any = None


class SaidResponse(msgspec.Struct):
    """The object of the Responses API."""

    id: Any = None
    error: Any = None
    status: Any = None
    usage: Any = None


class Said(msgspec.Struct):
    """The fields of an event or whole answer that determine the outcome of a request; other fields are skipped."""

    type: Any = None
    object: Any = None
    id: Any = None
    choices: list[SaidChoice] | None = None
    delta: Any = None
    content_block: Any = None
    item: Any = None
    error: Any = None
    errors: Any = None
    response: SaidResponse | None = None
    message: Any = None
    code: Any = None
    status: Any = None
    stop_reason: Any = None
    usage: Any = None
    sglext: Any = None


class Ending(msgspec.Struct, frozen=True, gc=False):
    """The end of a stream."""

    error: AnswerError | None = None  # error among the last events
    is_whole: bool = False  # True once the API's last event has arrived
    finishes: bool = False  # True if a choice has its finish reason
    usage: JsonObject | None = None

    @property
    def is_over(self) -> bool:
        """Return whether the stream is over. Engines end a stream of chunks with [DONE]; a few send only the usage
        last."""
        return self.is_whole or (self.finishes and self.usage is not None)


class Ended(Ending, frozen=True):
    """The final state of an answer."""

    first_usage: JsonObject | None = None  # first part of the usage, if the stream reports it in two parts
