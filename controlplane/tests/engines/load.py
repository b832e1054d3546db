"""A small load of one's own on one engine: Poisson arrivals, each with a new prompt, and what came of them."""

import asyncio
import random
import statistics
from dataclasses import dataclass

import httpx

from controlplane.experiments.traces.types import TraceRequest
from fleet.calibration.ask import Heard, ask
from fleet.calibration.measure import CONNECTIONS
from fleet.calibration.plan import prompt

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


async def play(url: str, load: list[TraceRequest], tokens_per_word: float) -> Means:
    async with httpx.AsyncClient(base_url=url, timeout=120, limits=CONNECTIONS) as client:
        heard = await asyncio.gather(*(_one(client, request, tokens_per_word) for request in load))
    paces = [(one.marks[-1][0] - one.marks[0][0]) / (one.marks[-1][1] - one.marks[0][1]) for one in heard]
    return Means(statistics.fmean(one.ttft_s for one in heard), statistics.fmean(paces))


async def _one(client: httpx.AsyncClient, request: TraceRequest, tokens_per_word: float) -> Heard:
    await asyncio.sleep(request.at_s)
    text = prompt(random.Random(), round(request.input_tokens / tokens_per_word))
    return await ask(client, "tiny", text, request.output_tokens)
