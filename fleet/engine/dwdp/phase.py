"""The context phase layer by layer, under DEP and under DWDP: computing, copy, all-to-all and waiting."""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from statistics import NormalDist, fmean

from fleet.engine.dwdp.contention import layer_ms
from fleet.engine.dwdp.layout import ExpertLayout
from fleet.engine.dwdp.machine import Efficiencies, Gpu, Moe
from fleet.engine.dwdp.routing import spread_of_ranks, unused_share
from fleet.engine.dwdp.waiting import waiting_ms

DISPATCH_AND_COMBINE_BYTES = 3  # bytes per element of a token and expert: one to the expert, two back
HIDDEN_WITHIN = 0.01  # share of the layer below which an exposed copy counts as hidden
MOST_TOKENS = 2**24
DIGITS = 9  # decimals of a time in ms; a smaller difference is rounding
_NORMAL, _RARE = NormalDist(), 1e-6


@dataclass(frozen=True, slots=True)
class Prompts:
    mean: float  # tokens
    cv: float = 0.0  # standard deviation over the mean

    @staticmethod
    def uniform(longest: float, ratio: float) -> "Prompts":
        """Return prompts of uniform length between ratio x longest and longest."""
        mean = (1 + ratio) / 2 * longest
        return Prompts(mean, (1 - ratio) * longest / math.sqrt(12) / mean)

    def filled(self, max_tokens: int) -> float:
        """Return the share of an iteration, 0–1, that whole prompts fill on average. One prompt always fits; more are
        added while their sum, assumed to be normally distributed, fits."""
        prompts = 1.0
        for number in count(2):
            room, spread = max_tokens - number * self.mean, math.sqrt(number) * self.cv * self.mean
            fits = _NORMAL.cdf(room / spread) if spread else float(room >= 0)
            if fits < _RARE:
                break
            prompts += fits
        return min(prompts * self.mean / max_tokens, 1.0)


@dataclass(frozen=True, slots=True)
class Computing:
    """Computing times of one MoE layer in ms, including its share of the layers without experts."""

    routed: float  # experts that the router chose
    shared: float  # experts that every token uses
    projections: float
    attention: float
    other: float
    reads: tuple[bool, bool, bool] = (False, False, False)  # whether memory limits the first three

    @property
    def experts(self) -> float:
        return self.routed + self.shared

    @property
    def reading(self) -> float:
        """Return the time of the parts that memory limits."""
        routed, shared, projections = self.reads
        return self.routed * routed + self.shared * shared + self.projections * projections

    @property
    def arithmetic(self) -> float:
        routed, shared, projections = self.reads
        computed = self.routed * (not routed) + self.shared * (not shared) + self.projections * (not projections)
        return computed + self.attention + self.other

    @property
    def total(self) -> float:
        return self.routed + self.shared + self.projections + self.attention + self.other

    def slowed(self, slowed_ms: float) -> "Computing":
        """Return the times if all arithmetic takes this much longer, because all of it runs at the same clock."""
        pace = 1 + slowed_ms / self.arithmetic
        routed, shared, projections = (1 if read else pace for read in self.reads)
        return replace(
            self,
            routed=self.routed * routed,
            shared=self.shared * shared,
            projections=self.projections * projections,
            attention=self.attention * pace,
            other=self.other * pace,
        )


def computing(moe: Moe, gpu: Gpu, reached: Efficiencies, tokens: float, pairs: float, experts_read: float) -> Computing:
    """Return the computing times. `pairs` counts pairs of a token and an earlier one; `experts_read` counts the routed
    experts whose weights are read from device memory; shared experts are always read."""
    per_moe_layer = moe.layers / moe.moe_layers
    per_expert = moe.expert_flops * tokens / (gpu.expert_flops * reached.experts)
    per_read = moe.expert_bytes / gpu.memory_bytes_per_s
    projecting = 2 * moe.attention_weights * tokens / (gpu.projection_flops * reached.projections)
    projections_read = moe.attention_weights * moe.attention_bytes_per_weight / gpu.memory_bytes_per_s
    attention = pairs * moe.pair_flops / (gpu.attention_flops * reached.attention)
    return Computing(
        max(moe.top_k * per_expert, experts_read * per_read) * 1e3,
        moe.shared * max(per_expert, per_read) * 1e3,
        max(projecting, projections_read) * per_moe_layer * 1e3,
        attention * per_moe_layer * 1e3,
        reached.other_ms_per_token * tokens / moe.moe_layers,
        (experts_read * per_read > moe.top_k * per_expert, per_read > per_expert, projections_read > projecting),
    )


def copy_ms(moe: Moe, gpu: Gpu, reached: Efficiencies, group: ExpertLayout) -> float:
    """Return T_pre: the time to copy the experts of a layer without contention."""
    return group.remote * moe.expert_bytes / (gpu.link_bytes_per_s * reached.link) * 1e3


def all_to_all_ms(moe: Moe, gpu: Gpu, reached: Efficiencies, tokens: float, ranks: int) -> float:
    """Return the time of both all-to-alls of a layer, for the tokens of one GPU."""
    sent = tokens * moe.top_k * moe.hidden * DISPATCH_AND_COMBINE_BYTES * (ranks - 1) / ranks
    return sent / gpu.link_bytes_per_s * reached.all_to_all * 1e3


def dep_layer_ms(
    moe: Moe,
    gpu: Gpu,
    reached: Efficiencies,
    own: Sequence[tuple[float, float]],
    late_ms: Sequence[float],
    wait_ms: float = 0.0,
) -> float:
    """Return the duration of a layer of a DEP group. `own` has tokens and pairs of each GPU's prompts; `late_ms` is an
    additional delay of each GPU, `wait_ms` one of all."""
    ranks = len(own)
    mean = sum(tokens for tokens, _ in own) / ranks
    spread = computing(moe, gpu, reached, mean, 0.0, moe.experts / ranks)
    local = [replace(computing(moe, gpu, reached, tokens, pairs, 0.0), routed=0.0) for tokens, pairs in own]
    slowest = max(part.total + late for part, late in zip(local, late_ms, strict=True))
    layer = spread.routed + all_to_all_ms(moe, gpu, reached, mean, ranks) + slowest + wait_ms
    busy = fmean(part.arithmetic for part in local) + spread.routed * (not spread.reads[0])
    return layer + reached.power.slowed_beside(busy, layer - busy)


@dataclass(frozen=True)
class Phase:
    """One GPU's iteration of `max_tokens`, filled to the share `filled`."""

    moe: Moe
    gpu: Gpu
    reached: Efficiencies
    layout: ExpertLayout  # layout of the DWDP group
    dep_ranks: int
    prompts: Prompts
    max_tokens: int  # MNT, per GPU
    filled: float = 0.9
    sliced: bool = False
    merged: bool = False  # True if held and copied experts are merged into one buffer before the products read them
    slice_bytes: float = 2.0 * 2**20
    in_flight: int = 2  # slices in flight per copy engine
    setup_ms: float = 0.0  # set-up of a slice, before its bytes move
    hot_experts: float = 0.0  # Zipf exponent of the router's choice of experts; 0: uniform
    between_ms: float = 0.0  # time between iterations, during which nothing is computed

    @property
    def tokens(self) -> float:
        return self.max_tokens * self.filled

    def computing(self, experts_read: float) -> Computing:
        pairs = self.tokens * self.prompts.mean * (1 + self.prompts.cv**2) / 2
        return computing(self.moe, self.gpu, self.reached, self.tokens, pairs, experts_read)

    # DWDP

    @cached_property
    def dwdp_computing(self) -> Computing:
        return self.computing(self.moe.experts)

    @cached_property
    def copy_ms(self) -> float:
        """Return T_pre. Slices reach the rate of the link once enough of them are in flight to hide their set-up
        times."""
        alone = copy_ms(self.moe, self.gpu, self.reached, self.layout)
        if not self.sliced:
            return alone
        moving_ms = min(self.slice_bytes, self.pull_bytes) / (self.gpu.link_bytes_per_s * self.reached.link) * 1e3
        return alone * max(1.0, (self.setup_ms + moving_ms) / (self.in_flight * moving_ms))

    @property
    def pull_bytes(self) -> float:
        """Return the bytes that a layer copies from one other GPU."""
        return self.layout.remote * self.moe.expert_bytes / (self.layout.ranks - 1)

    @cached_property
    def slowed_ms(self) -> float:
        """Return how much longer arithmetic takes than when its shares of the peaks were measured; negative if it takes
        less time."""
        unslowed_ms = self.dwdp_computing.total + self.merging_ms

        def layer(slowed_ms: float) -> float:
            return self.waiting_for_copies_ms(unslowed_ms + slowed_ms)

        return self.reached.power.slowed_with_copy(self.dwdp_computing.arithmetic, self.copy_ms, layer)

    @cached_property
    def merging_ms(self) -> float:
        """Return the time to copy all experts of a layer into one tensor in device memory. Engines that accept a list
        of tensors avoid this copy."""
        if not self.merged:
            return 0.0
        return 2 * self.moe.experts * self.moe.expert_bytes / self.gpu.memory_bytes_per_s * 1e3

    @property
    def unused_share(self) -> float:
        """Return the share of the copied experts, 0–1, that no token of the iteration uses."""
        return unused_share(self.moe.experts, self.moe.top_k, self.hot_experts, self.tokens)

    @property
    def window_ms(self) -> float:
        return self.dwdp_computing.total + self.slowed_ms + self.merging_ms

    @cached_property
    def dwdp_ms(self) -> float:
        return self.waiting_for_copies_ms(self.window_ms)

    def waiting_for_copies_ms(self, window_ms: float) -> float:
        """Return the duration of a layer that computes for this long; with 0, that of its copies alone, with
        contention."""
        return layer_ms(
            window_ms,
            self.copy_ms,
            self.layout.ranks,
            sliced=self.sliced,
            in_flight=self.in_flight,
            slice_share=self.slice_bytes / self.pull_bytes,
        )

    def gathered_ms(self, cores: float) -> float:
        """Return the duration of a layer whose experts NCCL gathers on the share `cores` of the GPU, 0–1. The other
        cores compute. All GPUs of the group gather at the same time, so each waits for the slowest."""
        computing_ms = self.dwdp_computing.total / (1 - cores) + self.slowed_ms + self.merging_ms
        whole = replace(self, sliced=False).copy_ms
        uneven_ms = self.dwdp_computing.total + self.dwdp_computing.attention
        return max(computing_ms, whole) + self._waiting_ms(self.layout.ranks, uneven_ms)

    def chunked(self, tokens: int) -> "Phase":
        """Return iterations of one chunk, which all GPUs of a group fill equally."""
        return replace(self, max_tokens=tokens, filled=1.0, prompts=Prompts(self.prompts.mean))

    @property
    def exposed_ms(self) -> float:
        """Return the time for which a layer waits for the copy, with contention."""
        return round(self.dwdp_ms - self.window_ms, DIGITS)

    @property
    def ratio(self) -> float:
        """Return the ratio of computing to copy."""
        return self.dwdp_computing.total / self.copy_ms

    @property
    def is_hidden(self) -> bool:
        return self.exposed_ms <= HIDDEN_WITHIN * self.dwdp_ms

    # DEP

    @cached_property
    def dep_computing(self) -> Computing:
        return self.computing(self.moe.experts / self.dep_ranks)

    @cached_property
    def all_to_all_ms(self) -> float:
        return all_to_all_ms(self.moe, self.gpu, self.reached, self.tokens, self.dep_ranks)

    @property
    def local_ms(self) -> float:
        """Return a DEP group's GPU time for its own prompts: everything except the routed experts."""
        return self.dep_computing.total - self.dep_computing.routed

    @property
    def uneven_ms(self) -> float:
        """Return the time that varies with the lengths of prompts: the attention time, counted twice because attention
        is quadratic.
        """
        return self.local_ms + self.dep_computing.attention

    @cached_property
    def wait_ms(self) -> float:
        """Return the time for which a layer waits for the slowest GPU of the group."""
        hot_ms = self.hot_ms(self.dep_computing.routed)
        return self._waiting_ms(self.dep_ranks, self.uneven_ms, hot_ms)

    def hot_ms(self, routed_ms: float) -> float:
        """Return the spread between GPUs of a DEP group with and without popular experts."""
        return routed_ms * spread_of_ranks(self.moe.experts, self.moe.top_k, self.hot_experts, self.dep_ranks)

    def _waiting_ms(self, ranks: int, uneven_ms: float, hot_ms: float = 0.0) -> float:
        cv = self.prompts.cv / math.sqrt(max(1.0, self.max_tokens / self.prompts.mean))
        skew = self.reached.skew_ms_per_token * self.tokens / self.moe.moe_layers
        return waiting_ms(ranks, uneven_ms, cv, math.hypot(skew, hot_ms))

    @property
    def dep_slowed_ms(self) -> float:
        """Return the same as `slowed_ms`, under DEP."""
        others_ms = self.dep_computing.reading + self.all_to_all_ms + self.wait_ms
        return self.reached.power.slowed_beside(self.dep_computing.arithmetic, others_ms)

    @property
    def dep_ms(self) -> float:
        return self.dep_computing.total + self.dep_slowed_ms + self.all_to_all_ms + self.wait_ms

    # Both

    @property
    def gain(self) -> float:
        """Return the throughput of a GPU under DWDP relative to that under DEP."""
        return self.over_dep(self.dwdp_ms)

    def over_dep(self, layer_ms: float) -> float:
        """Return the throughput of a GPU whose MoE layers take `layer_ms` each, relative to DEP."""
        return self.tokens_per_s(layer_ms) / self.tokens_per_s(self.dep_ms)

    @property
    def dwdp_alone_s(self) -> float:
        """Return the time of a prompt on an idle server, where most of the copying may be exposed."""
        alone = replace(self, max_tokens=round(self.prompts.mean), prompts=Prompts(self.prompts.mean), filled=1.0)
        return alone.dwdp_ms * self.moe.moe_layers / 1e3

    @property
    def dep_alone_s(self) -> float:
        """Return the time of a prompt on an idle group: one GPU computes its attention, all GPUs its experts."""
        tokens, idle = self.prompts.mean, [(0.0, 0.0)] * (self.dep_ranks - 1)
        own = [(tokens, tokens**2 / 2), *idle]
        layer = dep_layer_ms(self.moe, self.gpu, self.reached, own, [0.0] * self.dep_ranks)
        return layer * self.moe.moe_layers / 1e3

    def tokens_per_s(self, layer: float) -> float:
        """Return the throughput of one GPU whose MoE layers take `layer` ms each."""
        return self.tokens / (layer * self.moe.moe_layers + self.between_ms) * 1e3

    def expert_bytes(self, held: float, *, buffers: bool) -> float:
        """Return the device memory for experts: `held` in each layer, plus twice the copied experts of a layer."""
        copied = 2 * self.layout.remote if buffers else 0
        return (held * self.moe.moe_layers + copied) * self.moe.expert_bytes


def smallest_that_hides(phase: Phase) -> int | None:
    """Return the smallest MNT at which the copy is hidden; None if there is none."""

    def hides(tokens: int) -> bool:
        return replace(phase, max_tokens=tokens).is_hidden

    if not hides(MOST_TOKENS):
        return None
    return bisect_left(range(MOST_TOKENS), True, 1, key=hides)
