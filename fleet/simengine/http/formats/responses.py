"""The API path /v1/responses: one text response to a text or a list of messages; responses are not stored."""

import msgspec
from msgspec.structs import replace

from fleet.simengine import generation
from fleet.simengine.http.body import Body, cache_salt, flag, integer, messages, text_of, transfer_params
from fleet.simengine.http.errors import ApiError
from fleet.simengine.http.formats import openai
from fleet.simengine.http.formats.format import ApiFormat, sse_event
from fleet.simengine.job import CachedDetails, Choice, EngineJob, RequestParams


def _parse(body: Body) -> RequestParams:
    if body.get("previous_response_id") is not None:
        raise ApiError(404, "Responses are not stored here.", kind="NotFoundError", param="previous_response_id")
    asked = body.get("input")
    turns = [("user", asked)] if isinstance(asked, str) and asked else messages(body, "input")
    if body.get("instructions") is not None:
        turns.insert(0, ("system", text_of(body["instructions"], "instructions")))
    return RequestParams(
        model=openai.model_of(body),
        prompts=(generation.render(turns),),
        max_tokens=integer(body, "max_output_tokens", None, minimum=1),
        ignore_eos=flag(body, "ignore_eos"),
        seed=integer(body, "seed", 0) or 0,
        salt=cache_salt(body),
        stream=flag(body, "stream"),
        kv=transfer_params(body, "kv_transfer_params"),
    )


class _Text(msgspec.Struct, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: None = None


class _Item(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    type: str = "message"
    status: str
    role: str = "assistant"
    content: list[_Text]


class _OutputDetails(msgspec.Struct, frozen=True):
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct, frozen=True):
    input_tokens: int
    input_tokens_details: CachedDetails
    output_tokens: int
    output_tokens_details: _OutputDetails
    total_tokens: int


class _Incomplete(msgspec.Struct, frozen=True):
    reason: str


class _ResponseObject(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str = "response"
    created_at: int
    model: str
    status: str
    error: None = None
    incomplete_details: _Incomplete | None = None
    output: tuple[_Item, ...] = ()
    usage: _Usage | None = None
    kv_transfer_params: msgspec.Struct | msgspec.UnsetType | None = msgspec.UNSET  # only in whole answers


def _response(job: EngineJob, status: str) -> _ResponseObject:
    return _ResponseObject(id=job.id, created_at=job.created, model=job.model, status=status)


def _item(job: EngineJob, status: str, *content: _Text) -> _Item:
    return _Item(id=f"msg_{job.id}", status=status, content=list(content))


def _finished(job: EngineJob) -> tuple[_ResponseObject, _Item, _Text]:
    """Return a finished response, with its only item and that item's text."""
    answer = job.choices[0].answer
    cut = answer.reason == "length"
    status = "incomplete" if cut else "completed"
    completion = job.completion_tokens
    total = job.prompt_tokens + completion
    usage = _Usage(job.prompt_tokens, job.cached_details, completion, _OutputDetails(), total)
    details = _Incomplete("max_output_tokens") if cut else None
    text = _Text(answer.text)
    item = _item(job, status, text)
    started = _response(job, status)
    return replace(started, incomplete_details=details, output=(item,), usage=usage), item, text


def _whole(job: EngineJob) -> bytes:
    response, *_ = _finished(job)
    return msgspec.json.encode(replace(response, kv_transfer_params=job.kv))


def _begin(job: EngineJob) -> bytes:
    at = {"item_id": f"msg_{job.id}", "output_index": 0, "content_index": 0}
    started = _response(job, "in_progress")
    events = (
        sse_event("response.created", response=started),
        sse_event("response.in_progress", response=started),
        sse_event("response.output_item.added", output_index=0, item=_item(job, "in_progress")),
        sse_event("response.content_part.added", part=_Text(""), **at),
    )
    delta = msgspec.json.encode({"type": "response.output_text.delta", **at, "logprobs": []})
    job.head = b"event: response.output_text.delta\ndata: " + delta[:-1] + b',"delta":"'
    return b"".join(events)


def _chunk(job: EngineJob, choice: Choice, text: str) -> bytes:
    return b'%s%s"}\n\n' % (job.head, text.encode())


def _end(job: EngineJob) -> bytes:
    response, item, text = _finished(job)
    at = {"item_id": item.id, "output_index": 0, "content_index": 0}
    return (
        sse_event("response.output_text.done", text=text.text, logprobs=[], **at)
        + sse_event("response.content_part.done", part=text, **at)
        + sse_event("response.output_item.done", output_index=0, item=item)
        + sse_event(f"response.{response.status}", response=response)
    )


RESPONSES = ApiFormat("resp_", _parse, _whole, _begin, _chunk, _end, openai.error_body, openai.error_event)
