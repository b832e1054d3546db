"""/v1/messages, the Anthropic Messages API as vLLM serves it."""

from typing import Any

import orjson

from fleet.simengine import tokens
from fleet.simengine.http.body import Body, flag, integer, mapping, messages, strings, text_of
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
        prompts=(tokens.render(turns),),
        max_tokens=integer(body, "max_tokens", None, minimum=1),
        # Not Anthropic's; vLLM accepts them too, and load tests need answers of a known length.
        min_tokens=integer(body, "min_tokens", 0, minimum=0) or 0,
        ignore_eos=flag(body, "ignore_eos"),
        stop=strings(body, "stop_sequences"),
        stream=flag(body, "stream"),
        kv=mapping(body, "kv_transfer_params"),
    )


def _usage(job: EngineJob, output_tokens: int) -> dict[str, int]:
    """Anthropic's input tokens exclude those read from the cache."""
    cached = job.cached_tokens
    return {
        "input_tokens": job.prompt_tokens - cached,
        "output_tokens": output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def _stop(choice: Choice) -> dict[str, Any]:
    if choice.answer.stopped_by is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": choice.answer.stopped_by}
    return {"stop_reason": "max_tokens" if choice.answer.reason == "length" else "end_turn", "stop_sequence": None}


def _message(job: EngineJob, **fields: Any) -> dict[str, Any]:
    return {"id": job.id, "type": "message", "role": "assistant", "model": job.model, **fields}


def _whole(job: EngineJob) -> bytes:
    choice = job.choices[0]
    content = [{"type": "text", "text": choice.answer.text}]
    usage = _usage(job, job.completion_tokens)
    return orjson.dumps(_message(job, content=content, **_stop(choice), usage=usage, kv_transfer_params=job.kv))


def _begin(job: EngineJob) -> bytes:
    message = _message(job, content=[], stop_reason=None, stop_sequence=None, usage=_usage(job, 0))
    block = {"type": "text", "text": ""}
    return sse_event("message_start", message=message) + sse_event("content_block_start", index=0, content_block=block)


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
    return orjson.dumps({"type": "error", "error": fields})


def _error_event(error: ApiError) -> bytes:
    return b"event: error\ndata: %b\n\n" % _error_body(error)


MESSAGES = ApiFormat("msg_", _parse, _whole, _begin, _chunk, _end, _error_body, _error_event)
