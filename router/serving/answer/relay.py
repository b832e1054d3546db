"""Relays an answer from engine to client, byte by byte, at the client's pace."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import lru_cache
from typing import Any, Protocol

from router.contract.answer import answers, verdict
from router.contract.answer.said import AnswerError, Ended
from router.contract.answer.verdict import Result
from router.contract.api_paths import MEDIA, WITH_FILES
from router.contract.engine_fields import per_event
from router.http import errors, headers
from router.http.client import ClientConnection
from router.limits import charge
from router.request import lending
from router.request.call import Call
from router.serving.answer import kv_location, renaming
from router.serving.passing import ByteChange
from router.upstream.answer import usage
from router.upstream.answer.beginning import LARGEST, Beginning
from router.upstream.answer.stream_tail import StreamTail, WholeTail
from router.upstream.connection import EventSink
from router.upstream.errors import ProtocolError, UpstreamError
from router.upstream.response import EngineResponse

WHOLE = 1024 * 1024  # bytes; smaller unstreamed answers are sent once complete
HELD_S = 10.0  # longest time that a stream's beginning is held back for a possible retry
TEXT = "the answer is text where JSON was asked for"
_LOCATED = kv_location.KEY + b":{"  # in vLLM's spelling; each event has the key, usually with null
CUT = "the answer ended without its last event"
ENDS_TURN = (400, 401, 429)  # statuses after which Codex does not retry, or asks for another key or quota


class BegunAnswer:
    __slots__ = (
        *("background", "began", "beginning", "body", "connection", "ended", "error", "is_early", "is_json"),
        *("on_content", "result", "streams"),
    )

    def __init__(self, connection: EngineResponse, body: bytes, streams: bool, result: Result = "served") -> None:
        self.connection = connection
        self.body = body  # read so far
        self.streams = streams
        self.result = result  # the result so far
        self.background = False  # the client asked for an answer that may be generated later
        self.is_early = False  # `wait` must be awaited
        self.is_json = False  # a large answer that is not streamed is JSON
        self.error: AnswerError | None = None  # error inside an answer of status 200
        self.began: Beginning | None = None  # beginning of a stream
        self.beginning: Beginning | None = None  # the same, until the stream has content; None afterwards
        self.ended: Ended | None = None  # end of a complete answer
        self.on_content: Callable[[], None] | None = None  # called when content arrives later


def begin(connection: EngineResponse, api_path: str, *, asks_stream: bool, background: bool = False) -> BegunAnswer:
    """Judge the part of the answer that has arrived. `background` is True if the client asked for an answer that is
    generated later. Raise UpstreamError."""
    if 300 <= connection.status < 400:
        raise ProtocolError(f"it answered {connection.status}: redirects are neither followed nor passed on")
    kind = headers.value_of(connection.headers, b"content-type").lower()
    if kind.startswith(b"text/event-stream") and connection.status == 200:
        answer = _begin_stream(connection)
        return answer if asks_stream or answer.is_early else _unasked(answer, api_path)
    result: Result = "served" if connection.status < 400 else verdict.of_status(connection.status)
    answer = BegunAnswer(connection, connection.read_now(), False, result)
    answer.background = background
    if connection.done:
        _judge_whole(answer, kind, api_path)
    else:
        answer.is_early = not kind.startswith(b"audio/")  # speech is played while it is generated
        if not answer.is_early:
            _judge_part(answer, kind, api_path)
    return _unstreamed(answer, api_path) if asks_stream and not answer.is_early else answer


async def wait(answer: BegunAnswer, api_path: str, *, asks_stream: bool) -> BegunAnswer:
    """Wait for the stream's first content, or for the whole answer: until then another instance can be tried.
    Raise UpstreamError.
    """
    connection, beginning = answer.connection, answer.beginning
    if beginning is None:
        answer.body = await _read_on(connection, answer.body)
        kind = headers.value_of(connection.headers, b"content-type").lower()
        (_judge_whole if connection.done else _judge_part)(answer, kind, api_path)
        return _unstreamed(answer, api_path) if asks_stream else answer
    answer.body = await _hold(connection, beginning, answer.body)
    if beginning.sign != "quiet" or connection.done:
        answer.beginning = None
        _judge_beginning(answer, beginning)
    return answer if asks_stream else _unasked(answer, api_path)


def _unasked(answer: BegunAnswer, api_path: str) -> BegunAnswer:
    """Judge a stream that was not requested."""
    if answer.error is None and api_path not in MEDIA:  # for speech, another field requests a stream
        answer.error, answer.result, answer.beginning = answers.STREAM, "failed_before_content", None
    return answer


def _unstreamed(answer: BegunAnswer, api_path: str) -> BegunAnswer:
    """Judge a whole answer where a stream was requested: the client would find no event in it."""
    if answer.result == "served" and api_path in answers.WHOSE_END:
        answer.error = answers.NO_STREAM
        answer.result = verdict.of_error(answer.error, has_content=False)
    return answer


async def wait_for_content(answer: BegunAnswer) -> None:
    """Wait for the first bytes of a whole answer other than keep-alives. Raise UpstreamError."""
    answer.body = await _read_on(answer.connection, answer.body, only_blank=True)


async def _read_on(connection: EngineResponse, body: bytes, *, only_blank: bool = False) -> bytes:
    parts, size = [body], len(body)
    while size <= WHOLE and not connection.done and not (only_blank and parts[-1].strip()):
        parts.append(await connection.read())
        size += len(parts[-1])
    return b"".join(parts)


def _judge_whole(answer: BegunAnswer, kind: bytes, api_path: str) -> None:
    if answer.connection.status >= 300:
        answer.ended = Ended(is_whole=True)
        return
    is_json = kind.startswith(b"application/json") or _should_be_json(kind, api_path)
    event = answers.said(answer.body) if is_json else None
    if event is not None:
        answer.error = answers.wrong_with(event, answer.body, api_path, background=answer.background)
    else:
        answer.error = _unread(answer, api_path, kind, is_json=is_json)
    usage = None
    if event is not None:
        usage = event.usage if type(event.usage) is dict and event.sglext is None else answers.usage_of(event)
    answer.ended = Ended(answer.error, is_whole=True, usage=usage)
    if answer.error is not None:
        answer.result = verdict.of_error(answer.error, has_content=False)


def _should_be_json(kind: bytes, api_path: str) -> bool:
    """Return whether an answer of an unexpected content type has to be JSON: it claims to be JSON, names no type, or
    belongs to an API without other types.
    """
    if not kind or api_path in answers.WHOSE_END:
        return api_path not in MEDIA and not kind.startswith(b"text/")
    return kind.find(b"json") >= 0


def _judge_part(answer: BegunAnswer, kind: bytes, api_path: str) -> None:
    """Judge the beginning of an answer that is too large to keep."""
    if answer.connection.status >= 300:
        return
    answer.is_json = kind.startswith(b"application/json") or _should_be_json(kind, api_path)
    error = _compressed(answer.connection) or (None if answer.is_json else _unlike(answer, api_path, kind))
    if error is None and answer.is_json and not answers.begins_json(answer.body):
        error = AnswerError(answers.NO_JSON)
    if error is not None:
        answer.error, answer.result = error, verdict.of_error(error, has_content=False)


def _unread(answer: BegunAnswer, api_path: str, kind: bytes, *, is_json: bool) -> AnswerError | None:
    """Return why a body without known fields is no valid answer."""
    if (compressed := _compressed(answer.connection)) is not None:
        return compressed
    if is_json:
        return answers.wrong_with(None, answer.body, api_path)
    return _unlike(answer, api_path, kind)


def _compressed(connection: EngineResponse) -> AnswerError | None:
    """Return the error of an answer whose content cannot be read because it is compressed, although no compression was
    requested."""
    coding = headers.value_of(connection.headers, b"content-encoding").strip().lower()
    if coding in (b"", b"identity"):
        return None
    return AnswerError(f"the answer is compressed ({coding.decode('latin-1')}), which it was not asked to be")


def _unlike(answer: BegunAnswer, api_path: str, kind: bytes) -> AnswerError | None:
    """Return why an answer is of the wrong type. Audio, images, and embeddings requested as bytes are not JSON;
    transcriptions may be text, and that of silence is empty."""
    is_text, may_be_text = kind.startswith(b"text/"), api_path in WITH_FILES and not kind.startswith(b"text/html")
    if not answer.body and not (is_text and may_be_text):
        return AnswerError(answers.EMPTY)
    return AnswerError(TEXT) if is_text and not may_be_text else None


def _begin_stream(connection: EngineResponse) -> BegunAnswer:
    beginning = Beginning()
    answer = BegunAnswer(connection, connection.read_now(), True)
    answer.began = beginning
    if (compressed := _compressed(connection)) is not None:
        answer.error, answer.result = compressed, "failed_before_content"
    elif beginning.feed(answer.body) == "quiet" and not connection.done:
        answer.beginning, answer.is_early = beginning, True
    else:
        _judge_beginning(answer, beginning)
    return answer


def _judge_beginning(answer: BegunAnswer, beginning: Beginning) -> None:
    if beginning.sign == "error" or beginning.sign == "quiet":
        answer.error = beginning.error or AnswerError(answers.NO_CONTENT)
        answer.result = verdict.of_error(answer.error, has_content=False)


async def _hold(connection: EngineResponse, beginning: Beginning, body: bytes) -> bytes:
    """Read until content arrives, the stream ends, the stream is too large to hold, or HELD_S have passed."""
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(HELD_S):
            while beginning.sign == "quiet" and not connection.done and size <= LARGEST:
                parts.append(await connection.read())
                size += len(parts[-1])
                beginning.feed(parts[-1])
    except TimeoutError:
        pass
    return b"".join(parts)


def code_of_event(call: Call, status: int, body: bytes, code: str = "engine_refused") -> str:
    """Return the code of the event that replaces an error with `code`; empty if the client receives the error itself.
    Codex repeats a request up to thirty times and Qwen Code six times, whatever the answer's header says, unless the
    error has another status or arrives as an event. Codex compacts a conversation that no longer fits only after an
    event.
    """
    lines = call.request.forwarded
    if not call.request.prompt.stream:
        return ""
    if call.api_path == "/v1/responses" and b"x-codex-window-id:" in lines:
        ends_turn = "" if status in ENDS_TURN else "invalid_prompt"
        return "context_length_exceeded" if answers.is_too_long(status, body) else ends_turn
    is_repeated = status == 429 or status >= 500
    return code if is_repeated and call.api_path == "/v1/chat/completions" and b"user-agent: QwenCode/" in lines else ""


def fail_in_stream(call: Call, code: str, message: str, client: ClientConnection) -> None:
    """Send a stream whose only event is the error."""
    outcome = call.outcome
    outcome.streamed, outcome.status, outcome.begun, outcome.last_byte = True, 200, True, time.perf_counter()
    client.start(200, b"content-type: text/event-stream\r\n" + own_lines(call))
    if call.api_path == "/v1/responses":
        client.end(errors.failed_response(code, message, call.id, call.request.prompt.model))
    else:
        client.end(errors.event(call.api_path, code, message, call.id).lstrip())


def forward(call: Call, answer: BegunAnswer, client: ClientConnection) -> Coroutine[Any, Any, None] | None:
    """Send a whole answer to the client, or begin another one. Return the rest of the work to await, if any."""
    connection = answer.connection
    outcome, status = call.outcome, connection.status
    outcome.streamed, outcome.status = answer.streams, status
    outcome.begun = True
    may_change = answer.streams or call.alias is not None or outcome.offload is not None
    changes = _changes(call, answer) if may_change else ()
    located = _location(call, answer) if outcome.offload is not None else None
    # A broken stream needs one more event
    lines = headers.returned(connection.headers, without_length=answer.streams or bool(changes or located))
    if status >= 400:
        lines = errors.saying_when(status, lines)
    client.start(status, lines + own_lines(call))
    if answer.ended is not None and not changes and located is None:
        _take_end(call, answer, answer.ended)  # before the client can request the receipt
        client.end(answer.body)
        return None
    return _pour(call, answer, client, changes, located)


async def _pour(
    call: Call,
    answer: BegunAnswer,
    client: ClientConnection,
    changes: tuple[ByteChange, ...],
    located: kv_location.LocationFilter | None,
) -> None:
    """Pass the answer on as it arrives. An UpstreamError here occurs after the first byte, so there is no retry."""
    connection = answer.connection
    passing = (_Relay if call.most is None else _CountingRelay)(call, client, answer, changes, located)
    if answer.body and not connection.done:
        passing.take(answer.body)
        answer.body = b""
    client.on_room = connection.resume
    try:
        as_it_came = passing.event_sink() if answer.streams and client.takes_chunks else None
        rest = await connection.pour(passing.take, as_it_came)
    except UpstreamError as error:
        passing.over()
        if answer.streams:
            message = f"the stream broke: {error}; the answer is incomplete"
            client.end(errors.event(call.api_path, error.code, message, call.id, passing.next_number()))
        raise
    except asyncio.CancelledError:
        passing.over()
        raise
    finally:
        client.on_room = None
    passing.finish(answer.body + rest)


def _changes(call: Call, answer: BegunAnswer) -> tuple[ByteChange, ...]:
    """Return the filters that change the answer's bytes on their way to the client."""
    changes: tuple[ByteChange, ...] = ()
    chosen = call.alias
    if chosen is not None and chosen.renames:
        changes = (renaming.Rename(chosen.serves, chosen.name),)
    if answer.streams and call.request.strip_usage and answer.connection.status == 200:
        changes += (usage.Strip(),)
    return changes


def _location(call: Call, answer: BegunAnswer) -> kv_location.LocationFilter | None:
    """Return the filter that removes fields for engines from an offload's answer."""
    offload = call.outcome.offload
    if offload is None or not (offload.tells_ids or answer.ended is None or answer.body.find(kv_location.KEY) >= 0):
        return None
    leaves_ids = lending.ASKED in call.request.prompt.document
    return kv_location.LocationFilter(ids=offload.tells_ids, leaves_ids=leaves_ids)


class _Tail(Protocol):
    def add(self, data: bytes) -> None: ...

    def ended(self) -> Ended: ...


def _tail(call: Call) -> StreamTail:
    document = call.request.prompt.document
    may_be_several = "n" in document or "best_of" in document or type(document.get("prompt")) is list
    several = may_be_several and charge.answers(document) > 1
    return StreamTail(reports_twice=call.api_path == "/v1/messages", several=several)


class _Relay:
    """Passes one answer on, and records its first content, its usage and its end."""

    __slots__ = ("_add_event", "_answer", "_call", "_changes", "_client", "_in_event", "_located", "_tail")

    def __init__(
        self,
        call: Call,
        client: ClientConnection,
        answer: BegunAnswer,
        changes: tuple[ByteChange, ...],
        located: kv_location.LocationFilter | None,
    ) -> None:
        self._call = call
        self._client = client
        self._answer = answer
        self._changes = changes
        self._located = located
        self._in_event = False
        tail = _tail(call) if answer.streams else None
        self._add_event = tail.add_event if tail is not None else None
        self._tail: _Tail | None = tail if answer.ended is None else None
        if tail is None and answer.ended is None:
            self._tail = WholeTail(is_json=answer.is_json, background=answer.background)

    def take(self, data: bytes) -> bool:
        """The connection's sink."""
        is_whole = data.endswith(b"\n\n")
        if self._located is not None:
            data = self._located.feed(data)
        self._note(data)
        # Until content arrives, every event passes through here
        self._in_event = self._answer.beginning is not None or not is_whole
        return self._write(data)

    def _write(self, data: bytes) -> bool:
        for change in self._changes:
            data = change.feed(data)
        return self._client.write(data) if data else False

    def event_sink(self) -> EventSink | None:
        """Return the function that receives the connection's events; None if every event may have to be changed."""
        located = self._located
        if any(type(change) is renaming.Rename for change in self._changes) or (located and located.changes_all):
            return None
        return self._take_offloaded if located is not None else self.take_event

    def _take_offloaded(self, chunk: bytes) -> bool | None:
        return None if chunk.find(_LOCATED) >= 0 else self.take_event(chunk)

    def take_event(self, chunk: bytes) -> bool | None:
        """Receive an event from the connection; events without a usage key pass unchanged."""
        # `in` is slower, because it first tries to convert its operand to an integer.
        if self._in_event or chunk.find(usage.USAGE) >= 0:
            return None
        self._add_event(chunk)  # type: ignore[misc]  # only streams have events
        return self._client.write_chunk(chunk)

    def _note(self, data: bytes) -> None:
        if self._tail is not None:
            self._tail.add(data)
        beginning = self._answer.beginning
        if beginning is not None and beginning.feed(data) != "quiet":
            self._answer.beginning, self._answer.error = None, beginning.error
            if beginning.sign == "content" and self._answer.on_content is not None:
                self._answer.on_content()

    def finish(self, data: bytes) -> None:
        if self._located is not None:
            data = self._located.feed(data) + self._located.finish()
        if data:
            self._note(data)
        self.over()  # before the client can request the receipt
        for change in self._changes:
            data = change.feed(data) + change.finish()
        if self._located is not None and self._located.where:
            lending.learn(self._call, self._located)
        error = self._answer.error
        if error is not None and error.message == CUT:
            data += self._cut_event()
        self._client.end(data)

    def _cut_event(self) -> bytes:
        call, why = self._call, f"{CUT}: it is incomplete"
        return errors.event(call.api_path, "upstream_failed", why, call.id, self.next_number())

    def next_number(self) -> int:
        """Return the sequence number of the next event in a /v1/responses stream."""
        return self._tail.next_number() if isinstance(self._tail, StreamTail) else 0

    def over(self) -> None:
        """Record the end, whatever the cause."""
        ended = self._answer.ended
        if ended is None:
            ended = self._tail.ended() if self._tail is not None else Ended()
        _take_end(self._call, self._answer, ended)


def _take_end(call: Call, answer: BegunAnswer, ended: Ended) -> None:
    outcome = call.outcome
    outcome.last_byte = time.perf_counter()
    answer.ended = ended
    if ended.usage is not None:
        outcome.usage = usage.parse(ended.usage)
    if ended.first_usage is not None:
        outcome.usage = usage.combined(usage.parse(ended.first_usage), outcome.usage)
    answer.error = answer.error or ended.error
    if answer.error is None and answer.streams and call.api_path in answers.WHOSE_END and not ended.is_over:
        answer.error = AnswerError(CUT)


class _CountingRelay(_Relay):
    """A relay that counts tokens, which are charged if the stream ends before its usage."""

    __slots__ = ("_several",)

    def __init__(
        self,
        call: Call,
        client: ClientConnection,
        answer: BegunAnswer,
        changes: tuple[ByteChange, ...],
        located: kv_location.LocationFilter | None,
    ) -> None:
        super().__init__(call, client, answer, changes, located)
        document = call.request.prompt.document
        self._several = charge.answers(document) > 1
        learned = call.pool.tokens.in_event(call.key.id if call.key is not None else "")
        call.outcome.per_event = max(per_event(document), learned)
        call.outcome.most_output = charge.output_limit(document, call.api_path) or 0

    def take(self, data: bytes) -> bool:
        self._call.outcome.streamed_tokens += charge.streamed(data, several=self._several)
        return super().take(data)

    def take_event(self, chunk: bytes) -> bool | None:
        full = super().take_event(chunk)
        if full is not None:
            self._call.outcome.streamed_tokens += charge.streamed(chunk, several=self._several)
        return full

    def finish(self, data: bytes) -> None:
        self._call.outcome.streamed_tokens += charge.streamed(data, several=self._several)
        super().finish(data)

    def over(self) -> None:
        outcome, beginning = self._call.outcome, self._answer.began
        if beginning is not None:
            outcome.streamed_tokens = max(0, outcome.streamed_tokens - beginning.quiet)
        super().over()


def own_lines(call: Call) -> bytes:
    """Return the router's own header lines, including those for the decision if there is one."""
    decision = call.decision
    if decision is None:
        return b"x-request-id: %b\r\n%b" % (call.id.encode(), call.limits)
    flow = call.outcome.flow if call.outcome.offload is not None else "colocated"
    decided = _decision_lines(decision.request_class, call.version, flow, decision.instance)
    held = b"x-weir-wake-wait: %.1f\r\n" % call.outcome.held_s if call.outcome.held_s else b""
    return b"".join((b"x-request-id: ", call.id.encode(), decided, held, call.limits))


@lru_cache(maxsize=1_024)
def _decision_lines(request_class: str, version: int, flow: str, instance: str) -> bytes:
    """Return the end of the preceding header line, and the lines for a decision."""
    lines = f"\r\nx-weir-class: {request_class}\r\nx-weir-policy: {version}\r\nx-weir-flow: {flow}\r\n"
    return (f"{lines}x-weir-instance: {instance}\r\n" if instance else lines).encode()
