"""Creates or joins the trace of each request on arrival, and exports its spans to the collector once it has ended.
Spans are built in slices between requests, by a separate task, because the reporter may be waiting for Redis. While the
collector is unreachable, spans wait, or are dropped and counted; no request waits for them.
"""

import asyncio
import contextlib
import logging
import time
import zlib
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import urlsplit

from router.contract.installation import VERSION
from router.http.headers import value_of
from router.request.call import Call
from router.request.tracing import Tracing
from router.spans import context, otlp
from router.spans.context import TRACE, Parent
from router.spans.outbox import Outbox
from router.spans.sampler import Sampler
from router.spans.settings import SpanSettings
from router.telemetry.recorder import Recorder
from router.telemetry.request_spans import Find, spans
from router.upstream.connection_pool import ConnectionPool
from router.upstream.errors import UpstreamError
from router.upstream.fetch import whole

log = logging.getLogger("weir.router")

SCOPE = "weir.router"
SLICE = 8  # requests whose spans are built in one iteration of the event loop
MAKE_S = 0.5
ENDED_KEPT = 1024  # requests that await their spans: several seconds at the highest sampling rate
LARGEST = 64 * 1024  # bytes of the collector's answer
LONGEST_STATE = 512  # characters of a tracestate
LAST_S = 1.5  # time for the last export at shutdown
WARN_S = 60.0

Headers = list[tuple[bytes, bytes]]


class Tracer:
    """Traces requests. `find` looks up the instances of the pools."""

    def __init__(self, settings: SpanSettings, router_id: str, recorder: Recorder, find: Find) -> None:
        self._settings = settings
        self._resource = {"service.instance.id": router_id, "service.version": VERSION, **settings.resource}
        self._find = find
        self._sampler = Sampler(settings)
        self._results = recorder.spans
        self._outbox = Outbox(settings.most, settings.batch, recorder.spans)
        self._ended: deque[Call] = deque()
        self._ending = asyncio.Event()
        self._warned = -WARN_S
        self._parts = urlsplit(settings.url)
        self._upstream = ConnectionPool(settings.url)

    # From a request's arrival to its end

    def begin(self, call: Call, headers: Headers, own: Mapping[bytes, bytes]) -> Headers:
        """Join the caller's trace, or begin one. Return the headers with the `traceparent` for engines; `own` holds the
        request's headers by name. Without that header, or with one that says sampled, engines would export spans whose
        parent is not exported."""
        if b"traceparent" in own:
            once = len(own) == len(headers) or sum(name == b"traceparent" for name, _ in headers) == 1
            parent = context.parse(own[b"traceparent"]) if once else None
            if parent is not None:
                return self._join(call, headers, parent)
        if b"traceparent" in own or b"tracestate" in own:
            headers = [header for header in headers if header[0] not in TRACE]
        low, line = context.unsampled()  # first, because few requests are sampled
        sampled = self._sampler.by_chance(low) and self._sampler.allowed(call.started)
        if sampled or self._settings.errors:
            call.tracing = Tracing(line[3:35].decode(), None, sampled)
            line = call.tracing.header(call.tracing.of_attempt(0)) if sampled else line
        return [*headers, (b"traceparent", line)]

    def _join(self, call: Call, headers: Headers, parent: Parent) -> Headers:
        sampled = self._sampler.wanted(parent.trace, parent) and self._sampler.allowed(call.started)
        if sampled or self._settings.errors:
            state = value_of(headers, b"tracestate").decode("latin-1")[:LONGEST_STATE]
            call.tracing = Tracing(parent.trace, parent, sampled, state)
        if not sampled and not parent.sampled:
            return headers
        span = call.tracing.of_attempt(0) if call.tracing is not None and sampled else parent.span
        line = context.header(parent.trace, span, sampled=sampled)
        return [*(header for header in headers if header[0] != b"traceparent"), (b"traceparent", line)]

    def ended(self, call: Call) -> None:
        """Queue an ended request that has `tracing`."""
        if call.tracing is None or not (call.tracing.sampled or self._adds_failed(call)):
            return
        self._ended.append(call)
        if len(self._ended) > ENDED_KEPT:
            self._ended.popleft()
            self._results["dropped"] += 1

    def _adds_failed(self, call: Call) -> bool:
        return self._settings.errors and call.outcome.label == "error" and self._sampler.allowed(time.perf_counter())

    # The collector

    def tasks(self) -> list[Awaitable[None]]:
        return [self._every(MAKE_S, self.make), self._every(self._settings.delay_s, self.send, self._send_last)]

    def end(self) -> None:
        self._ending.set()

    def close(self) -> None:
        self._upstream.close(running_too=True)

    async def _every(
        self, seconds: float, step: Callable[[], Awaitable[None]], last: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._ending.wait()
            if last is None or not self._ending.is_set():
                await _logged(step)
        if last is not None:
            await _logged(last)

    async def make(self) -> None:
        """Build the spans of ended requests."""
        for place in range(len(self._ended)):
            call = self._ended.popleft()
            if call.tracing is not None:
                for span in spans(call, call.tracing, self._find):
                    self._outbox.add(otlp.encoded(span))
            if place % SLICE == SLICE - 1:
                await asyncio.sleep(0)

    async def send(self) -> None:
        """Send waiting spans in batches, until the collector asks for a pause."""
        while batch := self._outbox.take(time.monotonic()):
            await self._export(batch)

    async def _send_last(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_S):
                await self.make()
                await self.send()

    async def _export(self, batch: list[bytes]) -> None:
        body = otlp.request(self._resource, SCOPE, VERSION, batch)
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                if self._settings.gzip:
                    body = await asyncio.to_thread(gzipped, body)
                status, answer, after = await self._post(body)
        except (UpstreamError, OSError, TimeoutError) as error:
            self._outbox.unanswered(time.monotonic())
            self._warn(str(error) or f"no answer within {self._settings.timeout_s:g} s")
            return
        except BaseException:
            self._outbox.unanswered(time.monotonic())
            raise
        self._outbox.answered(status, answer, after, time.monotonic())
        if status >= 300:
            self._warn(f"it answered {status}")

    async def _post(self, body: bytes) -> tuple[int, bytes, str]:
        upstream, limit_s = self._upstream, self._settings.timeout_s
        lines = [(b"host", upstream.authority), (b"content-type", b"application/json")]
        lines += [(name.encode(), value.encode()) for name, value in self._settings.headers]
        lines += [(b"content-encoding", b"gzip")] if self._settings.gzip else []
        head = b"".join(b"%b: %b\r\n" % line for line in lines)
        target = (self._parts.path or "/").encode()
        request = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (target, head, len(body), body)
        connection = await upstream.open(request, connect_timeout_s=limit_s, first_byte_timeout_s=limit_s)
        try:
            answer = await whole(connection, LARGEST)
            return connection.status, answer, value_of(connection.headers, b"retry-after").decode("latin-1")
        finally:
            connection.release()

    def _warn(self, why: str) -> None:
        if (now := time.monotonic()) - self._warned >= WARN_S:
            self._warned = now
            log.warning("spans wait or are lost: the collector at %s: %s", self._parts.netloc, why)


def gzipped(body: bytes) -> bytes:
    made = zlib.compressobj(1, wbits=31)
    return made.compress(body) + made.flush()


async def _logged(step: Callable[[], Awaitable[None]]) -> None:
    try:
        await step()
    except Exception:
        log.exception("spans could not be exported")
