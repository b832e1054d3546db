"""How many context GPUs the same generation GPUs need, and what their prompts wait."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    prompts_per_s: float
    prompt_tokens: float  # mean
    generation_gpus: int
    output_tokens_per_s: float  # of all users together
    user_tokens_per_s: float  # of one user once his answer has begun: the generation GPUs' own
    output_tokens: float  # of an answer
    max_load: float = 0.85  # 0–1 of the context GPUs' throughput
    service_cv2: float = 0.1  # squared coefficient of variation of a prompt's time


@dataclass(frozen=True, slots=True)
class ContextPool:
    gpus: int
    load: float  # 0–1
    wait_s: float  # mean
    prefill_s: float  # mean
    tokens_per_gpu: float  # output tokens/s, context and generation GPUs together
    tokens_per_user: float  # output tokens/s of a request from its arrival

    @property
    def ttft_s(self) -> float:
        return self.wait_s + self.prefill_s


def context_pool(demand: Demand, gpu_tokens_per_s: float, *, unit: int) -> ContextPool:
    """GPUs come in groups of `unit`: DEP's ranks; under DWDP, one."""
    service_s = demand.prompt_tokens / gpu_tokens_per_s
    needed = demand.prompts_per_s * service_s / demand.max_load
    gpus = max(1, math.ceil(round(needed / unit, 9))) * unit
    wait_s = mean_wait_s(demand.prompts_per_s, service_s, gpus, demand.service_cv2)
    ttft_s = wait_s + service_s
    return ContextPool(
        gpus,
        demand.prompts_per_s * service_s / gpus,
        wait_s,
        service_s,
        demand.output_tokens_per_s / (gpus + demand.generation_gpus),
        demand.output_tokens / (ttft_s + demand.output_tokens / demand.user_tokens_per_s),
    )


def mean_wait_s(rate: float, service_s: float, servers: int, cv2: float) -> float:
    """M/G/c, by Sakasegawa's approximation; infinite when overloaded."""
    load: float = rate * service_s / servers
    if load >= 1:
        return math.inf
    queue: float = load ** (math.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - load))
    return queue * service_s * (1 + cv2) / 2
