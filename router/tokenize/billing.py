"""Leaves out what a client puts into a prompt for its vendor alone, before either index sees it. Pure."""

from typing import Any

LINE = "x-anthropic-billing-header"  # begins a system block of Claude Code; some versions change it with each request


def without_billing(system: Any) -> Any:
    """A system prompt without the line: vLLM leaves it out of what it computes."""
    if isinstance(system, str):
        return "" if system.startswith(LINE) else system
    return [block for block in system if not _is_billing(block)] if isinstance(system, list) else system


def _is_billing(block: Any) -> bool:
    text = block.get("text") if isinstance(block, dict) else None
    return isinstance(text, str) and text.startswith(LINE)
