"""How a simulated engine, and the router's tokenizer for it, convert an image, a sound or a tool call to text. Pure."""

import orjson
import xxhash

IMAGE_TOKENS = 256  # tokens of each part; Gemma 3 uses as many for an image of any size
_TEXT = 16  # characters of a part's hash
# Items of `/v1/responses` other than messages, and the field with their text
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
    """Return text of IMAGE_TOKENS tokens of four bytes. Equal parts share their KV blocks; different parts do not."""
    return xxhash.xxh64_hexdigest(orjson.dumps(part)) * (IMAGE_TOKENS * 4 // _TEXT)


def as_message(item: object) -> object:
    """Return an item of `/v1/responses` that is not a message as a message whose role is the item's type; return
    messages unchanged.
    """
    if not isinstance(item, dict) or "role" in item or (field := _ITEMS.get(str(item.get("type")))) is None:
        return item
    return {"role": item["type"], "content": item.get(field)}
