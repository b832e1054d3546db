"""The API path /v1/chat/completions."""

from fleet.simengine import generation
from fleet.simengine.http.body import Body, integer, messages
from fleet.simengine.http.formats import logprobs, openai
from fleet.simengine.http.formats.format import ApiFormat
from fleet.simengine.job import Choice, EngineJob, RequestParams


def _parse(body: Body) -> RequestParams:
    prompt = openai.context_prompt(body, "prompt_token_ids") or generation.render(messages(body))
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return openai.params(body, (prompt,), integer(body, limit, None, minimum=1), logprobs.of_chat(body))


def _whole(job: EngineJob) -> bytes:
    return openai.whole(job, "chat.completion", chat=True, logprobs=logprobs.chat)


def _begin(job: EngineJob) -> bytes:
    job.head = openai.head(job, "chat.completion.chunk")
    role = (
        b'"choices":[{"index":%d,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}\n\n'
    )
    return b"".join(job.head + role % choice.index for choice in job.choices)


def _chunk(job: EngineJob, choice: Choice, text: str) -> bytes:
    return b'%s"choices":[{"index":%d,"delta":{"content":"%s"}%s' % (
        job.head,
        choice.index,
        text.encode(),
        openai.tail(job, choice, logprobs.chat),
    )


CHAT = ApiFormat("chatcmpl-", _parse, _whole, _begin, _chunk, openai.end, openai.error_body, openai.error_event)
