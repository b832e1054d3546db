"""Converts a chat's messages and tools into the form that SGLang 0.5.23 passes to a template. Pure. SGLang's request
models drop unknown fields, and write the others in their own order.
"""

from typing import Any

import orjson

from router.tokenize.tokenizer import NotTokenized

Document = dict[str, Any]

_ROLES = frozenset(("system", "assistant", "tool", "function", "developer", "latest_reminder", "root"))
_FIELDS = ("tool_call_id", "name", "phase", "reasoning_content")
_DROPPED = frozenset(("thinking", "reasoning"))  # types of parts that never reach a template
_FUNCTION = ("description", "name", "parameters")
_OPTIONAL = ("strict", "defer_loading")


def normal(given: Any, *, in_parts: bool) -> list[Document]:
    """Return the messages. With `in_parts`, content is a list of parts. Raise NotTokenized."""
    if not isinstance(given, list):
        raise NotTokenized("messages: missing")
    made = [_message(message, in_parts) for message in given]
    last = made[-1] if made else {}
    if last.get("role") == "assistant" and isinstance(last["content"], str):
        made[-1] = {"role": "user", "content": last["content"]}  # the template needs a user message to answer
    return made


def function_tool(function: Document, deferred: object = None) -> Document:
    """Return a tool; the fields of its function keep the client's order."""
    inside = function.get("defer_loading")
    known: Document = {name: function.get(name) for name in _FUNCTION}
    known |= {"strict": function.get("strict"), "defer_loading": deferred if inside is None else inside}
    order = [*(name for name in function if name in known), *known]
    made = {name: known[name] for name in order if name in _FUNCTION or known[name] is not None}
    return {"type": "function", "function": made, "defer_loading": deferred}


def tools(document: Document) -> list[Document] | None:
    """Return the tools that the model sees: those that it may choose. Raise NotTokenized."""
    given, choice = document.get("tools"), document.get("tool_choice")
    if not given or choice == "none":
        return None
    try:
        made = [function_tool(tool["function"], tool.get("defer_loading")) for tool in given]
        if isinstance(choice, dict):
            made = [tool for tool in made if tool["function"]["name"] == choice["function"]["name"]]
    except (TypeError, KeyError, AttributeError):
        raise NotTokenized("a tool is not a function") from None
    return made or None


def _message(given: Any, in_parts: bool) -> Document:
    if not isinstance(given, dict) or not isinstance(role := given.get("role"), str):
        raise NotTokenized("a message without role")
    if role == "user":
        return {"role": role, "content": _content(given.get("content"), role, in_parts=in_parts)}
    if (role := role.lower()) not in _ROLES:
        raise NotTokenized(f"the role {role!r:.40}: SGLang refuses it")
    if given.get("tools") or given.get("prefix") is not None:
        raise NotTokenized("tools or the beginning of an answer in a message: only the engine renders them")
    content = _content(given.get("content"), role, in_parts=in_parts)
    made: Document = {name: given[name] for name in _FIELDS if given.get(name) is not None}
    if (calls := given.get("tool_calls")) is not None:
        made["tool_calls"] = [_call(call, read=role == "assistant") for call in calls]
    # The content follows the other fields if it is in parts
    behind = in_parts and isinstance(given.get("content"), list)
    return {"role": role, **made, "content": content} if behind else {"role": role, "content": content, **made}


def _content(given: Any, role: str, *, in_parts: bool) -> str | list[Document]:
    if given is None or isinstance(given, str):
        return given or ""
    if not isinstance(given, list):
        raise NotTokenized("the content of a message is neither text nor a list")
    texts = [text for part in given if (text := _text(part)) is not None]
    if in_parts and role != "tool":
        return [{"type": "text", "text": text} for text in texts]
    return " ".join(texts)


def _text(part: Any) -> str | None:
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("text") if isinstance(part, dict) else None
    if kind in _DROPPED:
        return None
    if kind != "text" or not isinstance(text, str):
        raise NotTokenized("a part of a message is not text")
    return text


def _call(call: Any, *, read: bool) -> Document:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise NotTokenized("a tool call is not a function's")
    arguments = function.get("arguments")
    if read and isinstance(arguments, str):
        arguments = _arguments(arguments)
    made = {"name": function.get("name"), "arguments": arguments}
    return {"id": call.get("id"), "index": call.get("index"), "type": "function", "function": made}


def _arguments(text: str) -> Document:
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise NotTokenized("the arguments of a tool call are not the JSON of an object: SGLang refuses them")
    return found
