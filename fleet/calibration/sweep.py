"""Measures the loads of the plan in rounds until the time is used up. A load that takes more than its share of the time
is not repeated, and larger ones are skipped. If an answer's tokens arrive in one or two reads, they show a delay of
this machine rather than of the engine, and the answer does not count.
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

from fleet.calibration.fit import CalibrationPoint
from fleet.calibration.plan import ALONE, SweepLoad, prompt
from fleet.calibration.streamed_request import TokenTimes, stream_completion

SHARE = 0.08  # share of the total time within which a load may be repeated
# Share of the total time for which to idle before a single request, because in traffic such a request finds an idle
# engine with cold caches. On a separate core, vLLM's first token took 27 ms after a pause of 20 ms, 32 ms after 300 ms
# and 36 ms after 800 ms.
IDLE = 1 / 300
MOST_ROUNDS = 9
WARM_UP = 3  # requests that do not count: during the first one, the engine compiles and allocates
WARM_UP_WORDS = 100
READS = 4  # smallest number of reads that shows the pace of an answer
ONE_READ_S = 5e-4  # chunks closer together were delayed together: no engine steps this fast


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of a load."""

    prompt_tokens: int
    context: float
    ttft_s: float | None
    tpot_s: float | None


@dataclass(slots=True)
class Sweep:
    client: httpx.AsyncClient
    model: str
    seconds: float  # wall-clock length of the whole sweep
    time_scale: float
    report: Callable[[str], None] = lambda text: None
    draw: random.Random = field(default_factory=random.Random)
    tokens_per_word: float = 1.0
    prompt_tokens: int = 0  # approximate prompt tokens sent in all

    async def run(self, loads: Sequence[SweepLoad]) -> list[CalibrationPoint]:
        """Measure the loads; return the points in the plan's order. Raise RequestFailed."""
        samples: dict[SweepLoad, list[Sample]] = {load: [] for load in loads}
        with contextlib.suppress(TimeoutError):  # the points measured until then are the result
            async with asyncio.timeout(self.seconds):
                await self._warm_up()
                await self._rounds(samples)
        return [_point(load, found) for load, found in samples.items() if found]

    async def _rounds(self, samples: dict[SweepLoad, list[Sample]]) -> None:
        left = list(samples)
        for number in range(MOST_ROUNDS):
            self.report(f"round {number + 1} of at most {MOST_ROUNDS}: {len(left)} loads")
            left = await self._round(left, samples)
            if not left:
                return

    async def _warm_up(self) -> None:
        """Warm up the engine, and measure the tokens per word."""

        answers = [await self._ask(WARM_UP_WORDS, ALONE) for _ in range(WARM_UP)]
        self.prompt_tokens = sum(one.prompt_tokens for one in answers)
        self.tokens_per_word = self.prompt_tokens / (WARM_UP * WARM_UP_WORDS)

    async def _round(self, left: Sequence[SweepLoad], samples: dict[SweepLoad, list[Sample]]) -> list[SweepLoad]:
        """Measure one round. Return the loads for the next one."""
        again: list[SweepLoad] = []
        too_long: list[SweepLoad] = []
        for load in left:
            if any(_is_larger(load, other) for other in too_long):
                continue
            began = time.monotonic()
            samples[load].append(await self._take(load))
            within = time.monotonic() - began <= SHARE * self.seconds
            (again if within else too_long).append(load)
        return again

    async def _take(self, load: SweepLoad) -> Sample:
        if load.concurrency == 1:
            await asyncio.sleep(IDLE * self.seconds)
        words = round(load.prompt_tokens / self.tokens_per_word)
        asked = (self._ask(words, load.output_tokens) for _ in range(load.concurrency))
        return sample(await asyncio.gather(*asked), self.time_scale)

    async def _ask(self, words: int, output_tokens: int) -> TokenTimes:
        # Requests cut off at the end are included, because the engine counts them.
        self.prompt_tokens += round(words * self.tokens_per_word)
        return await stream_completion(self.client, self.model, prompt(self.draw, max(words, 1)), output_tokens)


def _is_larger(load: SweepLoad, other: SweepLoad) -> bool:
    return load.concurrency >= other.concurrency and load.prompt_tokens >= other.prompt_tokens


def sample(answers: Sequence[TokenTimes], time_scale: float) -> Sample:
    """Return the measurements of one run; None if they cannot be measured."""
    begin = max(one.marks[0][0] for one in answers)
    end = min(one.marks[-1][0] for one in answers)
    within = [[mark for mark in one.marks if begin <= mark[0] <= end] for one in answers]
    known = all(_reads(marks) >= READS for marks in within)
    alone = len(answers) == 1
    return Sample(
        prompt_tokens=round(statistics.fmean(one.prompt_tokens for one in answers)),
        context=sum(one.prompt_tokens + _middle(marks) for one, marks in zip(answers, within, strict=True)),
        ttft_s=answers[0].ttft_s * time_scale if alone and known else None,
        tpot_s=statistics.fmean(map(_pace, within)) * time_scale if known else None,
    )


def _reads(marks: Sequence[tuple[float, int]]) -> int:
    return bool(marks) + sum(later - before >= ONE_READ_S for (before, _), (later, _) in pairwise(marks))


def _pace(marks: Sequence[tuple[float, int]]) -> float:
    """Return the seconds per token."""
    (begin, first), (end, last) = marks[0], marks[-1]
    return (end - begin) / (last - first)


def _middle(marks: Sequence[tuple[float, int]]) -> float:
    return (marks[0][1] + marks[-1][1]) / 2 if marks else 0.0


def _point(load: SweepLoad, found: Sequence[Sample]) -> CalibrationPoint:
    return CalibrationPoint(
        concurrency=load.concurrency,
        prompt_tokens=round(statistics.median(one.prompt_tokens for one in found)),
        output_tokens=load.output_tokens,
        context=statistics.median(one.context for one in found),
        ttft_s=_median(one.ttft_s for one in found),
        tpot_s=_median(one.tpot_s for one in found),
        n=len(found),
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
