"""A load on one engine: Poisson arrivals, each with a new prompt, and the latencies that a client measures."""

import asyncio
import random
import statistics
from collections.abc import Iterable
from dataclasses import dataclass

import httpx

from controlplane.evidence.traces.types import TraceRequest
from fleet.calibration.measure import CONNECTIONS
from fleet.calibration.plan import prompt
from fleet.calibration.streamed_request import TokenTimes, stream_completion

BLOCK = 32  # tokens
LENGTHS = (150, 400, 700, 1500, 2500)  # prompt tokens; no sweep sends these lengths


@dataclass(frozen=True)
class Means:
    ttft_s: float
    tpot_s: float
    e2e_s: float


def requests(count: int, each_s: float, seed: int) -> list[TraceRequest]:
    """`each_s` is the mean interval in seconds."""
    draw, at, made = random.Random(seed), 0.0, []
    for index in range(count):
        at += draw.expovariate(1 / each_s)
        tokens, first = draw.choice(LENGTHS), index * 1000
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


def means(times: Iterable[tuple[float, float, int]]) -> Means:
    """`times` holds TTFT, TPOT and tokens of each answer."""
    ttft, tpot, e2e = zip(*((first, each, first + each * (tokens - 1)) for first, each, tokens in times), strict=True)
    return Means(statistics.fmean(ttft), statistics.fmean(tpot), statistics.fmean(e2e))


def measured(url: str, load: list[TraceRequest], tokens_per_word: float) -> Means:
    return means(map(_times, asyncio.run(_play(url, load, tokens_per_word))))


def tokens_per_word(url: str, model: str) -> float:
    """Return the mean tokens of the words that `prompt` uses."""

    async def counted() -> float:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            return (await stream_completion(client, model, prompt(random.Random(), 500), 8)).prompt_tokens / 500

    return asyncio.run(counted())


async def _play(url: str, load: list[TraceRequest], tokens_per_word: float) -> list[TokenTimes]:
    # Before the first request, as writing a long prompt takes 25 ms, in which no answer is read.
    texts = [prompt(random.Random(), round(request.input_tokens / tokens_per_word)) for request in load]
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=CONNECTIONS) as client:
        return await asyncio.gather(*(_one(client, *each) for each in zip(load, texts, strict=True)))


def _times(answer: TokenTimes) -> tuple[float, float, int]:
    (begin, first), (end, last) = answer.marks[0], answer.marks[-1]
    return answer.ttft_s, (end - begin) / (last - first), last


async def _one(client: httpx.AsyncClient, request: TraceRequest, text: str) -> TokenTimes:
    await asyncio.sleep(request.at_s)
    return await stream_completion(client, "tiny", text, request.output_tokens)
