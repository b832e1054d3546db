"""Step times of context and generation servers, for the engine model of the twin."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.engine.law import Law, chunk_pairs
from fleet.engine.scheduler import Plan
from fleet.systems.dwdp.contention import layer_ms
from fleet.systems.dwdp.layout import Layout
from fleet.systems.dwdp.machine import Gpu, Moe, Reached
from fleet.systems.dwdp.phase import all_to_all_ms, computing, copy_ms

MEMORY_REACHED = 0.92  # 0–1 of the peak when reading weights: as in the fits of fleet/engine/profiles.py


@dataclass(frozen=True, slots=True, kw_only=True)
class DwdpLaw(Law):
    """One GPU of a DWDP group. It waits for copies, and for no other GPU."""

    moe: Moe
    gpu: Gpu
    reached: Reached
    group: Layout
    sliced: bool

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        found = computing(self.moe, self.gpu, self.reached, tokens, pairs, self.group.experts)
        copy = copy_ms(self.moe, self.gpu, self.reached, self.group)
        window = found.total + self.reached.slowed * copy
        layer = layer_ms(window, copy, self.group.ranks, sliced=self.sliced)
        return self.fixed_s + layer * self.moe.moe_layers / 1e3 + self.kv_s_per_token * context


@dataclass(frozen=True, slots=True, kw_only=True)
class DepLaw(Law):
    """A DEP group as one server: each prompt belongs to one GPU, and all wait for the slowest."""

    moe: Moe
    gpu: Gpu
    reached: Reached
    ranks: int
    seed: int

    def plan_s(self, plan: Plan) -> float:
        chunks = [(tokens, chunk_pairs(tokens, request.computed)) for request, tokens in plan.prefill]
        chunks += [(1, 0.0)] * len(plan.decode)
        return self._step_s(chunks, f"{self.seed}/{plan.start_s!r}/{plan.tokens}") + self.kv_s_per_token * plan.context

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        """Without the lengths of prompts: spread evenly."""
        even = [(tokens / self.ranks, pairs / self.ranks)] * self.ranks
        return self._step_s(even, "") + self.kv_s_per_token * context

    def _step_s(self, chunks: Sequence[tuple[float, float]], draw: str) -> float:
        """An empty `draw`: no spread besides that of the prompts."""
        moe, dealt = self.moe, self._dealt(chunks)
        mean = sum(tokens for tokens, _ in dealt) / self.ranks
        experts = computing(moe, self.gpu, self.reached, mean, 0.0, moe.experts / self.ranks).routed(moe)
        skew = self.reached.skew_ms_per_token * mean / moe.moe_layers
        normal = random.Random(draw).gauss if draw else _no_spread  # noqa: S311 - a model, no secret
        slowest = max(self._own_ms(tokens, pairs) + normal(0.0, skew) for tokens, pairs in dealt)
        layer = experts + all_to_all_ms(moe, self.gpu, self.reached, mean, self.ranks) + slowest
        return self.fixed_s + layer * moe.moe_layers / 1e3

    def _own_ms(self, tokens: float, pairs: float) -> float:
        found = computing(self.moe, self.gpu, self.reached, tokens, pairs, 0.0)
        return found.total - found.routed(self.moe)

    def _dealt(self, chunks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """(tokens, pairs) of each GPU: in order of arrival, each to the one with the fewest tokens."""
        own = [(0.0, 0.0)] * self.ranks
        for tokens, pairs in chunks:
            rank = min(range(self.ranks), key=lambda each: own[each][0])
            own[rank] = own[rank][0] + tokens, own[rank][1] + pairs
        return own


def _no_spread(mean: float, deviation: float) -> float:
    return mean


def generation_law(moe: Moe, gpu: Gpu, reached: Reached, gpus: int, fixed_s: float, kv_bytes_per_token: float) -> Law:
    """A server of that many GPUs, with attention in data parallel and experts spread over them: a roofline."""
    active = (moe.top_k + moe.shared) * moe.expert_flops * moe.moe_layers / (gpu.expert_flops * reached.experts)
    projections = 2 * moe.attention_weights * moe.layers / (gpu.projection_flops * reached.projections)
    memory = gpu.memory_bytes_per_s * MEMORY_REACHED
    attention_bytes = moe.attention_weights * moe.attention_bytes_per_weight * moe.layers
    per_token_ms = all_to_all_ms(moe, gpu, reached, 1, gpus) * moe.moe_layers if gpus > 1 else 0.0
    return Law(
        fixed_s=fixed_s,
        compute_s_per_token=(active + projections + reached.other_ms_per_token / 1e3) / gpus,
        weights_s=attention_bytes / memory,  # by each GPU
        attention_s_per_pair=moe.pair_flops * moe.layers / (gpu.attention_flops * reached.attention) / gpus,
        kv_s_per_token=kv_bytes_per_token / memory / gpus,
        allreduce_s_per_token=per_token_ms / 1e3 / gpus,
        experts_s=moe.experts * moe.expert_bytes * moe.moe_layers / memory / gpus,
        expert_share=moe.top_k / moe.experts,
    )
