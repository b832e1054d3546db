"""Builds the chat completion that vLLM renders for a request, including Anthropic messages and OpenAI responses. Pure.
Requests whose prompt depends on more than their text (images, a stored response) are refused.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

from router.tokenize.billing import without_billing
from router.tokenize.chat_messages import REFERENCE, function_tool
from router.tokenize.tokenizer import EngineRenders, NotTokenized

M = TypeVar("M", bound=NamedTuple)
Document = dict[str, Any]  # not validated; `as_chat` notices faults when it uses the fields
Conversions: TypeAlias = Mapping[str, Callable[[Document, M], Document]]  # by path of the API

# The parameters of a tool that takes free text, as the engine presents them to the model
FREE_TEXT = {
    "type": "object",
    "properties": {"input": {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": ["input"],
    "additionalProperties": False,
}


class Manner(NamedTuple):
    """The features that the model's template supports."""

    system_first: bool = False  # system messages must come first
    least_effort: str = "none"  # effort that stands for disabled thinking


def as_chat(document: Document, api_path: str, manner: M, conversions: Conversions[M]) -> Document:
    """Return the chat completion of a request. Raise NotTokenized."""
    convert = conversions.get(api_path)
    if convert is None:
        raise NotTokenized(f"{api_path}: only the engine renders its prompt")
    try:
        return convert(document, manner)
    except (TypeError, KeyError, AttributeError, IndexError):
        raise NotTokenized(f"the body is not a request to {api_path}") from None


# Anthropic messages


def _messages(document: Document, manner: Manner) -> Document:
    given, system_first = document["messages"], manner.system_first
    system = document.get("system") or ""
    head = [system] if isinstance(system, str) else list(_said(system))
    if system_first:
        head += [text for message in given if message["role"] == "system" for text in _said(message["content"])]
    made = [{"role": "system", "content": text}] if (text := "".join(head)) else []
    for message in given:
        if message["role"] != "system":
            made += _turn(message)
        elif not system_first and (text := "".join(_said(message["content"]))):
            made.append({"role": "system", "content": text})
    effort = (document.get("output_config") or {}).get("effort")
    if (document.get("thinking") or {}).get("type") == "disabled":
        effort = manner.least_effort
    tools = document.get("tools")
    listed = [function_tool({**tool, "parameters": _schema(tool)}) for tool in tools] if tools is not None else None
    return {**_kept(document), "messages": made, "tools": listed, "reasoning_effort": effort}


def _schema(tool: Document) -> Document:
    schema: Document = tool["input_schema"]
    return schema if "type" in schema else {**schema, "type": "object"}


def _said(content: Any) -> Iterator[str]:
    """Return the system texts, except those that begin with the billing line."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    for block in without_billing(content):
        if block["type"] in ("tool_addition", "tool_removal"):
            raise EngineRenders("tools that change in the conversation: only the engine renders them")
        text = block.get("text") if block["type"] == "text" else None
        if text:
            yield text


def _turn(message: Document) -> list[Document]:
    """Return the messages of a turn, with tool results before the user's text."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    known = ["text", "tool_use", "thinking", "redacted_thinking", REFERENCE]
    known += ["tool_result"] if role == "user" else []
    other = next((block["type"] for block in content if block["type"] not in known), None)
    if other is not None:
        raise EngineRenders(f"a block of type {other!r:.40}: only the engine renders it")
    results = [made for block in content if block["type"] == "tool_result" for made in _results(block)]
    thoughts = [block["thinking"] for block in content if block["type"] == "thinking" and block["thinking"] is not None]
    calls = [_use(block) for block in content if block["type"] == "tool_use"]
    texts = [block["text"] for block in content if block["type"] == "text" and block["text"]]
    made: Document = {"role": role}
    if thoughts:
        made["reasoning"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    if texts:
        made["content"] = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return results if role == "user" and not texts else [*results, made]


def _use(block: Document) -> Document:
    return call_of(block["id"], block["name"], json.dumps(block.get("input") or {}))


def _results(block: Document) -> Iterator[Document]:
    """Return a tool's result, followed by a message for the tools that it names."""
    content, named = block.get("content") or "", []
    if not isinstance(content, str):
        if any(part["type"] not in ("text", REFERENCE) for part in content):
            raise EngineRenders("a tool result is more than text")
        named = [part.get("tool_name") or part.get("name") for part in content if part["type"] == REFERENCE]
        content = "\n".join(part["text"] for part in content if part["type"] == "text")
    made = {"role": "tool", "tool_call_id": block["tool_use_id"]}
    yield {**made, "content": content}
    if references := [{"type": REFERENCE, "name": name} for name in named if name]:
        yield {**made, "content": references}


# OpenAI responses


def _responses(document: Document, manner: Manner) -> Document:
    for name in ("previous_response_id", "previous_input_messages", "prompt"):
        if document.get(name):
            raise NotTokenized(f"{name}: only the engine can apply it")
    if document.get("truncation") not in (None, "disabled"):
        raise EngineRenders("truncation: only the engine can apply it")
    made: list[Document] = []
    if document.get("instructions"):
        made.append({"role": "system", "content": document["instructions"]})
    given = document["input"]
    if isinstance(given, str):
        made.append({"role": "user", "content": given})
    else:
        if given and given[-1].get("status") in ("in_progress", "incomplete"):
            raise EngineRenders("an incomplete answer to be continued: only the engine renders it")
        for item in given:
            _take(item, made)
    tools, effort = document.get("tools"), (document.get("reasoning") or {}).get("effort")
    listed = [function_tool(one) for tool in tools for one in _functions(tool)] if tools else None
    return {**_kept(document), "messages": made, "tools": listed, "reasoning_effort": effort}


def _functions(tool: Document) -> list[Document]:
    """Return the tools that the model sees; tools run by the engine are left out."""
    kind = tool["type"]
    if kind == "custom":
        if (tool.get("format") or {}).get("type", "text") != "text":
            raise NotTokenized("a tool with a grammar: vLLM refuses it")
        return [{"name": tool["name"], "description": tool.get("description"), "parameters": FREE_TEXT}]
    if kind == "namespace":
        return [{**one, "name": _in(tool["name"], one["name"])} for one in tool["tools"] if one["type"] == "function"]
    return [tool] if kind == "function" else []


def free_text(item: Document) -> str:
    """Return the arguments of a call whose tool takes free text."""
    return json.dumps({"input": item.get("input") or ""}, ensure_ascii=False)


def _in(namespace: str | None, name: str) -> str:
    return f"{namespace}__{name}" if namespace else name


def _take(item: Document, made: list[Document]) -> None:
    """Process one item of the input; an assistant's reasoning, tool calls and text form one message."""
    kind = item.get("type", "message")
    if kind == "function_call":
        _take_call(call_of(item["call_id"], _in(item.get("namespace"), item["name"]), item["arguments"]), made)
    elif kind == "custom_tool_call":
        _take_call(call_of(item["call_id"], item["name"], free_text(item)), made)
    elif kind in ("function_call_output", "custom_tool_call_output"):
        made.append({"role": "tool", "tool_call_id": item["call_id"], "content": item["output"]})
    elif kind == "reasoning":
        _take_part("reasoning", _thoughts(item), made)
    elif kind != "message":
        raise EngineRenders(f"an item of type {kind!r:.40}: only the engine renders it")
    elif item["role"] != "assistant":
        made.append({"role": item["role"], "content": item["content"]})
    else:
        content = item["content"]
        _take_part("content", content if isinstance(content, str) else content[0]["text"], made)


def _last_turn(made: list[Document]) -> Document | None:
    return made[-1] if made and made[-1]["role"] == "assistant" else None


def _take_call(call: Document, made: list[Document]) -> None:
    last = _last_turn(made)
    if last is not None:
        last.setdefault("tool_calls", []).append(call)
    else:
        made.append({"role": "assistant", "tool_calls": [call]})


def _take_part(name: str, text: str, made: list[Document]) -> None:
    last = _last_turn(made)
    if last is not None and last.get(name) is None:
        last[name] = text
    else:
        made.append({"role": "assistant", name: text})


def _thoughts(item: Document) -> str:
    if item.get("encrypted_content"):
        raise NotTokenized("encrypted thoughts: no engine reads them")
    parts = item.get("content") or item.get("summary") or [{"text": ""}]
    text: str = parts[0]["text"]
    return text


def call_of(call_id: Any, name: Any, arguments: str) -> Document:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _kept(document: Document) -> Document:
    """Return the fields that exist in chat completions, too."""
    return {name: document[name] for name in ("cache_salt", "chat_template_kwargs") if name in document}


CONVERSIONS: Conversions[Manner] = {
    "/v1/chat/completions": lambda document, _: document,
    "/v1/messages": _messages,
    "/v1/responses": _responses,
}
