"""/v1/completions: the prompt as it is, text or token ids, one or several."""

from fleet.simengine import tokens
from fleet.simengine.http.body import Body, integer
from fleet.simengine.http.formats import openai
from fleet.simengine.http.formats.format import ApiFormat
from fleet.simengine.http.refusal import ApiError
from fleet.simengine.job import Ask, Choice, EngineJob

DEFAULT_MAX_TOKENS = 16  # OpenAI's, and vLLM's


def _parse(body: Body) -> Ask:
    max_tokens = integer(body, "max_tokens", DEFAULT_MAX_TOKENS, minimum=1)
    return Ask(prompts=_prompts(body.get("prompt")), max_tokens=max_tokens, **openai.common(body))


def _prompts(prompt: object) -> tuple[bytes, ...]:
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        return tuple(_prompt(item) for item in prompt)
    return (_prompt(prompt),)


def _prompt(prompt: object) -> bytes:
    if isinstance(prompt, str) and prompt:
        return prompt.encode(errors="surrogatepass")
    if not isinstance(prompt, list) or not prompt:
        raise ApiError(400, "prompt: Field required, a text or a list of token ids that is not empty.", param="prompt")
    try:
        return tokens.from_ids(prompt)
    except (OverflowError, TypeError):
        message = f"prompt: token ids are whole numbers from 0 to {tokens.VOCABULARY - 1}."
        raise ApiError(400, message, param="prompt") from None


def _whole(job: EngineJob) -> bytes:
    return openai.whole(job, "text_completion", lambda part: {"text": part.answer.text})


def _begin(job: EngineJob) -> bytes:
    job.head = openai.head(job, "text_completion")
    return b""


def _chunk(job: EngineJob, part: Choice, text: str) -> bytes:
    return b'%s"choices":[{"index":%d,"text":"%s"%s' % (job.head, part.index, text.encode(), openai.tail(job, part))


COMPLETIONS = ApiFormat("cmpl-", _parse, _whole, _begin, _chunk, openai.end, openai.refuse, openai.broken)
