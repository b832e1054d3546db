"""The kind of a request, derived from everything except its text: an index that is wrong for one kind may be right for
others. Pure."""

from collections.abc import Mapping
from typing import Any

from router.contract.values import lax

# Fields that change an engine's rendering of a prompt
_FIELDS = frozenset(
    (
        *("tools", "tool_choice", "functions", "response_format", "reasoning", "reasoning_effort", "thinking"),
        *("output_config", "chat_template", "chat_template_kwargs", "documents", "add_generation_prompt"),
        *("continue_final_message", "add_special_tokens", "truncate_prompt_tokens", "mm_processor_kwargs"),
        *("cache_salt", "suffix", "echo", "prompt_logprobs", "previous_response_id", "truncation", "prompt_embeds"),
        *("n", "best_of", "use_beam_search"),  # each further answer finds the prompt of the first one cached
    )
)
# Values without effect
_NEUTRAL: Mapping[str, tuple[object, ...]] = {
    **{"n": (None, 1), "best_of": (None, 1), "use_beam_search": (None, False)},
    "prompt_embeds": (None,),
}
# Message fields on which templates branch
ASKS_PROMPT = frozenset(("prompt_logprobs", "echo"))  # fields that force the prompt to be computed
_BRANCHES = frozenset(("tool_calls", "tool_call_id", "reasoning", "reasoning_content", "name", "refusal", "type"))


# Types of message parts that are not plain text
_PARTS = frozenset(
    (
        *("image_url", "input_image", "image", "input_audio", "audio_url", "video_url", "file", "input_file"),
        *("document", "thinking", "redacted_thinking", "tool_use", "tool_result", "refusal"),
    )
)


def kind_of(api_path: str, document: Mapping[str, Any], *, plain: bool = False) -> str:
    """Return the API, and the fields that may distinguish two requests with the same text. `plain` is Prompt.plain."""
    if plain and _FIELDS.isdisjoint(document):
        return api_path
    turns = document.get("messages") or document.get("input")
    several = _SEVERAL if _are_several(document.get("prompt")) else _ONE
    try:  # all message fields in one step: a call for each would take longer than the decision
        named: set[str] = set().union(*turns) if isinstance(turns, list) else set()
        if "content" in named:
            named |= {
                part["type"]
                for turn in turns or ()
                if type(content := turn.get("content")) is list
                for part in content
                if type(part) is dict and "type" in part
            }
    except (TypeError, AttributeError):  # not a message; the engine refuses it
        named = set()
    fields = {name for name in _FIELDS.intersection(document) if document[name] not in _NEUTRAL.get(name, ())}
    return " ".join((api_path, *sorted(fields | _MARKS & named | several)))


def _are_several(prompt: object) -> bool:
    return isinstance(prompt, list) and len(prompt) > 1 and not isinstance(prompt[0], int)


_MARKS = _BRANCHES | _PARTS
_ONE: frozenset[str] = frozenset()
_SEVERAL = frozenset(("prompts",))


def reads_cache(document: Mapping[str, Any]) -> bool:
    """Return False for requests for the probabilities of their prompt; engines compute such prompts even if cached."""
    if document.get("prompt_logprobs") is not None:
        return False
    if "echo" not in document or not lax.is_true(document["echo"]):
        return True
    asked = document.get("logprobs"), document.get("top_logprobs")
    return all(value is None or value is False for value in asked)
