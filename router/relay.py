"""The answer on its way from engine to client: bytes as they come, at the client's pace."""

import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from router import errors, headers, usage
from router.call import Call
from router.connection import Connection, UpstreamError

Send = Callable[[dict[str, Any]], Awaitable[None]]

WHOLE = 1024 * 1024  # bytes; an answer that is no stream and no larger is sent once all of it is there
TAIL_PARTS = 8  # parts at the end of a stream in which its usage is looked for


@dataclass(slots=True)
class Answer:
    connection: Connection
    body: bytes  # what has been read of it already
    streams: bool


async def begin(connection: Connection) -> Answer:
    """Wait for what must be there before the client is sent anything. Raises UpstreamError.

    Of a stream that is its first bytes. Any other answer is awaited whole, since until then it can be had elsewhere.
    """
    if headers.value_of(connection.headers, b"content-type").startswith(b"text/event-stream"):
        return Answer(connection, b"", streams=True)
    body = await connection.read()
    if connection.done:
        return Answer(connection, body, streams=False)
    parts, size = [body], len(body)
    while size <= WHOLE and not connection.done:
        parts.append(await connection.read())
        size += len(parts[-1])
    return Answer(connection, b"".join(parts), streams=False)


async def forward(call: Call, answer: Answer, send: Send) -> None:
    """Send the answer to the client. An UpstreamError here comes after the first byte: nothing may be repeated."""
    call.streamed = answer.streams
    call.status = answer.connection.status
    strip = usage.Strip() if answer.streams and call.strip_usage and call.status == 200 else None
    call.begun = True
    await send(
        {
            "type": "http.response.start",
            "status": call.status,
            "headers": headers.returned(answer.connection.headers, without_length=strip is not None)
            + own_headers(call),
        }
    )
    if answer.streams:
        await _stream(call, answer.connection, strip, send)
    else:
        await _whole(call, answer, send)


async def _whole(call: Call, answer: Answer, send: Send) -> None:
    connection, data = answer.connection, answer.body
    while not connection.done:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        data = await connection.read()
    call.last_byte = time.perf_counter()
    call.usage = usage.find(data[-usage.TAIL :])
    await send({"type": "http.response.body", "body": data, "more_body": False})


async def _stream(call: Call, connection: Connection, strip: usage.Strip | None, send: Send) -> None:
    first = b""
    tail: deque[bytes] = deque(maxlen=TAIL_PARTS)
    try:
        while True:
            data = await connection.read()
            if data:
                first = first or data
                tail.append(data)
            done = connection.done
            if strip is not None:
                data = strip.feed(data) + strip.finish() if done else strip.feed(data)
            if done:
                call.last_byte = time.perf_counter()
                call.usage = _usage(call, first, tail)  # before the client can ask for its receipt
            if data or done:
                await send({"type": "http.response.body", "body": data, "more_body": not done})
            if done:
                return
    except UpstreamError as error:
        call.usage = _usage(call, first, tail)
        message = f"the stream broke: {error}; what was sent so far is not the whole answer"
        event = errors.event(call.endpoint, error.code, message, call.id)
        await send({"type": "http.response.body", "body": event, "more_body": False})
        raise


def _usage(call: Call, first: bytes, tail: deque[bytes]) -> usage.Usage | None:
    last = usage.find(b"".join(tail)[-usage.TAIL :])
    if call.endpoint != "/v1/messages":
        return last
    return usage.combined(usage.find_first(first[: usage.TAIL]), last)


def own_headers(call: Call) -> list[tuple[bytes, bytes]]:
    """What the router says of itself; the decision's part when there was one."""
    own = [(b"x-request-id", call.id.encode())]
    decision = call.decision
    if decision is not None:
        own.append((b"x-weir-class", decision.request_class.encode()))
        own.append((b"x-weir-policy", b"%d" % call.version))
        own.append((b"x-weir-flow", call.flow.encode()))
        if decision.instance:
            own.append((b"x-weir-instance", decision.instance.encode()))
    return own
