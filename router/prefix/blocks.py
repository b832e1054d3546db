"""Hashes of a prompt's KV blocks, each chained to the previous one: equal hash, equal prefix."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import NamedTuple

import msgpack
import xxhash

TOKEN_BYTES = 4  # tokens are hashed as 32-bit numbers, little-endian


class Medium(NamedTuple):
    """An image or sound in a prompt."""

    start: int  # its first token in the prompt
    tokens: int
    name: str  # the engine's hash of its content


def block_hashes(tokens: bytes, block_size: int, link: int) -> list[int]:
    """Hash the whole blocks. `link` is the hash of the preceding block, or the index's `seed`."""
    digest = xxhash.xxh64_intdigest
    width = block_size * TOKEN_BYTES
    view = memoryview(tokens)
    hashes = []
    for start in range(0, len(tokens) - width + 1, width):
        link = digest(view[start : start + width], link)
        hashes.append(link)
    return hashes


def extra_key(adapter: str, salt: str) -> bytes:
    """Return the additional inputs of vLLM's hash of a text block: the adapter's name, then the `cache_salt`."""
    keys = [key for key in (adapter, salt) if key]
    return bytes(msgpack.packb(keys)) if keys else b""


def extra_keys(adapter: str, salt: str, blocks: int) -> Sequence[bytes]:
    """Return the extra keys of each block of a request; the salt is in the first block only."""
    return (extra_key(adapter, salt), *[extra_key(adapter, "")] * (blocks - 1)) if adapter or salt else ()


def keys_ahead(tokens: bytes, blocks: int, size: int, ahead: int, keys: Sequence[bytes]) -> Sequence[bytes]:
    """Return each block's extra key, preceded by the `ahead` tokens after the block, as in a vLLM that speculates."""
    ends = range(size * TOKEN_BYTES, (blocks + 1) * size * TOKEN_BYTES, size * TOKEN_BYTES)
    following = (tokens[end : end + ahead * TOKEN_BYTES] for end in ends)
    return after_tokens(following, keys)


def after_tokens(following: Iterable[bytes], keys: Sequence[bytes]) -> Sequence[bytes]:
    """Return each block's hashed extras: the tokens after the block, then its extra key; either list may be shorter."""
    return [each + key for each, key in zip_longest(following, keys, fillvalue=b"")]


def media_keys(
    adapter: str, salt: str, blocks: int, size: int, media: Sequence[Medium], ahead: int = 0
) -> Sequence[bytes]:
    """Return `extra_keys` with the media in each block of `size` tokens and the `ahead` tokens after it, and their
    offsets from the start of that block."""
    keys: list[list[object]] = [[adapter] if adapter else [] for _ in range(blocks)]
    for start, tokens, name in media:
        for number in range(max(start - ahead, 0) // size, min(blocks, -(-(start + tokens) // size))):
            keys[number].append((name, start - number * size))
    if salt and blocks:
        keys[0].append(salt)
    return [bytes(msgpack.packb(each)) if each else b"" for each in keys]


def chain_salt(adapter: str, salt: str) -> int:
    """Return the salt of a chain of chunks, from adapter and cache salt; 0 without both."""
    return xxhash.xxh64_intdigest(extra_key(adapter, salt)) if adapter or salt else 0


def linked(tokens: bytes, block_size: int, link: int, extras: Sequence[bytes], known: Iterable[int] = ()) -> list[int]:
    """Hash like `block_hashes`, with the extra keys that the engine hashes into each block. `known` has hashes of the
    blocks, 0 for those still to be hashed."""
    known = [*known]
    if known and all(known):
        return known
    if not any(extras) and not any(known):
        return block_hashes(tokens, block_size, link)
    width = block_size * TOKEN_BYTES
    starts = range(0, len(tokens) - width + 1, width)
    links = []
    for start, extra, own in zip_longest(starts, extras[: len(starts)], known[: len(starts)]):
        link = own or xxhash.xxh64_intdigest(tokens[start : start + width] + (extra or b""), link)
        links.append(link)
    return links


def part_hashes(
    tokens: bytes, size: int, parts: int, hashes: Sequence[int], seed: int, extras: Sequence[bytes]
) -> list[int]:
    """Hash the parts of each block except the last part, which has the block's hash. `extras` are those of all
    parts."""
    width, found = size * TOKEN_BYTES, list[int]()
    for number, link in enumerate((seed, *hashes[:-1]) if hashes else ()):
        block = tokens[number * width : (number + 1) * width - width // parts]
        found += linked(block, size // parts, link, extras[number * parts : (number + 1) * parts - 1])
    return found
