"""An answer completed by the prefill instance, sent to the client whole or as a stream."""

from collections.abc import Iterator
from typing import cast

import orjson

from router.contract.net.http_client import Headers
from router.contract.values.json_value import JsonObject
from router.upstream.connection import EventSink, Sink

_STREAM: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
_STREAMED_AS = {"chat.completion": "chat.completion.chunk"}


class WholeAnswer:
    """Stands in for an engine's connection that has delivered everything."""

    def __init__(self, answer: JsonObject, *, streams: bool) -> None:
        self.status = 200
        self._left = b"".join(_events(answer)) if streams else orjson.dumps(answer)
        length = b"%d" % len(self._left)
        self.headers = _STREAM if streams else [(b"content-type", b"application/json"), (b"content-length", length)]

    @property
    def done(self) -> bool:
        return not self._left

    def read_now(self) -> bytes:
        left, self._left = self._left, b""
        return left

    async def read(self) -> bytes:
        return self.read_now()

    async def pour(self, sink: Sink, event_sink: EventSink | None = None) -> bytes:
        return await self.read()

    def resume(self) -> None: ...

    def check_quiet(self, passed_s: float, limit_s: float, *, is_early: bool = False) -> bool:
        return False

    def release(self) -> None: ...


def _events(answer: JsonObject) -> Iterator[bytes]:
    """Return the events: a chunk with text and finish reason, the usage, the end."""
    head = {name: answer.get(name) for name in ("id", "object", "created", "model")}
    head["object"] = _STREAMED_AS.get(str(head["object"]), head["object"])
    choices = [
        {"delta" if name == "message" else name: value for name, value in choice.items()}
        for choice in cast(list[JsonObject], answer["choices"])
    ]
    for choice in choices:
        _number_calls(choice.get("delta"))
    yield _event({**head, "choices": [*choices]})
    if isinstance(answer.get("usage"), dict):
        yield _event(head | {"choices": [], "usage": answer["usage"]})
    yield b"data: [DONE]\n\n"


def _number_calls(delta: object) -> None:
    """Number the tool calls: clients join streamed parts by `index`, which whole answers lack."""
    calls = delta.get("tool_calls") if isinstance(delta, dict) else None
    for index, call in enumerate(calls if isinstance(calls, list) else ()):
        if isinstance(call, dict):
            call.setdefault("index", index)


def _event(made: JsonObject) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(made)
