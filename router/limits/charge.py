"""Estimates of a request's possible cost in output tokens, and of a broken stream's cost. Pure."""

from router.contract.api_paths import LIMITS
from router.contract.values import lax
from router.contract.values.json_value import JsonObject

DEFAULT_OUTPUT = 512  # output tokens assumed for an answer without a limit
LARGEST_OUTPUT = 1_000_000_000  # tokens; a larger limit counts as none


def most_output(document: JsonObject, api_path: str) -> int:
    """Return the tokens that an engine may generate in all answers; if an API has two limits, the larger value
    counts."""
    limit = output_limit(document, api_path)
    return min(DEFAULT_OUTPUT * answers(document), LARGEST_OUTPUT) if limit is None else limit


def output_limit(document: JsonObject, api_path: str) -> int | None:
    """Return the tokens that the request allows the engine to generate in all answers; None means no limit."""
    if api_path not in LIMITS:
        return 0
    given = [value for name in LIMITS[api_path] if (value := _positive(document.get(name)))]
    return min(max(given) * answers(document), LARGEST_OUTPUT) if given else None


def answers(document: JsonObject) -> int:
    """Return the number of answers: `n` or `best_of` for each prompt."""
    prompt, embedded = document.get("prompt"), document.get("prompt_embeds")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    prompts = len(prompt) if several else int(prompt is not None)  # type: ignore[arg-type]  # a list
    prompts += len(embedded) if isinstance(embedded, list) else int(embedded is not None)
    return max(1, _positive(document.get("n")), _positive(document.get("best_of"))) * max(1, prompts)


def streamed(data: bytes, *, several: bool) -> int:
    """Estimate the tokens in a part of a stream: for each event, one per answer that it continues."""
    events = data.count(b"\ndata:") + data.startswith(b"data:")
    # Quotes inside a JSON string are escaped, so a match is a key and never part of generated text.
    return max(events, data.count(b'"index":')) if several else events


def _positive(value: object) -> int:
    """Return a positive number, as `lax.number` reads it."""
    return int(min(lax.number(value), LARGEST_OUTPUT))
