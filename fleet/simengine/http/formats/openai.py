"""Code shared by the OpenAI formats."""

from collections.abc import Callable

import msgspec

from fleet.simengine import generation
from fleet.simengine.http.body import Body, cache_salt, flag, integer, mapping, strings, transfer_params
from fleet.simengine.http.errors import ApiError
from fleet.simengine.job import CachedDetails, Choice, EngineJob, RequestParams

DONE = b"data: [DONE]\n\n"


def error_body(error: ApiError) -> bytes:
    fields = {
        "message": error.message,
        "type": error.kind,
        "param": error.param,
        "code": error.status,
    }
    return msgspec.json.encode({"error": fields})


def prompt_of(ids: object) -> bytes:
    try:
        return generation.from_ids(ids) if isinstance(ids, list) and ids else b""
    except (OverflowError, TypeError):
        message = f"prompt: token ids are whole numbers from 0 to {generation.VOCABULARY - 1}."
        raise ApiError(400, message, param="prompt") from None


def context_prompt(body: Body, name: str) -> bytes:
    """Return the prompt as the context server read it, from a request to a generation server; empty for other
    requests."""
    if mapping(body, "disaggregated_params").get("request_type") != "generation_only":
        return b""
    return generation.unpadded(prompt_of(body.get(name)))


class OpenAiUsage(msgspec.Struct, frozen=True):
    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: CachedDetails


def usage(job: EngineJob) -> OpenAiUsage:
    prompt, cached, completion = job.prompt_tokens, job.cached_details, job.completion_tokens
    context = job.params.kv.ctx_usage
    if context is not None:  # a generation server of TensorRT-LLM repeats the context server's usage
        prompt = prompt if context.prompt_tokens is None else context.prompt_tokens
        details = context.prompt_tokens_details
        cached = CachedDetails(details.cached_tokens if details is not None else 0)
    return OpenAiUsage(prompt, prompt + completion, completion, cached)


def model_of(body: Body) -> str | None:
    model = body.get("model")
    if model is not None and not isinstance(model, str):
        raise ApiError(400, f"model: Input should be a valid string, got {model!r:.80}.", param="model")
    return model


def params(body: Body, prompts: tuple[bytes, ...], max_tokens: int | None, logprobs: int | None) -> RequestParams:
    """Parse the parameters: chat and text completions differ only in prompt, limit and log probabilities."""
    options = mapping(body, "stream_options")
    stream = flag(body, "stream")
    if options and not stream:
        raise ApiError(400, "Stream options can only be defined when `stream=True`.", param="stream_options")
    kv = "disaggregated_params" if mapping(body, "disaggregated_params") else "kv_transfer_params"
    return RequestParams(
        model=model_of(body),
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=integer(body, "min_tokens", 0, minimum=0) or 0,
        ignore_eos=flag(body, "ignore_eos"),
        stop=strings(body, "stop"),
        seed=integer(body, "seed", 0) or 0,
        salt=cache_salt(body),
        n=integer(body, "n", 1, minimum=1) or 1,
        stream=stream,
        kv=transfer_params(body, kv),
        returns_ids=flag(body, "return_token_ids"),
        usage_at_end=flag(options, "include_usage"),
        usage_in_chunks=flag(options, "continuous_usage_stats"),
        logprobs=logprobs,
    )


LogprobsWriter = Callable[[Choice, range], bytes]


def tail(job: EngineJob, choice: Choice, logprobs: LogprobsWriter) -> bytes:
    """Return the end of a chunk, which follows its text."""
    finish = b"null"
    if choice.is_complete:
        finish = b'"%s","stop_reason":%s' % (
            choice.answer.reason.encode(),
            msgspec.json.encode(choice.answer.stopped_by),
        )
    written = b"null" if job.params.logprobs is None else logprobs(choice, choice.taken)
    further = _ids(choice) if job.params.returns_ids else b""
    if job.params.usage_in_chunks:
        further += b',"usage":%s' % msgspec.json.encode(usage(job))
    if job.kv is not None and choice.is_complete:
        further += b',"kv_transfer_params":%s' % msgspec.json.encode(job.kv)
    return b',"logprobs":%s,"finish_reason":%s}]%s}\n\n' % (written, finish, further)


def _ids(choice: Choice) -> bytes:
    taken = b',"token_ids":%s' % msgspec.json.encode(choice.ids(choice.taken))
    return taken + (b"" if choice.taken.start else b',"prompt_token_ids":%s' % msgspec.json.encode(choice.ids()))


def end(job: EngineJob) -> bytes:
    """Return the events after the last token. `job.head` is the start of each chunk, up to its choices."""
    if not job.params.usage_at_end:
        return DONE
    return job.head + b'"choices":[],"usage":' + msgspec.json.encode(usage(job)) + b"}\n\n" + DONE


class AnswerMessage(msgspec.Struct, frozen=True):
    role: str
    content: str


class WholeChoice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    message: AnswerMessage | msgspec.UnsetType  # only for chat completions
    text: str | msgspec.UnsetType  # only for text completions
    logprobs: msgspec.Raw | None
    finish_reason: str
    stop_reason: str | None
    disaggregated_params: msgspec.Struct | msgspec.UnsetType | None
    token_ids: list[int] | msgspec.UnsetType


def whole(job: EngineJob, kind: str, *, chat: bool, logprobs: LogprobsWriter) -> bytes:
    """Return a response that is not streamed."""
    for_context = job.params.is_context_request
    choices = [
        WholeChoice(
            index=choice.index,
            message=AnswerMessage("assistant", choice.answer.text) if chat else msgspec.UNSET,
            text=msgspec.UNSET if chat else choice.answer.text,
            logprobs=None
            if job.params.logprobs is None
            else msgspec.Raw(logprobs(choice, range(choice.answer.tokens))),
            finish_reason=choice.answer.reason,
            stop_reason=choice.answer.stopped_by,
            disaggregated_params=job.kv if for_context else msgspec.UNSET,
            token_ids=choice.ids(range(choice.answer.tokens)) if job.params.returns_ids else msgspec.UNSET,
        )
        for choice in job.choices
    ]
    ids = {"prompt_token_ids": generation.to_ids(job.params.prompts[0])} if for_context else {}
    if job.params.returns_ids:
        ids["prompt_token_ids"] = job.choices[0].ids()
    return msgspec.json.encode(
        {
            "id": job.id,
            "object": kind,
            "created": job.created,
            "model": job.model,
            "choices": choices,
            "usage": usage(job),
            "kv_transfer_params": None if for_context else job.kv,
            **ids,
        }
    )


def error_event(error: ApiError) -> bytes:
    """Return the event that ends a failed stream, as vLLM writes it."""
    return b"data: %b\n\n" % error_body(error) + DONE


def head(job: EngineJob, kind: str) -> bytes:
    fields = msgspec.json.encode({"id": job.id, "object": kind, "created": job.created, "model": job.model})
    return b"data: " + fields[:-1] + b","
