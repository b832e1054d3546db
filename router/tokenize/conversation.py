"""Converts Anthropic messages and OpenAI responses into the chat completion that vLLM renders for them. Pure.

Requests whose prompt depends on more than the request (images, a model's thoughts, a stored response) are refused.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

from router.tokenize.billing import without_billing
from router.tokenize.tokenizer import NotTokenized

Document = dict[str, Any]  # a fault in its shape is found by using it (`as_chat`)

_TEXTS = ("text", "input_text", "output_text")
_FUNCTION = ("name", "description", "parameters")


def as_chat(document: Document, api_path: str, *, system_first: bool) -> Document:
    """`system_first`: the template wants system messages at the beginning. Raises NotTokenized."""
    made = _CONVERSIONS.get(api_path)
    if made is None:
        raise NotTokenized(f"{api_path}: only the engine renders its prompt")
    try:
        return made(document, system_first)
    except (TypeError, KeyError, AttributeError, IndexError):
        raise NotTokenized(f"the body is not a request to {api_path}") from None


def function_tool(function: Document) -> Document:
    """A tool as vLLM passes it to the template."""
    made = {name: function.get(name) for name in _FUNCTION}
    if function.get("strict") is not None:
        made["strict"] = function["strict"]
    return {"type": "function", "function": made}


# Anthropic messages


def _messages(document: Document, system_first: bool) -> Document:
    if document.get("output_config") or (document.get("thinking") or {}).get("type") == "disabled":
        raise NotTokenized("output_config and thinking: only the engine renders them")
    given = document["messages"]
    head = list(_said(document.get("system") or ""))
    if system_first:
        head += [text for message in given if message["role"] == "system" for text in _said(message["content"])]
    made = [{"role": "system", "content": "".join(head)}] if head else []
    for message in given:
        if message["role"] != "system":
            made += _turn(message)
        elif not system_first and (text := "".join(_said(message["content"]))):
            made.append({"role": "system", "content": text})
    tools = document.get("tools")
    listed = [function_tool({**tool, "parameters": tool["input_schema"]}) for tool in tools] if tools else tools
    return {**_kept(document), "messages": made, "tools": listed}


def _said(content: Any) -> Iterator[str]:
    """System texts."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}] if content else []
    for block in without_billing(content):
        text = block.get("text") if block["type"] == "text" else None
        if text:
            yield text


def _turn(message: Document) -> list[Document]:
    """Tool results come before the user's text."""
    role, content = message["role"], message["content"]
    if isinstance(content, str):
        return [{"role": role, "content": content}]
    results = [_result(block) for block in content if block["type"] == "tool_result" and role == "user"]
    calls = [_use(block) for block in content if block["type"] == "tool_use"]
    texts = [block["text"] for block in content if block["type"] == "text" and block["text"]]
    known = ("text", "tool_use", "redacted_thinking", *(["tool_result"] if role == "user" else []))
    other = next((block["type"] for block in content if block["type"] not in known), None)
    if other is not None:
        raise NotTokenized(f"a block of type {other!r:.40}: only the engine renders it")
    made: Document = {"role": role}
    if calls:
        made["tool_calls"] = calls
    if texts:
        made["content"] = texts[0] if len(texts) == 1 else [{"type": "text", "text": text} for text in texts]
    return results if role == "user" and not texts else [*results, made]


def _use(block: Document) -> Document:
    return _call(block["id"], block["name"], json.dumps(block.get("input") or {}))


def _result(block: Document) -> Document:
    content = block.get("content") or ""
    if not isinstance(content, str):
        if any(part["type"] != "text" for part in content):
            raise NotTokenized("a tool result is more than text")
        content = "\n".join(part["text"] for part in content)
    return {"role": "tool", "tool_call_id": block["tool_use_id"], "content": content}


# OpenAI responses


def _responses(document: Document, system_first: bool) -> Document:
    for name in ("previous_response_id", "previous_input_messages", "prompt", "reasoning"):
        if document.get(name):
            raise NotTokenized(f"{name}: only the engine can apply it")
    if document.get("truncation") not in (None, "disabled"):
        raise NotTokenized("truncation: only the engine can apply it")
    made: list[Document] = []
    if document.get("instructions"):
        made.append({"role": "system", "content": document["instructions"]})
    given = document["input"]
    if isinstance(given, str):
        made.append({"role": "user", "content": given})
    else:
        for item in given:
            _take(item, made)
    tools = document.get("tools")
    if tools and any(tool["type"] != "function" for tool in tools):
        raise NotTokenized("built-in tools: only the engine renders them")
    return {**_kept(document), "messages": made, "tools": [function_tool(tool) for tool in tools] if tools else None}


def _take(item: Document, made: list[Document]) -> None:
    """Add one item of the input; an assistant's tool calls and text make one message."""
    kind = item.get("type", "message")
    last = made[-1] if made and made[-1]["role"] == "assistant" else None
    if item.get("status") in ("in_progress", "incomplete"):
        raise NotTokenized("an incomplete answer to be continued: only the engine renders it")
    if kind == "function_call":
        call = _call(item["call_id"], item["name"], item["arguments"])
        if last is not None:
            last.setdefault("tool_calls", []).append(call)
        else:
            made.append({"role": "assistant", "tool_calls": [call]})
    elif kind == "function_call_output":
        made.append({"role": "tool", "tool_call_id": item["call_id"], "content": _texts(item["output"])})
    elif kind != "message":
        raise NotTokenized(f"an item of type {kind!r:.40}: only the engine renders it")
    elif item["role"] != "assistant":
        made.append({"role": item["role"], "content": _texts(item["content"])})
    else:
        content = item["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        if last is not None and last.get("content") is None:
            last["content"] = text
        else:
            made.append({"role": "assistant", "content": text})


def _texts(content: Any) -> Any:
    if isinstance(content, str):
        return content
    if any(part["type"] not in _TEXTS for part in content):
        raise NotTokenized("a part of a message is not text")
    return [{"type": "text", "text": part["text"]} for part in content]


def _call(call_id: str, name: str, arguments: str) -> Document:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _kept(document: Document) -> Document:
    """Fields that a chat completion has too."""
    return {name: document[name] for name in ("cache_salt", "chat_template_kwargs") if name in document}


_CONVERSIONS: dict[str, Callable[[Document, bool], Document]] = {
    "/v1/messages": _messages,
    "/v1/responses": _responses,
}
