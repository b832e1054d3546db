"""Chain hashes of a prompt: equal hash, equal prefix."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from struct import Struct
from typing import Final

import xxhash

CHUNK_BYTES: Final = 256
SPAN_BYTES: Final = 32 * CHUNK_BYTES
FEW: Final = 8  # chunks per span in short prompts
_CHUNKS: Final = Struct(f"{CHUNK_BYTES}s")


def chunk_hashes(prompt: bytes, chunk_bytes: int = CHUNK_BYTES, salt: int = 0) -> list[int]:
    """Return 64-bit hashes of the prompt's whole chunks, each seeded with the previous one.
    Two prompts share hash k if they share the first k + 1 chunks (a collision among a million chunks: 3e-8). `salt`
    separates prompts that must not share a cache. XXH64 was the fastest seeded hash measured at this size: 0.2 ms for
    500 KB (bench/decide.py).
    """
    digest, link = xxhash.xxh64_intdigest, salt
    chunks = _CHUNKS if chunk_bytes == CHUNK_BYTES else Struct(f"{chunk_bytes}s")
    whole = prompt[: len(prompt) // chunk_bytes * chunk_bytes]
    hashes: list[int] = []
    for (chunk,) in chunks.iter_unpack(whole):
        link = digest(chunk, link)
        hashes.append(link)
    return hashes


class PromptChains:
    """The same hashes, faster for prompts that begin like earlier ones, as in a session: a known span of 32 chunks
    (fewer in a short prompt) is looked up by one hash of the whole span, seeded with the hash of the chunk before it.
    """

    def __init__(self, spans: int = 32_768, chunk_bytes: int = CHUNK_BYTES) -> None:
        """`spans` is the number of spans kept, least recently used first out; each takes about 0.5 KB, so a session of
        80 KB takes 5 KB. `chunk_bytes` divides SPAN_BYTES; otherwise every chunk of a long prompt would be hashed."""
        self.kept = spans
        self._chunk_bytes = chunk_bytes
        self._span_bytes = 0 if SPAN_BYTES % chunk_bytes else SPAN_BYTES
        self._spans: OrderedDict[int, Sequence[int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._spans)

    def hashes(self, prompt: bytes, salt: int = 0) -> Sequence[int]:
        """Return the hashes; as a list for a short prompt, because reading an array creates an integer each time."""
        if len(prompt) < SPAN_BYTES:
            return self._few(prompt, salt)
        found, link = array("Q"), salt
        size = self._span_bytes
        whole = len(prompt) // size * size if size else 0
        for start in range(0, whole, SPAN_BYTES):
            found.extend(self._span(prompt[start : start + SPAN_BYTES], link))
            link = found[-1]
        found.extend(chunk_hashes(prompt[whole:], self._chunk_bytes, link))
        return found

    def _few(self, prompt: bytes, link: int) -> list[int]:
        found: list[int] = []
        size, start = FEW * self._chunk_bytes, 0
        while start + size <= len(prompt):
            found += self._span(prompt[start : start + size], link)
            link, start = found[-1], start + size
        found += chunk_hashes(prompt[start:], self._chunk_bytes, link)
        return found

    def _span(self, text: bytes, link: int) -> Sequence[int]:
        key, spans = xxhash.xxh3_64_intdigest(text, link), self._spans
        known = spans.pop(key, None)  # atomic, because a thread may be hashing another prompt
        if known is not None:
            spans[key] = known
            return known
        known = chunk_hashes(text, self._chunk_bytes, link)
        spans[key] = known = known if len(known) <= FEW else array("Q", known)
        if len(spans) > self.kept:
            spans.popitem(last=False)
        return known
