"""Builds the chat completion that SGLang 0.5.23 renders for Anthropic messages and OpenAI responses. Pure."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import orjson

from router.tokenize.conversation import FREE_TEXT, Conversions, Document, call_of, free_text
from router.tokenize.tokenizer import NotTokenized

DEVELOPER = "Developer instructions:"
_SERVERS = ("web_search_", "computer_", "bash_", "text_editor_")  # types of tools that the vendor runs
_ENVELOPE = ("id", "status", "type")  # fields of a response's item that do not exist in messages


class SglangManner(NamedTuple):
    """The features that the model's template supports."""

    inline_system: bool = False  # system messages stay in place
    thoughts_in_text: bool = False  # the template parses the tags that mark the reasoning of earlier turns in the text


# Anthropic messages


def _messages(document: Document, manner: SglangManner) -> Document:
    given, system = document["messages"], document.get("system") or ""
    if isinstance(system, str):
        head = [system] if system.strip() else []
    else:
        head = [block["text"] for block in system if block["type"] == "text" and block.get("text")]
    thinking = (document.get("thinking") or {}).get("type")
    # A reasoning parser, without which SGLang refuses the field, puts the reasoning into the text
    wraps = manner.thoughts_in_text and thinking not in (None, "disabled")
    if not manner.inline_system:
        head += [text for message in given if message["role"] == "system" for text in _stripped(message["content"])]
    made: list[Document] = [{"role": "system", "content": "\n".join(head)}] if head else []
    for message in given:
        if message["role"] != "system" or manner.inline_system:
            made += _turn(message, wraps)
    effort = (document.get("output_config") or {}).get("effort")
    return {
        "messages": made,
        "tools": [{"function": _function(tool), "defer_loading": tool.get("defer_loading")} for tool in _own(document)],
        "tool_choice": _choice(document.get("tool_choice") or {}),
        "reasoning_effort": "max" if effort == "xhigh" else effort,
        "thinks": None if thinking is None else thinking != "disabled",
    }


def _stripped(content: Any) -> list[str]:
    """Return a system message's text, if it has any; it is merged into the first system message."""
    texts = [content] if isinstance(content, str) else [each.get("text") for each in content if each["type"] == "text"]
    said = "\n".join(text for each in texts if (text := (each or "").strip()))
    return [said] if said else []


def _own(document: Document) -> list[Document]:
    return [tool for tool in document.get("tools") or () if not (tool.get("type") or "").startswith(_SERVERS)]


def _function(tool: Document) -> Document:
    schema = tool["input_schema"]
    schema = schema if "type" in schema else {**schema, "type": "object"}
    described = tool.get("description") or ""
    return {"name": tool["name"], "description": described, "parameters": schema, "strict": bool(tool.get("strict"))}


def _choice(given: Document) -> object:
    kind = given.get("type")
    return {"function": {"name": given["name"]}} if kind == "tool" else "none" if kind == "none" else "auto"


def _turn(message: Document, wraps: bool) -> list[Document]:
    """Return the messages of a turn, in the order of its blocks."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    made, parts, calls = [], _thoughts_in(content, wraps) if role == "assistant" else [], list[Document]()
    for block in content:
        if block["type"] == "tool_result" and role == "user":
            made += [_of(role, parts), _result(block)] if parts else [_result(block)]
            parts = []
        elif block["type"] == "tool_use":
            calls.append(call_of(block["id"], block.get("name") or "", json.dumps(block.get("input") or {})))
        else:
            parts += _texts(block)
    if parts or calls or role != "user":
        made.append({**_of(role, parts, calls), **({"tool_calls": calls} if calls else {})})
    return made


def _thoughts_in(content: list[Document], wraps: bool) -> list[Document]:
    thoughts = [block["thinking"] for block in content if block["type"] == "thinking" and block["thinking"]]
    if thoughts and not wraps:
        raise NotTokenized("thoughts of an earlier turn: only the engine knows how its reasoning parser marks them")
    return [{"type": "text", "text": "<think>" + "\n".join(thoughts) + "\n</think>"}] if thoughts else []


def _texts(block: Document) -> list[Document]:
    if block["type"] not in ("text", "thinking"):
        raise NotTokenized(f"a block of type {block['type']!r:.40}: only the engine renders it")
    return [{"type": "text", "text": block["text"]}] if block.get("text") is not None else []


def _of(role: str, parts: list[Document], calls: list[Document] | None = None) -> Document:
    if len(parts) == 1:
        return {"role": role, "content": parts[0]["text"]}
    return {"role": role, "content": parts or (None if calls else "")}


def _result(block: Document) -> Document:
    content = block.get("content") or ""
    if not isinstance(content, str):
        if any(part["type"] != "text" for part in content):
            raise NotTokenized("a tool result is more than text")
        parts = [part for part in content if part["text"]]
        content = parts[0]["text"] if len(parts) == 1 else parts or ""
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


# OpenAI responses


def _responses(document: Document, manner: SglangManner) -> Document:
    if document.get("previous_response_id"):
        raise NotTokenized("previous_response_id: only the engine can apply it")
    made = [{"role": "system", "content": document["instructions"]}] if document.get("instructions") else []
    given = document["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    for message in [message for item in items for message in _item(item)]:
        _join(message, made)
    reasoning, choice = document.get("reasoning"), document.get("tool_choice", "auto")
    if isinstance(choice, dict):
        named = choice.get("name") or (choice.get("function") or {}).get("name")
        choice = {"function": {"name": named}} if named and choice["type"] in ("function", "custom") else "auto"
    kwargs = document.get("chat_template_kwargs")
    return {
        "messages": made if manner.inline_system else list(_system_first(made)),
        "tools": [{"function": function} for tool in document.get("tools") or () for function in _functions(tool)],
        "tool_choice": choice,
        "reasoning": {"effort": (reasoning or {}).get("effort", "medium" if reasoning is not None else None)},
        "chat_template_kwargs": kwargs,
    }


def _functions(tool: Document) -> list[Document]:
    """Return the function that the model sees; there is none for built-in tools and namespaces."""
    kind, described, parameters = tool["type"], tool.get("description"), tool.get("parameters")
    if kind not in ("function", "custom") or not tool.get("name"):
        return []
    if kind == "custom":
        described, parameters = _described(described, tool.get("format") or {}), FREE_TEXT
    strict = bool(tool.get("strict"))
    return [{"name": tool["name"], "description": described, "parameters": parameters, "strict": strict}]


def _described(description: str | None, form: Document) -> str | None:
    parts = [description] if description else []
    if form.get("type") == "grammar":
        parts.append(
            f"The payload must conform to this {form.get('syntax') or 'lark'} grammar:\n{form.get('definition') or ''}"
        )
    return "\n\n".join(parts) or None


def _item(item: Document) -> list[Document]:
    """Return the message of one item of the input, if it has one."""
    kind = item.get("type") or "message"
    if kind == "function_call":
        return [_calls(item, _object(item.get("arguments")))]
    if kind == "custom_tool_call":
        return [_calls(item, free_text(item))]
    if kind in ("function_call_output", "custom_tool_call_output"):
        output = item.get("output", "")
        said = "".join(part.get("text", "") for part in output) if isinstance(output, list) else output
        return [{"role": "tool", "tool_call_id": item.get("call_id"), "content": said}]
    if kind == "reasoning":
        return _thoughts(item)
    if kind != "message":
        raise NotTokenized(f"an item of type {kind!r:.40}: SGLang refuses it")
    made = {name: value for name, value in item.items() if value is not None and name not in _ENVELOPE}
    if made["role"] == "developer":
        made |= {"role": "system", "content": _labelled(made.get("content"))}
    if isinstance(parts := made.get("content"), list):
        made["content"] = [_part(part) for part in parts]
    return [made]


def _part(part: Document) -> Document:
    return {"type": "text", "text": part.get("text", "")} if part["type"] in ("input_text", "output_text") else part


def _labelled(content: Any) -> Any:
    """Return a developer's content with the label that distinguishes it from the system's."""
    if isinstance(content, str):
        return f"{DEVELOPER}\n{content}"
    place = next((at for at, part in enumerate(content) if isinstance(part.get("text"), str)), None)
    if place is None:
        return [{"type": "input_text", "text": DEVELOPER}, *content]
    labelled = {**content[place], "text": f"{DEVELOPER}\n{content[place]['text']}"}
    return [*content[:place], labelled, *content[place + 1 :]]


def _thoughts(item: Document) -> list[Document]:
    texts = [part["text"] for part in item.get("summary") or () if part.get("text")]
    texts = texts or [part["text"] for part in item.get("content") or () if part.get("text")]
    if not texts and item.get("encrypted_content"):
        raise NotTokenized("encrypted thoughts: only the engine reads them")
    return [{"role": "assistant", "reasoning_content": "\n".join(texts)}] if texts else []


def _object(given: Any) -> str:
    """Return arguments as the JSON of an object; an empty object for anything else."""
    if isinstance(given, dict):
        return orjson.dumps(given).decode()
    try:
        return given if isinstance(orjson.loads(given), dict) else "{}"
    except (orjson.JSONDecodeError, TypeError):
        return "{}"


def _calls(item: Document, arguments: str) -> Document:
    call = call_of(item.get("call_id") or item.get("id"), item.get("name"), arguments)
    return {"role": "assistant", "tool_calls": [call]}


def _join(message: Document, made: list[Document]) -> None:
    """Add a message. Consecutive items of an assistant form one message, unless the phase changes."""
    last = made[-1] if made else {}
    is_turn = message["role"] == "assistant" == last.get("role")
    if not is_turn or (last.get("phase") != message.get("phase") and set(last) != {"role", "reasoning_content"}):
        made.append(message)
        return
    for name, value in message.items():
        before = last.get(name)
        if name == "phase":
            last[name] = value
        elif name in _JOINED and value:
            last[name] = _JOINED[name](before, value) if before else value


def _contents(before: Any, value: Any) -> Any:
    if isinstance(before, str) and isinstance(value, str):
        return f"{before}\n\n{value}"
    as_parts = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in (before, value)]
    return [*as_parts[0], *as_parts[1]]


_JOINED: dict[str, Callable[[Any, Any], Any]] = {
    "content": _contents,
    "tool_calls": lambda before, value: [*before, *value],
    "reasoning_content": lambda before, value: f"{before}\n{value}",
}


def _system_first(messages: list[Document]) -> Iterator[Document]:
    said = [message.get("content") for message in messages if message["role"] == "system"]
    texts = [each if isinstance(each, str) else part["text"] for each in said for part in _parts(each)]
    if texts:
        yield {"role": "system", "content": "\n\n".join(texts)}
    yield from (message for message in messages if message["role"] != "system")


def _parts(content: Any) -> list[Document]:
    return [{"text": content}] if isinstance(content, str) else [part for part in content or () if "text" in part]


CONVERSIONS: Conversions[SglangManner] = {
    "/v1/chat/completions": lambda document, _: document,
    "/v1/messages": _messages,
    "/v1/responses": _responses,
}
