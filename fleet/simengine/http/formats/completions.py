"""/v1/completions: the prompt as it is, text or token ids, one or several."""

from fleet.simengine import tokens
from fleet.simengine.http.body import Body, integer
from fleet.simengine.http.formats import openai
from fleet.simengine.http.formats.format import Format
from fleet.simengine.http.refusal import Refusal
from fleet.simengine.job import Ask, Job, Part

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
        raise Refusal(400, "prompt: Field required, a text or a list of token ids that is not empty.", param="prompt")
    try:
        return tokens.from_ids(prompt)
    except (OverflowError, TypeError):
        message = f"prompt: token ids are whole numbers from 0 to {tokens.VOCABULARY - 1}."
        raise Refusal(400, message, param="prompt") from None


def _whole(job: Job) -> bytes:
    return openai.whole(job, "text_completion", lambda part: {"text": part.answer.text})


def _begin(job: Job) -> bytes:
    job.head = openai.head(job, "text_completion")
    return b""


def _chunk(job: Job, part: Part, text: str) -> bytes:
    return b'%s"choices":[{"index":%d,"text":"%s"%s' % (job.head, part.index, text.encode(), openai.tail(job, part))


COMPLETIONS = Format("cmpl-", _parse, _whole, _begin, _chunk, openai.end, openai.refuse, openai.broken)
