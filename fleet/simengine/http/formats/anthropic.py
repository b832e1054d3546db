"""/v1/messages, the Anthropic Messages API as vLLM serves it."""

import msgspec

from fleet.simengine import generation
from fleet.simengine.http.body import Body, cache_salt, flag, integer, messages, strings, text_of, transfer_params
from fleet.simengine.http.errors import ApiError
from fleet.simengine.http.formats.format import ApiFormat, sse_event
from fleet.simengine.http.formats.openai import model_of
from fleet.simengine.job import Choice, EngineJob, RequestParams

_KINDS = {400: "invalid_request_error", 404: "not_found_error", 503: "overloaded_error"}


def _parse(body: Body) -> RequestParams:
    if body.get("max_tokens") is None:
        raise ApiError(400, "max_tokens: Field required.", param="max_tokens")
    turns = messages(body)
    if body.get("system") is not None:
        turns.insert(0, ("system", text_of(body["system"], "system")))
    return RequestParams(
        model=model_of(body),
        prompts=(generation.render(turns),),
        max_tokens=integer(body, "max_tokens", None, minimum=1),
        # vLLM accepts these fields, which Anthropic does not have; load tests need answers of a known length.
        min_tokens=integer(body, "min_tokens", 0, minimum=0) or 0,
        ignore_eos=flag(body, "ignore_eos"),
        stop=strings(body, "stop_sequences"),
        stream=flag(body, "stream"),
        salt=cache_salt(body),
        kv=transfer_params(body, "kv_transfer_params"),
    )


class _AnthropicUsage(msgspec.Struct, frozen=True):
    """Usage whose input tokens exclude those read from the cache, like Anthropic's input tokens."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int


class _Stop(msgspec.Struct, frozen=True):
    stop_reason: str | None = None
    stop_sequence: str | None = None


class _AnthropicText(msgspec.Struct, frozen=True, tag="text"):
    text: str


class _Message(msgspec.Struct, frozen=True):
    id: str
    type: str
    role: str
    model: str
    content: list[_AnthropicText]
    stop_reason: str | None
    stop_sequence: str | None
    usage: _AnthropicUsage
    kv_transfer_params: msgspec.Struct | msgspec.UnsetType | None = msgspec.UNSET  # only in whole answers


def _usage(job: EngineJob, output_tokens: int) -> _AnthropicUsage:
    cached = job.cached_tokens
    return _AnthropicUsage(job.prompt_tokens - cached, output_tokens, 0, cached)


def _stop(choice: Choice) -> _Stop:
    if choice.answer.stopped_by is not None:
        return _Stop("stop_sequence", choice.answer.stopped_by)
    return _Stop("max_tokens" if choice.answer.reason == "length" else "end_turn")


def _message(job: EngineJob, content: list[_AnthropicText], stop: _Stop, usage: _AnthropicUsage) -> _Message:
    return _Message(job.id, "message", "assistant", job.model, content, stop.stop_reason, stop.stop_sequence, usage)


def _whole(job: EngineJob) -> bytes:
    choice = job.choices[0]
    stop, usage = _stop(choice), _usage(job, job.completion_tokens)
    message = _message(job, [_AnthropicText(choice.answer.text)], stop, usage)
    return msgspec.json.encode(msgspec.structs.replace(message, kv_transfer_params=job.kv))


def _begin(job: EngineJob) -> bytes:
    message = _message(job, [], _Stop(), _usage(job, 0))
    return sse_event("message_start", message=message) + sse_event(
        "content_block_start", index=0, content_block=_AnthropicText("")
    )


def _chunk(job: EngineJob, choice: Choice, text: str) -> bytes:
    if not text:
        return b""
    return (
        b'event: content_block_delta\ndata: {"type":"content_block_delta","index":0,'
        b'"delta":{"type":"text_delta","text":"%s"}}\n\n' % text.encode()
    )


def _end(job: EngineJob) -> bytes:
    return (
        sse_event("content_block_stop", index=0)
        + sse_event("message_delta", delta=_stop(job.choices[0]), usage=_usage(job, job.completion_tokens))
        + sse_event("message_stop")
    )


def _error_body(error: ApiError) -> bytes:
    fields = {"type": _KINDS.get(error.status, "api_error"), "message": error.message}
    return msgspec.json.encode({"type": "error", "error": fields})


def _error_event(error: ApiError) -> bytes:
    return b"event: error\ndata: %b\n\n" % _error_body(error)


MESSAGES = ApiFormat("msg_", _parse, _whole, _begin, _chunk, _end, _error_body, _error_event)
