"""Relays an answer from engine to client, byte by byte, at the client's pace."""

import time
from dataclasses import dataclass

from router.contract.net.retry_after import NOT_NOW
from router.http import errors, headers
from router.http.client import ClientConnection
from router.limits import charge
from router.request.call import Call
from router.serving import renaming
from router.upstream import usage
from router.upstream.errors import ProtocolError, UpstreamError
from router.upstream.response import EngineResponse

WHOLE = 1024 * 1024  # bytes; a smaller answer that is not streamed is sent only once it is complete


@dataclass(slots=True)
class BegunAnswer:
    connection: EngineResponse
    body: bytes  # read so far
    streams: bool


async def begin(connection: EngineResponse) -> BegunAnswer:
    """Wait for a stream's first bytes, or for a whole answer: until then another instance can be tried.

    Raises UpstreamError.
    """
    if 300 <= connection.status < 400:
        raise ProtocolError(f"it answered {connection.status}: redirects are neither followed nor passed on")
    kind = headers.value_of(connection.headers, b"content-type")
    if kind.startswith(b"text/event-stream"):
        return BegunAnswer(connection, b"", streams=True)
    body = await connection.read()
    if connection.done or kind.startswith(b"audio/"):  # speech is played while it is generated
        return BegunAnswer(connection, body, streams=False)
    parts, size = [body], len(body)
    while size <= WHOLE and not connection.done:
        parts.append(await connection.read())
        size += len(parts[-1])
    return BegunAnswer(connection, b"".join(parts), streams=False)


async def forward(call: Call, answer: BegunAnswer, client: ClientConnection) -> None:
    """Send the answer to the client. An UpstreamError here comes after the first byte: no retry."""
    connection = answer.connection
    outcome, status = call.outcome, connection.status
    outcome.streamed, outcome.status = answer.streams, status
    strip = usage.Strip() if answer.streams and call.request.strip_usage and status == 200 else None
    outcome.begun = True
    chosen = call.alias
    rename = renaming.Rename(chosen.serves, chosen.name) if chosen is not None and chosen.renames else None
    lines = headers.returned(connection.headers, without_length=strip is not None or rename is not None)
    if status in NOT_NOW:
        lines = errors.saying_when(status, lines)
    client.start(status, lines + own_lines(call))
    passing = (_Relay if call.most is None else _CountingRelay)(call, client, strip, rename)
    if answer.body and not connection.done:
        passing.take(answer.body)
        answer.body = b""
    client.on_room = connection.resume
    try:
        unchanged = answer.streams and client.takes_chunks and rename is None
        as_it_came = passing.take_event if unchanged else None
        rest = await connection.pour(passing.take, as_it_came)
    except UpstreamError as error:
        passing.over()
        if answer.streams:
            message = f"the stream broke: {error}; the answer is incomplete"
            client.end(errors.event(call.api_path, error.code, message, call.id))
        raise
    finally:
        client.on_room = None
    passing.finish(answer.body + rest)


class _Relay:
    """Passes one answer on and finds its usage."""

    __slots__ = ("_call", "_client", "_first", "_in_event", "_rename", "_strip", "_tail")

    def __init__(
        self, call: Call, client: ClientConnection, strip: usage.Strip | None, rename: renaming.Rename | None
    ) -> None:
        self._call = call
        self._client = client
        self._strip = strip
        self._rename = rename
        self._first = b""  # the beginning of a stream: some APIs report the prompt's tokens there
        self._in_event = False
        self._tail = usage.Tail()

    def take(self, data: bytes) -> bool:
        """The connection's sink."""
        if not self._first:
            self._first = data[: usage.TAIL]
        self._tail.add(data)
        self._in_event = not data.endswith(b"\n\n")
        if self._rename is not None:
            data = self._rename.feed(data)
        if self._strip is not None:
            data = self._strip.feed(data)
        return self._client.write(data) if data else False

    def take_event(self, chunk: bytes) -> bool | None:
        """The connection's sink of events: one without a usage key passes unchanged."""
        if self._in_event or chunk.find(b'"usage"') >= 0:  # `in` is slower: it tries the key as a number first
            return None
        return self._client.write_chunk(chunk)

    def finish(self, data: bytes) -> None:
        self._tail.add(data)
        self.over()  # before the client can request the receipt
        if self._rename is not None:
            data = self._rename.feed(data) + self._rename.finish()
        if self._strip is not None:
            data = self._strip.feed(data) + self._strip.finish()
        self._client.end(data)

    def over(self) -> None:
        call, outcome, data = self._call, self._call.outcome, self._tail.joined()
        outcome.last_byte = time.perf_counter()
        last = usage.find(data)
        if outcome.streamed and call.api_path == "/v1/messages":
            last = usage.combined(usage.find_first(self._first or data), last)
        outcome.usage = last


class _CountingRelay(_Relay):
    """Counts tokens, which are charged when the stream ends before its usage comes."""

    __slots__ = ("_several",)

    def __init__(
        self, call: Call, client: ClientConnection, strip: usage.Strip | None, rename: renaming.Rename | None
    ) -> None:
        super().__init__(call, client, strip, rename)
        self._several = charge.answers(call.request.prompt.document) > 1

    def take(self, data: bytes) -> bool:
        self._call.outcome.streamed_tokens += charge.streamed(data, several=self._several)
        return super().take(data)

    def take_event(self, chunk: bytes) -> bool | None:
        full = super().take_event(chunk)
        if full is not None:
            self._call.outcome.streamed_tokens += charge.streamed(chunk, several=self._several)
        return full


def own_lines(call: Call) -> bytes:
    """The router's own header lines, with those of the decision when there is one."""
    decision = call.decision
    if decision is None:
        return b"x-request-id: %b\r\n%b" % (call.id.encode(), call.limits)
    held = f"x-weir-wake-wait: {call.outcome.held_s:.1f}\r\n" if call.outcome.held_s else ""
    instance = f"x-weir-instance: {decision.instance}\r\n" if decision.instance else ""
    policy = f"x-weir-class: {decision.request_class}\r\nx-weir-policy: {call.version}\r\n"
    return (
        f"x-request-id: {call.id}\r\n{policy}x-weir-flow: {call.outcome.flow}\r\n{instance}{held}".encode()
        + call.limits
    )
