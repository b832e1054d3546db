"""What a request may cost in output tokens, and what a stream that broke off has cost. Pure."""

from router.contract import lax
from router.contract.api_paths import LIMITS
from router.contract.json_value import JsonObject

DEFAULT_OUTPUT = 512  # output tokens assumed for an answer without a limit
LARGEST_OUTPUT = 1_000_000_000  # tokens; a larger limit means none


def most_output(document: JsonObject, api_path: str) -> int:
    """The tokens that an engine may generate, in all answers; by the largest where an API has two names for a limit."""
    limit = output_limit(document, api_path)
    return min(DEFAULT_OUTPUT * answers(document), LARGEST_OUTPUT) if limit is None else limit


def output_limit(document: JsonObject, api_path: str) -> int | None:
    """The tokens that a request allows the engine to generate, in all answers; None: as many as it can."""
    if api_path not in LIMITS:
        return 0
    given = [value for name in LIMITS[api_path] if (value := _positive(document.get(name)))]
    return min(max(given) * answers(document), LARGEST_OUTPUT) if given else None


def answers(document: JsonObject) -> int:
    """To one request: `n`, or what `best_of` chooses from, for each of its prompts."""
    prompt = document.get("prompt")
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    each = max(1, _positive(document.get("n")), _positive(document.get("best_of")))
    return each * len(prompt) if several else each  # type: ignore[arg-type]  # a list


def streamed(data: bytes, *, several: bool) -> int:
    """Tokens in a part of a stream, about: one an event, and one for each answer that the event goes on with."""
    events = data.count(b"\ndata:") + data.startswith(b"data:")
    # Quotes inside a JSON string are escaped, so this is a key and never text of the model.
    return max(events, data.count(b'"index":')) if several else events


def _positive(value: object) -> int:
    """0 for anything else."""
    return int(min(lax.number(value), LARGEST_OUTPUT))
