"""Converts a chat's messages and tools into the form that vLLM passes to a template. Pure."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from router.tokenize.billing import parts_without_line
from router.tokenize.tokenizer import EngineRenders, NotTokenized

Message = dict[str, Any]

TEXTS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}  # a part's type, and the field that holds its text
REFERENCE = "tool_reference"  # type of a part that names a deferred tool
# Fields of a part that vLLM consumes itself; other fields are left for the template
_KNOWN = frozenset(
    (
        *("type", "text", "refusal", "thinking", "closed", "uuid", "image_url", "input_audio", "file", "audio_url"),
        *(
            "video_url",
            "image_pil",
            "image_embeds",
            "audio_embeds",
            "video_embeds",
            "data",
            "name",
            "prompt_cache_breakpoint",
        ),
    )
)
_FUNCTION = ("name", "description", "parameters")
_OPTIONAL = ("strict", "defer_loading")


def normal(given: object, *, in_parts: bool, as_built: bool = False) -> list[Message]:
    """Return the messages. With `in_parts`, content is a list of parts. With `as_built`, vLLM has built the tool
    calls from other items and kept the order of their fields. Raise NotTokenized."""
    if not isinstance(given, list):
        raise NotTokenized("messages: missing")
    return [_message(message, in_parts, as_built) for message in given]


def function_tool(function: Message) -> Message:
    """Return a tool in the form that templates receive. The order of its fields matters, because templates may print
    the whole tool."""
    made = {name: function.get(name) for name in _FUNCTION}
    made |= {name: function[name] for name in _OPTIONAL if function.get(name) is not None}
    return {"type": "function", "function": made}


def tool(given: Message) -> Message:
    """Return a chat's tool; the field that defers it may also be next to its function."""
    function, deferred = given["function"], given.get("defer_loading")
    if deferred is None:
        return function_tool(function)
    inside = deferred if function.get("defer_loading") is None else function["defer_loading"]
    return function_tool({**function, "defer_loading": inside}) | {"defer_loading": deferred}


def system_for(messages: Sequence[Message]) -> list[Message]:
    """Return the messages for a template without the role developer: developer and system texts come first, joined
    into one."""
    said = [each for each in messages if each["role"] in ("system", "developer")]
    if not any(each["role"] == "developer" for each in said):
        return list(messages)
    if len(said) == 1 and messages[0] is said[0]:
        return [{**said[0], "role": "system"}, *messages[1:]]
    texts = [text for each in said if (text := "\n".join(_texts(each["content"])))]
    others = [each for each in messages if each["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _texts(content: Any) -> list[str]:
    return [content] if isinstance(content, str) else [part["text"] for part in content]


def _message(given: object, in_parts: bool, as_built: bool) -> Message:
    if not isinstance(given, dict):
        raise NotTokenized("a message is not an object")
    role = given.get("role")
    if not isinstance(role, str):
        raise NotTokenized("a message without role")
    made: Message = {"role": role, "content": _content(given.get("content"), role, in_parts=in_parts)}
    if role == "assistant":
        made |= _thoughts_and_calls(given, as_built)
    elif role == "tool" and "tool_call_id" in given:
        made["tool_call_id"] = given["tool_call_id"]
    made |= {name: given[name] for name in ("name", "task") if isinstance(given.get(name), str)}
    if role == "developer" and given.get("tools"):
        raise EngineRenders("tools in a developer message: only the engine renders them")
    return made


def _content(given: object, role: str, *, in_parts: bool) -> str | list[Message]:
    """Return the content as parts, or as one text. A tool's result is one text unless it names tools. In a text, empty
    parts are omitted if the template takes no parts.
    """
    parts = [given] if isinstance(given, str) else given or []
    if not isinstance(parts, list):
        raise NotTokenized("the content of a message is neither text nor a list")
    if role == "system":
        parts = list(parts_without_line(parts))
    texts = [made for part in parts for made in _part(part)]
    if in_parts and (role != "tool" or any(each["type"] == REFERENCE for each in texts)):
        return texts
    said = (each["name" if each["type"] == REFERENCE else "text"] for each in texts)
    return "\n".join(text for text in said if text or in_parts)


def _part(part: object) -> Iterable[Message]:
    """Return the text of a part, with the client's own fields."""
    if isinstance(part, str):
        return [{"type": "text", "text": part}]
    if isinstance(part, dict) and part.get("type") == REFERENCE and isinstance(part.get("name"), str):
        return [{"type": REFERENCE, "name": part["name"]}]
    field = TEXTS.get(str(part.get("type"))) if isinstance(part, dict) else None
    if not isinstance(part, dict) or field is None or "uuid" in part:
        raise EngineRenders("a part of a message is not text")
    text = part.get(field)
    if text is None and part["type"] in ("text", "refusal"):
        return []
    if not isinstance(text, str):
        raise NotTokenized("a part of a message is not text")
    own = {name: value for name, value in part.items() if name not in _KNOWN}
    return [{"type": "text", "text": text, **own}]


def _thoughts_and_calls(given: Message, as_built: bool) -> Message:
    """Add reasoning under both names that templates know; the client's `reasoning` wins."""
    thoughts = given.get("reasoning")
    thoughts = given.get("reasoning_content") if thoughts is None else thoughts
    made = {} if thoughts is None else {"reasoning": thoughts, "reasoning_content": thoughts}
    calls = given.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise NotTokenized("the tool calls of a message are not a list")
    return {"tool_calls": [_call(call, as_built) for call in calls], **made} if calls else made


def _call(call: Any, as_built: bool) -> Message:
    """Return the call with its arguments as an object. The order of fields matters, because some templates print the
    whole call."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise NotTokenized("a tool call is not a function's")
    name, arguments = {"name": function.get("name")}, {"arguments": _arguments(function.get("arguments"))}
    made = name | arguments if as_built else arguments | name
    made |= {field: value for field, value in function.items() if field not in made}
    ordered = {"id": call.get("id"), "function": made, "type": "function"}
    return ordered | {field: value for field, value in call.items() if field not in ordered}


def _arguments(given: Any) -> Message:
    """Return the arguments; empty if they are not a JSON object."""
    if isinstance(given, str) and given:
        try:
            given = json.loads(given)
        except ValueError:
            return {}
    return given if isinstance(given, dict) else {}
