"""Removes a client's billing information for its vendor from a prompt before either index sees the prompt. Pure."""

from collections.abc import Iterable, Iterator
from typing import Any

from router.contract.values.json_value import JsonObject

# Beginning of a system block of Claude Code; some versions change it with each request
LINE = "x-anthropic-billing-header"


def without_billing(system: Any) -> Any:
    """Return a system prompt without billing blocks, which vLLM ignores as well. A system prompt in plain text keeps
    its line."""
    return [block for block in system if not _is_billing(block)] if isinstance(system, list) else system


def without_line(content: Any) -> Any:
    """Return a system message's content without the line; a text or part that begins with it keeps the rest. vLLM
    ignores the line there as well."""
    if isinstance(content, str):
        return content.partition("\n")[2] if content.startswith(LINE) else content
    return [*parts_without_line(content)] if isinstance(content, list) else content


def parts_without_line(parts: Iterable[Any]) -> Iterator[Any]:
    """Return the parts without the line at the start of a text; parts of other types keep it."""
    for part in parts:
        text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
        if not (isinstance(text, str) and text.startswith(LINE)):
            yield part
        elif rest := text.partition("\n")[2]:
            yield {**part, "text": rest} if isinstance(part, dict) else rest


def removed(body: bytes, document: JsonObject) -> JsonObject | None:
    """Return the document without the line, for an engine that would compute it; None if the document has no such
    line."""
    if LINE.encode() not in body:
        return None
    made = {**document}
    if "system" in made:
        made["system"] = without_line(made["system"])
    if isinstance(messages := made.get("messages"), list):
        made["messages"] = [_of_message(message) for message in messages]
    return made if made != document else None


def _of_message(message: Any) -> Any:
    """Remove the line from a message, because a gateway may have turned the system prompt into one."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "developer") or "content" not in message:
        return message
    return {**message, "content": without_line(message["content"])}


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(LINE)
