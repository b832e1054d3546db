"""How a simulated engine, and so the router's tokenizer for it, reads an image, a sound or a tool's call. Pure."""

import orjson
import xxhash

IMAGE_TOKENS = 256  # tokens per part: what Gemma 3 makes of an image of any size
_TEXT = 16  # characters of a hash
# Items of `/v1/responses` that are no messages, with the field of their text
_ITEMS = {
    "function_call": "arguments",
    "function_call_output": "output",
    "custom_tool_call": "input",
    "custom_tool_call_output": "output",
    "reasoning": "content",
}


def is_media(kind: str) -> bool:
    return any(word in kind for word in ("image", "audio", "video"))


def stand_in(part: object) -> str:
    """Text of IMAGE_TOKENS tokens of four bytes: equal parts share their KV blocks, others do not."""
    return xxhash.xxh64_hexdigest(orjson.dumps(part)) * (IMAGE_TOKENS * 4 // _TEXT)


def as_message(item: object) -> object:
    """An item of `/v1/responses` that is no message, as one whose role is its type; others as they are."""
    if not isinstance(item, dict) or "role" in item or (field := _ITEMS.get(str(item.get("type")))) is None:
        return item
    return {"role": item["type"], "content": item.get(field)}
