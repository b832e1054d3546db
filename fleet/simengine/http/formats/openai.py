"""Shared by the OpenAI formats."""

from collections.abc import Callable
from typing import Any

import orjson

from fleet.simengine import tokens
from fleet.simengine.http.body import Body, flag, integer, mapping, strings
from fleet.simengine.http.errors import ApiError
from fleet.simengine.job import Choice, EngineJob

DONE = b"data: [DONE]\n\n"


def error_body(error: ApiError) -> bytes:
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.status,
    }
    return orjson.dumps({"error": fields})


def prompt_of(ids: object) -> bytes:
    try:
        return tokens.from_ids(ids) if isinstance(ids, list) and ids else b""
    except (OverflowError, TypeError):
        message = f"prompt: token ids are whole numbers from 0 to {tokens.VOCABULARY - 1}."
        raise ApiError(400, message, param="prompt") from None


def context_prompt(body: Body, name: str) -> bytes:
    """The prompt as a context server read it, in the request to a generation server; else empty."""
    if mapping(body, "disaggregated_params").get("request_type") != "generation_only":
        return b""
    return tokens.unpadded(prompt_of(body.get(name)))


def usage(job: EngineJob) -> dict[str, Any]:
    prompt, cached, completion = job.prompt_tokens, job.cached_details, job.completion_tokens
    context = job.params.kv.get("ctx_usage")
    if isinstance(context, dict):  # a generation server of TensorRT-LLM repeats the context server's usage
        prompt = context.get("prompt_tokens", prompt)
        cached = {"cached_tokens": (context.get("prompt_tokens_details") or {}).get("cached_tokens", 0)}
    return {
        "prompt_tokens": prompt,
        "total_tokens": prompt + completion,
        "completion_tokens": completion,
        "prompt_tokens_details": cached,
    }


def model_of(body: Body) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise ApiError(400, f"model: Input should be a valid string, got {model!r:.80}.", param="model")
    return model


def common(body: Body) -> dict[str, Any]:
    """The RequestParams fields that chat and text completions have in common."""
    options = mapping(body, "stream_options")
    stream = flag(body, "stream")
    if options and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    return {
        "model": model_of(body),
        "min_tokens": integer(body, "min_tokens", 0, minimum=0),
        "ignore_eos": flag(body, "ignore_eos"),
        "stop": strings(body, "stop"),
        "seed": integer(body, "seed", 0),
        "n": integer(body, "n", 1, minimum=1),
        "stream": stream,
        "kv": mapping(body, "disaggregated_params") or mapping(body, "kv_transfer_params"),
        "usage_at_end": flag(options, "include_usage"),
        "usage_in_chunks": flag(options, "continuous_usage_stats"),
    }


def tail(job: EngineJob, choice: Choice) -> bytes:
    """The end of a chunk after its text."""
    finish = b"null"
    if choice.is_complete:
        finish = b'"%s","stop_reason":%s' % (choice.answer.reason.encode(), orjson.dumps(choice.answer.stopped_by))
    if job.params.usage_in_chunks:
        return b',"logprobs":null,"finish_reason":%s}],"usage":%s}\n\n' % (finish, orjson.dumps(usage(job)))
    return b',"logprobs":null,"finish_reason":%s}]}\n\n' % finish


def end(job: EngineJob) -> bytes:
    """After the last token; `job.head`: the start of each chunk up to its choices."""
    if not job.params.usage_at_end:
        return DONE
    return job.head + b'"choices":[],"usage":' + orjson.dumps(usage(job)) + b"}\n\n" + DONE


def whole(job: EngineJob, kind: str, content: Callable[[Choice], dict[str, Any]]) -> bytes:
    """A response that is not streamed; `content`: the fields in which the two APIs differ."""
    choices = [
        {
            "index": choice.index,
            **content(choice),
            "logprobs": None,
            "finish_reason": choice.answer.reason,
            "stop_reason": choice.answer.stopped_by,
            **({"disaggregated_params": job.kv} if job.params.is_context_request else {}),
        }
        for choice in job.choices
    ]
    ids = {"prompt_token_ids": tokens.to_ids(job.params.prompts[0])} if job.params.is_context_request else {}
    return orjson.dumps(
        {
            "id": job.id,
            "object": kind,
            "created": job.created,
            "model": job.model,
            "choices": choices,
            "usage": usage(job),
            "kv_transfer_params": None if ids else job.kv,
            **ids,
        }
    )


def error_event(error: ApiError) -> bytes:
    """The event that ends a failed stream, as vLLM writes it."""
    return b"data: %b\n\n" % error_body(error) + DONE


def head(job: EngineJob, kind: str) -> bytes:
    fields = orjson.dumps({"id": job.id, "object": kind, "created": job.created, "model": job.model})
    return b"data: " + fields[:-1] + b","
