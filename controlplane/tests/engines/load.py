"""A small load on one engine: Poisson arrivals, each with a new prompt, and the measured latencies."""

import asyncio
import random
import statistics
from dataclasses import dataclass

import httpx

from controlplane.traces.types import TraceRequest
from fleet.calibration.measure import CONNECTIONS
from fleet.calibration.plan import prompt
from fleet.calibration.streamed_request import TokenTimes, stream_completion

BLOCK = 32  # tokens


@dataclass(frozen=True)
class Means:
    ttft_s: float
    tpot_s: float


def requests(count: int, each_s: float, seed: int) -> list[TraceRequest]:
    """`each_s`: mean seconds between two."""
    draw, at, made = random.Random(seed), 0.0, []
    for index in range(count):
        at += draw.expovariate(1 / each_s)
        tokens, first = draw.choice((100, 400, 1000, 2000)), index * 1000
        made.append(
            TraceRequest(
                index=index,
                at_s=at,
                session="",
                input_tokens=tokens,
                output_tokens=draw.randint(24, 96),
                blocks=(range(first, first + -(-tokens // BLOCK)),),
                block_tokens=BLOCK,
                think_s=0.0,
            )
        )
    return made


def measured(url: str, load: list[TraceRequest], tokens_per_word: float, times: int) -> Means:
    """Means over the requests of the medians over their repetitions, as in a calibration: on two shared cores a
    response sometimes waits for the machine and not for the engine."""
    runs = [asyncio.run(_play(url, load, tokens_per_word)) for _ in range(times)]
    of_each = list(zip(*runs, strict=True))
    return Means(
        statistics.fmean(statistics.median(one.ttft_s for one in again) for again in of_each),
        statistics.fmean(statistics.median(map(_pace, again)) for again in of_each),
    )


async def _play(url: str, load: list[TraceRequest], tokens_per_word: float) -> list[TokenTimes]:
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=CONNECTIONS) as client:
        return await asyncio.gather(*(_one(client, request, tokens_per_word) for request in load))


def _pace(times: TokenTimes) -> float:
    """Seconds per token after the first."""
    (begin, first), (end, last) = times.marks[0], times.marks[-1]
    return (end - begin) / (last - first)


async def _one(client: httpx.AsyncClient, request: TraceRequest, tokens_per_word: float) -> TokenTimes:
    await asyncio.sleep(request.at_s)
    text = prompt(random.Random(), round(request.input_tokens / tokens_per_word))
    return await stream_completion(client, "tiny", text, request.output_tokens)
