"""Step times of context and generation servers, for the engine model of the twin."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from fleet.engine.dwdp.contention import layer_ms
from fleet.engine.dwdp.layout import ExpertLayout
from fleet.engine.dwdp.machine import Efficiencies, Gpu, Moe
from fleet.engine.dwdp.phase import all_to_all_ms, computing, copy_ms, dep_layer_ms
from fleet.engine.dwdp.routing import spread_of_ranks
from fleet.engine.law import Law, chunk_pairs
from fleet.engine.scheduler import StepPlan

HOST_S = 1.5e-3  # s, assumed: the host's time in a step of TensorRT-LLM's generation server
MEMORY_REACHED = 0.92  # share of the peak while reading weights, 0–1, as in the fits of fleet/engine/profiles.py


@dataclass(frozen=True, slots=True, kw_only=True)
class DwdpLaw(Law):
    """The law of one GPU of a DWDP group. It waits for copies, but not for other GPUs."""

    moe: Moe
    gpu: Gpu
    reached: Efficiencies
    group: ExpertLayout
    sliced: bool

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        found = computing(self.moe, self.gpu, self.reached, tokens, pairs, self.group.experts)
        copy = copy_ms(self.moe, self.gpu, self.reached, self.group)

        def layer(slowed: float) -> float:
            return layer_ms(found.total + slowed, copy, self.group.ranks, sliced=self.sliced)

        slowed = self.reached.power.slowed_with_copy(found.arithmetic, copy, layer)
        return self.fixed_s + layer(slowed) * self.moe.moe_layers / 1e3 + self.kv_s_per_token * context


@dataclass(frozen=True, slots=True, kw_only=True)
class DepLaw(Law):
    """The law of a DEP group as one server: each prompt belongs to one GPU, and all GPUs wait for the slowest."""

    moe: Moe
    gpu: Gpu
    reached: Efficiencies
    ranks: int
    seed: int
    hot_experts: float = 0.0  # Zipf exponent of the router's choice of experts; 0: uniform

    def plan_s(self, plan: StepPlan) -> float:
        chunks = [(tokens, chunk_pairs(tokens, request.computed)) for request, tokens in plan.prefill]
        chunks += [(1, 0.0)] * len(plan.decode)
        return self._step_s(chunks, f"{self.seed}/{plan.start_s!r}/{plan.tokens}") + self.kv_s_per_token * plan.context

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        """Return the duration of a step of prompts with unknown lengths, which are assumed to be evenly spread."""
        even = [(tokens / self.ranks, pairs / self.ranks)] * self.ranks
        return self._step_s(even, "") + self.kv_s_per_token * context

    def _step_s(self, chunks: Sequence[tuple[float, float]], draw: str) -> float:
        """Return the duration of a step. If `draw` is empty, only the prompts cause a spread."""
        moe, dealt = self.moe, self._dealt(chunks)
        mean = sum(tokens for tokens, _ in dealt) / self.ranks
        skew = math.hypot(self.reached.skew_ms_per_token * mean / moe.moe_layers, self._hot_ms(mean))
        normal = random.Random(draw)  # noqa: S311 - a model, no secret
        late_ms = [normal.gauss(0.0, skew) if draw else 0.0 for _ in dealt]
        return self.fixed_s + dep_layer_ms(moe, self.gpu, self.reached, dealt, late_ms) * moe.moe_layers / 1e3

    def _hot_ms(self, tokens: float) -> float:
        """Return the spread between GPUs with and without popular experts."""
        if not self.hot_experts:
            return 0.0
        moe = self.moe
        routed = computing(moe, self.gpu, self.reached, tokens, 0.0, moe.experts / self.ranks).routed
        return routed * spread_of_ranks(moe.experts, moe.top_k, self.hot_experts, self.ranks)

    def _dealt(self, chunks: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
        """Return (tokens, pairs) of each GPU: in order of arrival, each prompt is assigned to the GPU with the fewest
        tokens."""
        own = [(0.0, 0.0)] * self.ranks
        for tokens, pairs in chunks:
            rank = min(range(self.ranks), key=lambda each: own[each][0])
            own[rank] = own[rank][0] + tokens, own[rank][1] + pairs
        return own


def generation_law(moe: Moe, gpu: Gpu, reached: Efficiencies, gpus: int, kv_bytes_per_token: float) -> Law:
    """Return the roofline law of a server with this number of GPUs, with attention in data parallel and experts spread
    over them.
    """
    active = (moe.top_k + moe.shared) * moe.expert_flops * moe.moe_layers / (gpu.expert_flops * reached.experts)
    projections = 2 * moe.attention_weights * moe.layers / (gpu.projection_flops * reached.projections)
    memory = gpu.memory_bytes_per_s * MEMORY_REACHED
    attention_bytes = moe.attention_weights * moe.attention_bytes_per_weight * moe.layers
    per_token_ms = all_to_all_ms(moe, gpu, reached, 1, gpus) * moe.moe_layers if gpus > 1 else 0.0
    return Law(
        fixed_s=HOST_S,
        compute_s_per_token=(active + projections + reached.other_ms_per_token / 1e3) / gpus,
        weights_s=(attention_bytes + moe.shared * moe.expert_bytes * moe.moe_layers) / memory,  # read by each GPU
        attention_s_per_pair=moe.pair_flops * moe.layers / (gpu.attention_flops * reached.attention) / gpus,
        kv_s_per_token=kv_bytes_per_token / memory / gpus,
        allreduce_s_per_token=per_token_ms / 1e3 / gpus,
        experts_s=moe.experts * moe.expert_bytes * moe.moe_layers / memory / gpus,
        expert_share=moe.top_k / moe.experts,
    )
