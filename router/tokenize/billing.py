"""Removes what a client adds to a prompt for its vendor's billing, before either index sees it. Pure."""

from typing import Any

from router.contract.values.json_value import JsonObject

LINE = "x-anthropic-billing-header"  # begins a system block of Claude Code; some versions change it with each request


def without_billing(system: Any) -> Any:
    """Return a system prompt without the line, which vLLM ignores as well."""
    if isinstance(system, str):
        return "" if system.startswith(LINE) else system
    return [block for block in system if not _is_billing(block)] if isinstance(system, list) else system


def removed(body: bytes, document: JsonObject) -> JsonObject | None:
    """Return the document without the line, for an engine that would compute it; None if it has none."""
    if LINE.encode() not in body:
        return None
    made = {**document}
    if "system" in made:
        made["system"] = without_billing(made["system"])
    if isinstance(messages := made.get("messages"), list):
        made["messages"] = [_without_line(message) for message in messages]
    return made if made != document else None


def _without_line(message: Any) -> Any:
    """Remove the line from a message, into which a gateway may have turned the system prompt."""
    if not isinstance(message, dict) or message.get("role") not in ("system", "developer"):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": content.partition("\n")[2] if content.startswith(LINE) else content}
    return {**message, "content": without_billing(content)} if isinstance(content, list) else message


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(LINE)
