"""Generates the simulated model's text as a function of seed and prompt, so it is known in advance.
Each token is 4 ASCII characters that need no escaping in JSON.
"""

import math
import sys
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random

from xxhash import xxh3_64_intdigest

CORPUS_TOKENS = 16_384
# The length at which the model stops by itself: log-normal, roughly as in chat traffic.
MEDIAN_TOKENS = 200
SIGMA = 0.8

_CONSONANTS, _VOWELS = "bcdfghjklmnprstvwz", "aeiou"


# The simulated tokenizer: one token per 4 bytes of UTF-8, and the hash chain over blocks of tokens. A token's id is its
# 4 bytes as a little-endian number, so text and ids are two notations of the same byte string, and the next turn of a
# conversation (prompt + answer + more) begins with the blocks of the previous turn.
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
    """Return the text of ids that `to_ids` produced."""
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


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Limits of an answer."""

    max_tokens: int
    min_tokens: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SimAnswer:
    text: str  # without the stop string
    tokens: int
    reason: str  # "stop" or "length"
    stopped_by: str | None = None  # stop string that ended the answer


def syllable(key: int) -> str:
    """Return a token that the model could have generated."""
    key, last = divmod(key, len(_CONSONANTS))
    key, middle = divmod(key, len(_VOWELS))
    return f"{_CONSONANTS[key % len(_CONSONANTS)]}{_VOWELS[middle]}{_CONSONANTS[last]} "


class TextGenerator:
    def __init__(self, seed: int) -> None:
        self._seed = seed
        draw = Random(seed)  # noqa: S311 - a simulation
        syllables = [
            draw.choice(_CONSONANTS) + draw.choice(_VOWELS) + draw.choice(_CONSONANTS) + " "
            for _ in range(CORPUS_TOKENS)
        ]
        self._corpus = "".join(syllables)

    def answer(self, prompt: bytes, params: SamplingParams, salt: int = 0) -> SimAnswer:
        key = xxh3_64_intdigest(prompt, (self._seed ^ (salt * 0x9E3779B97F4A7C15)) & (2**64 - 1))
        tokens = params.max_tokens if params.ignore_eos else self._length(key, params)
        reason = "stop" if tokens < params.max_tokens else "length"
        return _cut(SimAnswer(self._text(key, tokens), tokens, reason), params)

    def _length(self, key: int, params: SamplingParams) -> int:
        drawn = int(Random(key).lognormvariate(math.log(MEDIAN_TOKENS), SIGMA))  # noqa: S311 - a simulation
        return min(max(drawn, params.min_tokens, 1), params.max_tokens)

    def _text(self, key: int, tokens: int) -> str:
        start = key % CORPUS_TOKENS * BYTES_PER_TOKEN
        text = self._corpus[start : start + tokens * BYTES_PER_TOKEN]
        missing = tokens * BYTES_PER_TOKEN - len(text)
        if missing > 0:
            text += self._corpus * (missing // len(self._corpus)) + self._corpus[: missing % len(self._corpus)]
        return text


def _cut(answer: SimAnswer, params: SamplingParams) -> SimAnswer:
    """End the answer at the first stop string that is complete after `min_tokens`."""
    earliest = params.min_tokens * BYTES_PER_TOKEN
    met = [(answer.text.find(stop, max(earliest - len(stop) + 1, 0)), stop) for stop in params.stop]
    found = min(((at, stop) for at, stop in met if at >= 0), default=None, key=lambda pair: pair[0] + len(pair[1]))
    if found is None:
        return answer
    at, stop = found
    tokens = -(-(at + len(stop)) // BYTES_PER_TOKEN)
    return SimAnswer(answer.text[:at], tokens, "stop", stop)
