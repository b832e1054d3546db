"""What a sweep asks for: requests alone, from a few tokens to a long prompt, and groups of requests. Pure."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

ALONE = 24  # tokens of answer
TOGETHER = 48  # long enough that all decode for a while, whoever came first
LENGTHS = (16, 64, 256, 1024, 4096, 16_384)  # tokens of prompt, alone
GROUPS = (2, 4, 8, 16, 32)
GROUPS_LENGTHS = (64, 1024)
FULL = 0.95  # of the room for one request: how many tokens a text makes is not known to the last one
ROOM = 0.8  # of the KV cache: a group that fills it is preempted, which is not what is measured
_SYLLABLES = tuple(first + then for first in "bdfgklmnprst" for then in "aeiou")


@dataclass(frozen=True, slots=True)
class Shot:
    """So many requests at once, each with a prompt of its own."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int


def shots(window: int, kv_tokens: int | None, max_num_seqs: int) -> list[Shot]:
    """Everything of the plan that the engine has room for."""
    room = min(window, kv_tokens or window)
    longest = round(room * FULL) - ALONE
    alone = [length for length in LENGTHS if length <= longest]
    if 2 * max(alone, default=longest) < longest < LENGTHS[-1]:
        alone.append(longest)
    groups = (Shot(number, length, TOGETHER) for number, length in product(GROUPS, GROUPS_LENGTHS))
    return [Shot(1, length, ALONE) for length in alone] + list(_fitting(groups, window, kv_tokens, max_num_seqs))


def _fitting(groups: Iterable[Shot], window: int, kv_tokens: int | None, max_num_seqs: int) -> Iterator[Shot]:
    for shot in groups:
        each = shot.prompt_tokens + shot.output_tokens
        fits = kv_tokens is None or shot.concurrency * each <= ROOM * kv_tokens
        if each <= FULL * window and fits and shot.concurrency <= max_num_seqs:
            yield shot


def prompt(draw: random.Random, words: int) -> str:
    """Of words made up for it: no cache holds the beginning of such a text."""
    return " ".join("".join(draw.choices(_SYLLABLES, k=3)) for _ in range(words))
