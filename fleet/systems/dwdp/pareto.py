"""Throughput per GPU against the speed for one user: context GPUs in DEP or DWDP before the same generation GPUs."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fleet.engine.dwdp.laws import generation_law
from fleet.engine.dwdp.phase import Phase
from fleet.engine.dwdp.servers import TooLarge, kv_tokens
from fleet.engine.law import Law
from fleet.systems.dwdp.planning import ContextPool, Demand, context_pool
from fleet.systems.dwdp.serving import dep_server, dwdp_server

SEQUENCES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # sequences per generation GPU
MEMORY = 0.9  # share of the memory left by weights and activations that is used for KV


@dataclass(frozen=True, slots=True)
class ParetoPoint:
    """Generation GPUs that write this many answers at the same time, and the context GPUs that keep them busy."""

    sequences: int  # sequences per generation GPU
    demand: Demand
    dep: ContextPool
    dwdp: ContextPool
    even_gain: float  # TPS/GPU of DWDP over that of DEP if context GPUs were divisible rather than in groups

    @property
    def tokens_per_user(self) -> float:
        """Return the output tokens/s while an answer is being written, which is the same in both."""
        return self.demand.user_tokens_per_s

    @property
    def gain(self) -> float:
        return self.dwdp.tokens_per_gpu / self.dep.tokens_per_gpu


def generation(phase: Phase, gpus: int, kv_bytes: float) -> tuple[Law, float]:
    """Return the step times of a generation server and the tokens of its KV. Raise TooLarge."""
    law = generation_law(phase.moe, phase.gpu, phase.reached, gpus, kv_bytes)
    return law, kv_tokens(phase.moe, phase.gpu, gpus, phase.moe.experts / gpus, MEMORY, kv_bytes)


def points(phase: Phase, demand: Demand, kv_bytes: float) -> tuple[ParetoPoint, ...]:
    """Return points from the fastest answers on, until KV fills the generation GPUs; none if the weights already do.
    `demand` has the lengths and the generation GPUs, which are one server; `kv_bytes` are per token."""
    return tuple(_points(phase, demand, kv_bytes))


def _points(phase: Phase, demand: Demand, kv_bytes: float) -> Iterator[ParetoPoint]:
    gpus = demand.generation_gpus
    try:
        law, room = generation(phase, gpus, kv_bytes)
    except TooLarge:
        return
    for each in SEQUENCES:
        sequences = each * gpus
        if sequences * (demand.prompt_tokens + demand.output_tokens) > room:
            return
        context = round(sequences * (demand.prompt_tokens + demand.output_tokens / 2))
        per_user = 1 / law.step_s(sequences, 0.0, context, sequences)
        output = sequences * per_user
        at = replace(
            demand,
            prompts_per_s=output / demand.output_tokens,
            output_tokens_per_s=output,
            user_tokens_per_s=per_user,
        )
        dep, dwdp = context_pools(phase, at)
        yield ParetoPoint(each, at, dep, dwdp, (dep.even_gpus + gpus) / (dwdp.even_gpus + gpus))


def context_pools(phase: Phase, demand: Demand) -> tuple[ContextPool, ContextPool]:
    """Return the pools in DEP and in DWDP, both in whole groups."""
    dep_rate, dwdp_rate = phase.tokens_per_s(phase.dep_ms), phase.tokens_per_s(phase.dwdp_ms)
    dep = context_pool(demand, dep_rate, dep_server(phase), unit=phase.dep_ranks)
    return dep, context_pool(demand, dwdp_rate, dwdp_server(phase), unit=phase.layout.ranks)
