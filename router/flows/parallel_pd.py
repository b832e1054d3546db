"""Neuron's disaggregated inference: both instances receive the request at the same time; its id contains the other's
address. The first token comes from the prefill, so the decoder's first token is removed. In a fixed pair (`kv.pair` of
the decoder names its prefill instance, `kv.peer` its address if no fleet declares it), the engines know each other and
both get the same id.
"""

import time

import orjson

from router.contract.answer import answers
from router.contract.net.http_client import Headers
from router.flows import bodies
from router.flows.decode import decode, is_stream
from router.flows.first_token import Without, first_token, usage_of
from router.flows.prefill import fetch, learn
from router.flows.together import Together
from router.pool.endpoint import Endpoint
from router.request.call import Call
from router.request.offload import Offload, PrefillFailed
from router.upstream.answer.beginning import Beginning
from router.upstream.connection import EventSink, Sink
from router.upstream.errors import ConnectionBroken
from router.upstream.response import EngineResponse

LARGEST = 64 * 1024  # bytes of a refusal
_STREAM: Headers = [(b"content-type", b"text/event-stream; charset=utf-8")]


async def serve(call: Call, prefiller: Endpoint, decoder: Endpoint, offload: Offload, tokens: int) -> EngineResponse:
    mine, other = _ids(call, prefiller, decoder)
    prompt = call.request.prompt
    asked = bodies.prefill(prompt.document, call.api_path, stream=prompt.stream)
    both = Together(
        offload,
        fetch(call, prefiller, offload, asked, tokens, mine),
        decode(call, decoder, offload, call.request.body, other),
    )
    await both.prefilled()
    if both.needs_no_prefill:
        return await both.decoded()
    raw = both.prefill.result()
    learn(offload, prefiller, usage_of(raw) if prompt.stream else _usage(raw))
    if not prompt.stream:
        return await both.decoded()
    offload.outcome = "ok"
    return Spliced(both, first_token(raw.replace(mine.encode(), other.encode())))


def _usage(raw: bytes) -> object:
    answer = answers.json_object(raw)  # only the KV is needed, so the answer itself does not matter
    return answer.get("usage") if answer is not None else None


def _ids(call: Call, prefiller: Endpoint, decoder: Endpoint) -> tuple[str, str]:
    """Return the request ids for prefill and decoder; each id contains the other's address."""
    name = f"cmpl-{call.pair_id}"
    if decoder.kv.pair or decoder.kv.peer:
        return name, name
    return f"{name}_{decoder.upstream.authority.decode()}", f"{name}_{prefiller.upstream.authority.decode()}"


class Spliced:
    """The prefill's first token, then the decoder's answer without its first token."""

    def __init__(self, both: Together, first: bytes) -> None:
        self.status = 200
        self.headers = _STREAM
        self._both = both
        self._first = first
        self._cut = Without(first)
        self._decoder: EngineResponse | None = None
        self._beginning: Beginning | None = Beginning()  # set until the decoder has sent content

    @property
    def done(self) -> bool:
        return not self._first and self._decoder is not None and self._decoder.done

    def read_now(self) -> bytes:
        first, self._first = self._first, b""
        return first

    async def read(self) -> bytes:
        """Return the prefill's first token, then the decoder's output."""
        if self._first:
            return self.read_now()
        decoder, data = await self._decoding(), b""
        if not is_stream(decoder):
            return await _refusal(decoder)
        while not data and not decoder.done:
            data = self._decoded(await decoder.read())
        return data + self._cut.finish() if decoder.done else data

    async def pour(self, sink: Sink, event_sink: EventSink | None = None) -> bytes:
        if self._first:
            sink(await self.read())
        decoder = await self._decoding()
        if not is_stream(decoder):
            return await _refusal(decoder)
        rest = await decoder.pour(lambda data: sink(self._decoded(data)))
        return self._decoded(rest) + self._cut.finish()

    def _decoded(self, data: bytes) -> bytes:
        """Return the decoder's output after the first token."""
        if self._beginning is not None and self._beginning.feed(data) == "content":
            self._beginning, self._both.offload.arrived = None, time.perf_counter()
        return self._cut.feed(data)

    async def _decoding(self) -> EngineResponse:
        if self._decoder is not None:
            return self._decoder
        try:
            self._decoder = await self._both.decoded()
        except PrefillFailed as error:  # the answer has begun, so all that is left is to end the stream
            raise ConnectionBroken(str(error)) from None
        return self._decoder

    def resume(self) -> None:
        if self._decoder is not None:
            self._decoder.resume()

    def check_quiet(self, passed_s: float, limit_s: float, *, is_early: bool = False) -> bool:
        """Return whether the decoder is silent for too long. Until it begins to answer, the first-byte limit
        applies."""
        return self._decoder is not None and self._decoder.check_quiet(passed_s, limit_s, is_early=is_early)

    def release(self) -> None:
        if self._beginning is not None:
            self._both.offload.arrived = None  # the prefill's token does not count as the decoder's
        if self._decoder is not None:
            self._decoder.release()
        else:
            self._both.forget()


async def _refusal(decoder: EngineResponse) -> bytes:
    """Convert the decoder's refusal to the stream's last event, as the first token has already been sent."""
    raw = b""
    while not decoder.done and len(raw) < LARGEST:
        raw += await decoder.read()
    said = answers.said(raw)
    error = answers.error_of(said, raw) if said is not None else None
    code: int | None = decoder.status
    if code == 200:
        error = error or answers.NO_STREAM
        code = error.status
    message = error.message if error is not None else f"the instance that decodes answered {code}"
    return b"data: %b\n\n" % orjson.dumps({"error": {"message": message, "code": code}})
