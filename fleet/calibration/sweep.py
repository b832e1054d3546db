"""The sweep: each shot of the plan in turn, again and again until the time is used up.

A shot that takes more than its share of the time is not repeated, nor is a larger one tried after it. An answer whose
tokens came in one or two reads says how late this machine was, not the engine, and is not counted.
"""

import asyncio
import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import httpx

from fleet.calibration.ask import TokenTimes, ask
from fleet.calibration.plan import ALONE, Shot, prompt
from fleet.calibration.point import CalibrationPoint

SHARE = 0.08  # of all the time: what one shot may take, and be repeated
MOST_ROUNDS = 9
WARM_UP = 3  # requests that are not counted: the first of a process compiles and allocates
WARM_UP_WORDS = 100
READS = 4  # at least, for the pace of an answer to be known
ONE_READ_S = 5e-4  # chunks that come closer together came late together: no engine steps so fast


@dataclass(frozen=True, slots=True)
class Sample:
    """One shot."""

    prompt_tokens: int
    context: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass(slots=True)
class Sweep:
    client: httpx.AsyncClient
    model: str
    seconds: float  # for all of it, by the wall clock
    time_scale: float
    tell: Callable[[str], None] = lambda text: None
    draw: random.Random = field(default_factory=random.Random)
    tokens_per_word: float = 1.0
    prompt_tokens: int = 0  # that were asked for in all, about

    async def run(self, shots: Sequence[Shot]) -> list[CalibrationPoint]:
        """The points in the plan's order. AskError."""
        samples: dict[Shot, list[Sample]] = {shot: [] for shot in shots}
        with contextlib.suppress(TimeoutError):  # what has been measured by then is what there is
            async with asyncio.timeout(self.seconds):
                await self._warm_up()
                await self._rounds(samples)
        return [_point(shot, found) for shot, found in samples.items() if found]

    async def _rounds(self, samples: dict[Shot, list[Sample]]) -> None:
        left = list(samples)
        for number in range(MOST_ROUNDS):
            self.tell(f"round {number + 1} of at most {MOST_ROUNDS}: {len(left)} loads")
            left = await self._round(left, samples)
            if not left:
                return

    async def _warm_up(self) -> None:
        """And learn how many tokens a word is."""
        heard = [await self._ask(WARM_UP_WORDS, ALONE) for _ in range(WARM_UP)]
        self.prompt_tokens = sum(one.prompt_tokens for one in heard)
        self.tokens_per_word = self.prompt_tokens / (WARM_UP * WARM_UP_WORDS)

    async def _round(self, left: Sequence[Shot], samples: dict[Shot, list[Sample]]) -> list[Shot]:
        """The shots for the next round."""
        again: list[Shot] = []
        too_long: list[Shot] = []
        for shot in left:
            if any(_is_larger(shot, other) for other in too_long):
                continue
            began = time.monotonic()
            samples[shot].append(await self._take(shot))
            within = time.monotonic() - began <= SHARE * self.seconds
            (again if within else too_long).append(shot)
        return again

    async def _take(self, shot: Shot) -> Sample:
        words = round(shot.prompt_tokens / self.tokens_per_word)
        asked = (self._ask(words, shot.output_tokens) for _ in range(shot.concurrency))
        return sample(await asyncio.gather(*asked), self.time_scale)

    async def _ask(self, words: int, output_tokens: int) -> TokenTimes:
        # Also of those that are cut off when the time is over: the engine has counted them.
        self.prompt_tokens += round(words * self.tokens_per_word)
        return await ask(self.client, self.model, prompt(self.draw, max(words, 1)), output_tokens)


def _is_larger(shot: Shot, other: Shot) -> bool:
    return shot.concurrency >= other.concurrency and shot.prompt_tokens >= other.prompt_tokens


def sample(heard: Sequence[TokenTimes], time_scale: float) -> Sample:
    """What a shot says; None for what it does not show."""
    begin = max(one.marks[0][0] for one in heard)
    end = min(one.marks[-1][0] for one in heard)
    within = [[mark for mark in one.marks if begin <= mark[0] <= end] for one in heard]
    known = all(_reads(marks) >= READS for marks in within)
    alone = len(heard) == 1
    return Sample(
        prompt_tokens=round(statistics.fmean(one.prompt_tokens for one in heard)),
        context=sum(one.prompt_tokens + _middle(marks) for one, marks in zip(heard, within, strict=True)),
        ttft_s=heard[0].ttft_s * time_scale if alone and known else None,
        tpot_s=statistics.fmean(map(_pace, within)) * time_scale if known else None,
    )


def _reads(marks: Sequence[tuple[float, int]]) -> int:
    return bool(marks) + sum(later - before >= ONE_READ_S for (before, _), (later, _) in pairwise(marks))


def _pace(marks: Sequence[tuple[float, int]]) -> float:
    """Seconds per token."""
    (begin, first), (end, last) = marks[0], marks[-1]
    return (end - begin) / (last - first)


def _middle(marks: Sequence[tuple[float, int]]) -> float:
    return (marks[0][1] + marks[-1][1]) / 2 if marks else 0.0


def _point(shot: Shot, found: Sequence[Sample]) -> CalibrationPoint:
    return CalibrationPoint(
        concurrency=shot.concurrency,
        prompt_tokens=round(statistics.median(one.prompt_tokens for one in found)),
        output_tokens=shot.output_tokens,
        context=statistics.median(one.context for one in found),
        ttft_s=_median(one.ttft_s for one in found),
        tpot_s=_median(one.tpot_s for one in found),
        n=len(found),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
