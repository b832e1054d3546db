"""The API path /v1/completions: the raw prompt, as text or token ids, one or several."""

from fleet.simengine.http.body import Body, integer
from fleet.simengine.http.errors import ApiError
from fleet.simengine.http.formats import logprobs, openai
from fleet.simengine.http.formats.format import ApiFormat
from fleet.simengine.job import Choice, EngineJob, RequestParams

DEFAULT_MAX_TOKENS = 16  # default of OpenAI and vLLM


def _parse(body: Body) -> RequestParams:
    max_tokens = integer(body, "max_tokens", DEFAULT_MAX_TOKENS, minimum=1)
    prompt = openai.context_prompt(body, "prompt")
    prompts = (prompt,) if prompt else _prompts(body.get("prompt"))
    return openai.params(body, prompts, max_tokens, logprobs.of_completion(body))


def _prompts(prompt: object) -> tuple[bytes, ...]:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return tuple(_prompt(item) for item in prompt)
    return (_prompt(prompt),)


def _prompt(prompt: object) -> bytes:
    if isinstance(prompt, str) and prompt:
        return prompt.encode(errors="surrogatepass")
    if not isinstance(prompt, list) or not prompt:
        raise ApiError(400, "prompt: Field required, a non-empty text or list of token ids.", param="prompt")
    return openai.prompt_of(prompt)


def _whole(job: EngineJob) -> bytes:
    return openai.whole(job, "text_completion", chat=False, logprobs=logprobs.completion)


def _begin(job: EngineJob) -> bytes:
    job.head = openai.head(job, "text_completion")
    return b""


def _chunk(job: EngineJob, choice: Choice, text: str) -> bytes:
    return b'%s"choices":[{"index":%d,"text":"%s"%s' % (
        job.head,
        choice.index,
        text.encode(),
        openai.tail(job, choice, logprobs.completion),
    )


COMPLETIONS = ApiFormat("cmpl-", _parse, _whole, _begin, _chunk, openai.end, openai.error_body, openai.error_event)
