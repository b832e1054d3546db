"""How a simulated engine, and so the router's tokenizer for it, reads an image or a sound in a message. Pure."""

import orjson
import xxhash

IMAGE_TOKENS = 256  # tokens per part: what Gemma 3 makes of an image of any size
_TEXT = 16  # characters of a hash


def is_media(kind: str) -> bool:
    return any(word in kind for word in ("image", "audio", "video"))


def stand_in(part: object) -> str:
    """Text of IMAGE_TOKENS tokens of four bytes: equal parts share their KV blocks, others do not."""
    return xxhash.xxh64_hexdigest(orjson.dumps(part)) * (IMAGE_TOKENS * 4 // _TEXT)
