"""The loads of a sweep: single requests, from a few tokens to a long prompt, and groups of requests. Pure."""

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

ALONE = 24  # answer tokens of a single request
TOGETHER = 48  # answer tokens of a request in a group: enough for all to decode at the same time for a while
LENGTHS = (16, 64, 256, 1024, 4096, 16_384)  # prompt tokens of a single request
GROUPS = (2, 4, 8, 16, 32)
GROUPS_LENGTHS = (64, 1024)
FULL = 0.95  # share of the window in use, as a text's number of tokens is not known exactly
KV_SHARE = 0.8  # share of the KV cache to use, because requests of a larger group would be preempted
_SYLLABLES = tuple(first + then for first in "bdfgklmnprst" for then in "aeiou")


@dataclass(frozen=True, slots=True)
class SweepLoad:
    """Concurrent requests, each with its own prompt."""

    concurrency: int
    prompt_tokens: int
    output_tokens: int


def plan_loads(window: int, kv_tokens: int | None, max_num_seqs: int) -> list[SweepLoad]:
    """Return the loads that fit the engine."""
    capacity = min(window, kv_tokens or window)
    longest = round(capacity * FULL) - ALONE
    alone = [length for length in LENGTHS if length <= longest]
    if 2 * max(alone, default=longest) < longest < LENGTHS[-1]:
        alone.append(longest)
    groups = (SweepLoad(number, length, TOGETHER) for number, length in product(GROUPS, GROUPS_LENGTHS))
    return [SweepLoad(1, length, ALONE) for length in alone] + list(_fitting(groups, window, kv_tokens, max_num_seqs))


def _fitting(groups: Iterable[SweepLoad], window: int, kv_tokens: int | None, max_num_seqs: int) -> Iterator[SweepLoad]:
    for load in groups:
        each = load.prompt_tokens + load.output_tokens
        fits = kv_tokens is None or load.concurrency * each <= KV_SHARE * kv_tokens
        if each <= FULL * window and fits and load.concurrency <= max_num_seqs:
            yield load


def prompt(draw: random.Random, words: int) -> str:
    """Draw random words, so that no cache holds the beginning of the text."""
    return " ".join("".join(draw.choices(_SYLLABLES, k=3)) for _ in range(words))
