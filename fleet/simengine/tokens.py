"""The simulated tokenizer: one token per 4 bytes of UTF-8, and the hash chain over blocks of tokens.

A token's id is its 4 bytes as a little-endian number: text and ids are two notations of one byte string, and the next
turn of a conversation (prompt + answer + more) starts with the blocks of the previous turn.
"""

import sys
from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_intdigest

BYTES_PER_TOKEN = 4
VOCABULARY = 2**32


def count(data: bytes) -> int:
    return -(-len(data) // BYTES_PER_TOKEN)


def chain(data: bytes, block_size: int, seed: int = 0) -> list[int]:
    """Return 64-bit hashes of all full blocks, each seeded with the previous one; equal in every process."""
    width = block_size * BYTES_PER_TOKEN
    digest = xxh3_64_intdigest
    key = seed
    keys = []
    for start in range(0, len(data) - width + 1, width):
        key = digest(data[start : start + width], key)
        keys.append(key)
    return keys


def from_ids(ids: Iterable[int]) -> bytes:
    """Convert ids to bytes. Raise OverflowError or TypeError for invalid ids."""
    words = array("I", ids)
    if sys.byteorder == "big":
        words.byteswap()
    return words.tobytes()


def unpadded(data: bytes) -> bytes:
    """Return the text of ids that `to_ids` made."""
    return data[: 1 - BYTES_PER_TOKEN] + data[1 - BYTES_PER_TOKEN :].rstrip(b"\0")


def to_ids(data: bytes) -> list[int]:
    words = array("I", data.ljust(count(data) * BYTES_PER_TOKEN, b"\0"))
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()


def render(messages: Iterable[tuple[str, str]]) -> bytes:
    """Render (role, content) pairs in the chat template, up to the start of the answer."""
    parts = [f"<|{role}|>\n{content}\n" for role, content in messages]
    parts.append("<|assistant|>\n")
    return "".join(parts).encode(errors="surrogatepass")
