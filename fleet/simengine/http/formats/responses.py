"""/v1/responses: one text response to a text or a list of messages; responses are not stored."""

from typing import Any

import orjson

from fleet.simengine import tokens
from fleet.simengine.http.body import Body, flag, integer, mapping, messages, text_of
from fleet.simengine.http.errors import ApiError
from fleet.simengine.http.formats import openai
from fleet.simengine.http.formats.format import ApiFormat, sse_event
from fleet.simengine.job import Choice, EngineJob, RequestParams


def _parse(body: Body) -> RequestParams:
    if body.get("previous_response_id") is not None:
        raise ApiError(404, "Responses are not stored here.", kind="NotFoundError", param="previous_response_id")
    asked = body.get("input")
    turns = [("user", asked)] if isinstance(asked, str) and asked else messages(body, "input")
    if body.get("instructions") is not None:
        turns.insert(0, ("system", text_of(body["instructions"], "instructions")))
    return RequestParams(
        model=openai.model_of(body),
        prompts=(tokens.render(turns),),
        max_tokens=integer(body, "max_output_tokens", None, minimum=1),
        ignore_eos=flag(body, "ignore_eos"),
        seed=integer(body, "seed", 0) or 0,
        stream=flag(body, "stream"),
        kv=mapping(body, "kv_transfer_params"),
    )


def _item(job: EngineJob, status: str, *content: dict[str, Any]) -> dict[str, Any]:
    return {"id": f"msg_{job.id}", "type": "message", "status": status, "role": "assistant", "content": list(content)}


def _text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": None}


def _response(job: EngineJob, status: str, **fields: Any) -> dict[str, Any]:
    return {
        "id": job.id,
        "object": "response",
        "created_at": job.created,
        "model": job.model,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "usage": None,
        **fields,
    }


def _finished(job: EngineJob) -> dict[str, Any]:
    answer = job.choices[0].answer
    cut = answer.reason == "length"
    status = "incomplete" if cut else "completed"
    completion = job.completion_tokens
    usage = {
        "input_tokens": job.prompt_tokens,
        "input_tokens_details": job.cached_details,
        "output_tokens": completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": job.prompt_tokens + completion,
    }
    details = {"reason": "max_output_tokens"} if cut else None
    output = [_item(job, status, _text(answer.text))]
    return _response(job, status, output=output, usage=usage, incomplete_details=details)


def _whole(job: EngineJob) -> bytes:
    return orjson.dumps({**_finished(job), "kv_transfer_params": job.kv})


def _begin(job: EngineJob) -> bytes:
    at = {"item_id": f"msg_{job.id}", "output_index": 0, "content_index": 0}
    started = _response(job, "in_progress")
    events = (
        sse_event("response.created", response=started),
        sse_event("response.in_progress", response=started),
        sse_event("response.output_item.added", output_index=0, item=_item(job, "in_progress")),
        sse_event("response.content_part.added", part=_text(""), **at),
    )
    delta = orjson.dumps({"type": "response.output_text.delta", **at, "logprobs": []})
    job.head = b"event: response.output_text.delta\ndata: " + delta[:-1] + b',"delta":"'
    return b"".join(events)


def _chunk(job: EngineJob, choice: Choice, text: str) -> bytes:
    return b'%s%s"}\n\n' % (job.head, text.encode())


def _end(job: EngineJob) -> bytes:
    response = _finished(job)
    item = response["output"][0]
    at = {"item_id": item["id"], "output_index": 0, "content_index": 0}
    text = item["content"][0]["text"]
    return (
        sse_event("response.output_text.done", text=text, logprobs=[], **at)
        + sse_event("response.content_part.done", part=item["content"][0], **at)
        + sse_event("response.output_item.done", output_index=0, item=item)
        + sse_event(f"response.{response['status']}", response=response)
    )


RESPONSES = ApiFormat("resp_", _parse, _whole, _begin, _chunk, _end, openai.error_body, openai.error_event)
