"""The number of context GPUs for given generation GPUs, and how long prompts wait for them."""

import math
from dataclasses import dataclass

from fleet.systems.dwdp.serving import ContextServer, first_token


@dataclass(frozen=True, slots=True)
class Demand:
    prompts_per_s: float
    prompt_tokens: float  # mean length
    generation_gpus: int
    output_tokens_per_s: float  # rate over all users
    user_tokens_per_s: float  # rate of one user once the answer has begun, as set by the generation GPUs
    output_tokens: float  # length of an answer
    max_load: float = 0.85  # share of the context GPUs' throughput, 0–1


@dataclass(frozen=True, slots=True)
class ContextPool:
    gpus: int
    even_gpus: float  # GPUs that the load would need if they were divisible
    load: float  # share of the throughput, 0–1
    wait_s: float  # mean wait
    prefill_s: float  # mean prefill
    tokens_per_gpu: float  # output tokens/s, context and generation GPUs together
    even_tokens_per_gpu: float  # `tokens_per_gpu` with `even_gpus`
    tokens_per_user: float  # output tokens/s of a request from its arrival

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.prefill_s


def context_pool(demand: Demand, gpu_tokens_per_s: float, server: ContextServer, *, unit: int) -> ContextPool:
    """Return the pool, in whole groups of `unit` GPUs. `gpu_tokens_per_s` is the rate of a full iteration."""
    even = demand.prompts_per_s * demand.prompt_tokens / gpu_tokens_per_s
    needed = even / demand.max_load
    gpus = max(1, math.ceil(round(needed / unit, 9))) * unit
    first = first_token(server, gpus // server.gpus, demand.prompts_per_s)
    ttft_s = first.wait_s + first.prefill_s
    return ContextPool(
        gpus,
        needed,
        even / gpus,
        first.wait_s,
        first.prefill_s,
        demand.output_tokens_per_s / (gpus + demand.generation_gpus),
        demand.output_tokens_per_s / (needed + demand.generation_gpus),
        demand.output_tokens / (ttft_s + demand.output_tokens / demand.user_tokens_per_s),
    )
