"""The step-time law: the duration of one engine step from its content.

    T_step = t0 + t_host + T_lin + T_prefill_attention + T_decode_attention + T_allreduce + T_decodes + T_prompts

T_decodes: the cost of each decoding sequence besides its arithmetic (launching its share of the kernels, sampling,
writing the answer). T_prompts: the additional cost of a step with prompts over several GPUs, because it runs outside
CUDA graphs, where each reduction takes longer. T_allreduce: a floor per step and a share per token, to which kernels
between products add the time in which they read and write a token's activations.

For a mixture of experts, T_lin multiplies with the weights that one token uses, and reads the weights that any token of
the step uses: N tokens that each use a random share s of the experts touch 1 - (1 - s)^N of them.

All times are in seconds at full clock; power.py adds the time that a GPU loses at its power limit. The terms and the
constants in profiles.py were fitted together.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Self

from fleet.engine.power import Draws, draws_of
from fleet.engine.profiles import Profile
from fleet.engine.tables import Points, Tables

if TYPE_CHECKING:
    from fleet.engine.scheduler import StepPlan


@dataclass(frozen=True, slots=True)
class Host:
    """The host's part of a step, on top of the GPU's arithmetic and reads."""

    step_s: float  # scheduling, sampling and detokenizing that do not overlap with the GPU
    decode_s_per_layer: float  # per decoding sequence and layer: launching its share of kernels, sampling, writing
    workers_s: float = 0.0  # passing a step to twice as many worker processes, one per GPU
    prompts_s_per_layer: float = 0.0  # additional time of a step with prompts, over several GPUs


# Host times used with fitted constants. Most of the host's time overlaps with the GPU if the engine plans a step while
# the previous one runs (the default since vLLM 0.14). Synchronous: all four are fitted to the TPOT of 45 measured loops
# of vLLM 0.12, Qwen3-32B, prompts of 1,024 tokens, two, four and eight H100. According to tables of reductions on H100,
# 128 reductions of 16 MB take 3 to 4 ms longer outside CUDA graphs; in step rows of vLLM 0.20, steps with prompts are 2
# to 5 ms longer on two and four GPUs, but not on one. Asynchronous: chosen between the remainder of groups of decodes
# on an H200 (vLLM 0.20: 0.25 ms, 0.2 µs) and that of mixed loads (docs/findings/gpu.md).
ASYNC_HOST_S = 0.5e-3
FITTED_HOST = {True: Host(ASYNC_HOST_S, 0.4e-6), False: Host(0.78e-3, 0.7e-6, 0.28e-3, 93e-6)}
# Host times used with tables, by whether the engine plans ahead. Asynchronous: the step rows of vLLM 0.20 (Qwen3-32B,
# one to four GPUs) leave 0.1 to 0.4 ms over the tables for a step of few decodes; the cost of a sequence was chosen by
# measured closed loops (docs/twin.md).
TABLED_HOST = {True: Host(0.25e-3, 0.2e-6), False: Host(1.25e-3, 0.9e-6)}
# Share of a token's products that are in routed experts, by published sizes: DeepSeek-V3 0.6, Qwen3-235B and Kimi-K2
# 0.7, MiniMax-M2.5 and gpt-oss-120b 0.7, Mixtral 0.9. Tables do not distinguish models.
EXPERTS_SHARE = 0.7
GRAPH_TOKENS = 512  # largest step that vLLM captures as a CUDA graph; for larger steps the host launches each kernel
# Share of the peak bandwidth reached by kernels between products. The kernel tables behind the fits contain only
# products and attention; 0.8 is the value that the tables' publisher assumes for the other kernels.
ACTIVATION_BANDWIDTH = 0.8
API_S = 10e-3  # HTTP and enqueueing, per request; depends on the deployment
API_S_PER_TOKEN = 1.1e-6  # tokenization, per prompt token


@dataclass(frozen=True, slots=True)
class Law:
    fixed_s: float  # fixed time per step, GPU and host
    compute_s_per_token: float  # matrix products at the reachable arithmetic
    weights_s: float  # one read of the weights; for a mixture of experts, of the shared ones
    attention_s_per_pair: float  # prefill: one (new token, token before it) pair
    kv_s_per_token: float  # decode: one read of one token's KV
    allreduce_s_per_token: float  # reductions, and passes of norms and gates over the activations
    experts_s: float = 0.0  # one read of all experts
    expert_share: float = 0.0  # share of the experts that one token uses, 0–1
    decode_s: float = 0.0  # time per decoding sequence, on top of its arithmetic
    computing_draw: float = 0.0  # as in power.py; 0: unknown
    reading_draw: float = 0.0
    launch_s: float = 0.0  # shortest time of a step with prompts that is too large for CUDA graphs; 0: unknown
    prompts_s: float = 0.0  # additional time of a step with prompts

    @property
    def context_cost(self) -> float:
        """Return the cost of reading one token of context in a decode step, in tokens of prefill; 0 if prompts cost
        nothing."""
        prefill_s = self.compute_s_per_token + self.allreduce_s_per_token
        return self.kv_s_per_token / prefill_s if prefill_s else 0.0

    @property
    def equal_cost_tokens(self) -> float:
        """Return the context at which attention costs a new token as much as everything else; 0 means unknown."""
        prefill_s = self.compute_s_per_token + self.allreduce_s_per_token
        return prefill_s / self.attention_s_per_pair if self.attention_s_per_pair else 0.0

    @property
    def draws(self) -> Draws:
        return Draws(self.computing_draw, self.reading_draw)

    def drawing(self, draws: Draws) -> Self:
        return replace(self, computing_draw=draws.computing, reading_draw=draws.reading)

    def linear_s(self, tokens: int) -> float:
        """Return [(2·P·N/(tp·F·e_gemm))^4 + (W/(BW·e_w))^4]^(1/4): arithmetic or reading the weights."""
        weights_s = self.weights_s
        if self.experts_s:
            weights_s += self.experts_s * used_experts(tokens, self.expert_share)
        return math.sqrt(math.sqrt((self.compute_s_per_token * tokens) ** 4 + weights_s**4))

    def computing_s(self, tokens: int, pairs: float) -> float:
        """Return the part of a step that is limited by arithmetic, which grows when the GPU's clock falls
        (power.py)."""
        linear_s = self.linear_s(tokens)
        share = min(1.0, self.compute_s_per_token * tokens / linear_s) if linear_s else 0.0
        return linear_s * share**4 + self.attention_s_per_pair * pairs

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        """Return the duration of a step of `tokens` new tokens in all. `pairs` is the sum over prefill chunks of n·c +
        n²/2, with c tokens before the chunk of n; `context` is the number of tokens to which the `decodes` decoding
        sequences attend, in total."""
        step_s = (
            self.fixed_s
            + self.linear_s(tokens)
            + self.attention_s_per_pair * pairs
            + self.kv_s_per_token * context
            + self.allreduce_s_per_token * tokens
            + self.decode_s * decodes
            + (self.prompts_s if pairs else 0.0)
        )
        return max(step_s, self.launch_s) if pairs and tokens > GRAPH_TOKENS else step_s

    def plan_s(self, plan: "StepPlan") -> float:
        """Return the duration of a planned step; a law that depends on the single prompts overrides it."""
        return self.step_s(plan.tokens, plan.pairs, plan.context, len(plan.decode))

    def rank_s(self, plan: "StepPlan", mean: float) -> float:
        """Return the duration of a step on one of several ranks that share experts. `mean` is the mean number of new
        tokens per rank in this step."""
        return self.plan_s(plan)

    def prefill_s(self, new_tokens: int, cached_tokens: int = 0, chunk: int = 8192) -> float:
        """Return the duration of a single prompt on an idle engine, in chunks."""
        total = 0.0
        for start in range(0, new_tokens, chunk):
            n = min(chunk, new_tokens - start)
            total += self.step_s(n, chunk_pairs(n, cached_tokens + start), 0, 0)
        return total


@dataclass(frozen=True, slots=True)
class TabledLaw(Law):
    """A law that takes the linear part of a step from measured points. Its other constants hold for large and for small
    steps, for callers that price a token or a read of the weights."""

    prefill_points: Points = ((), ())
    decode_points: Points = ((), ())

    def linear_s(self, tokens: int) -> float:
        return interpolated_ms(self.prefill_points, tokens) / 1e3

    def step_s(self, tokens: int, pairs: float, context: int, decodes: int) -> float:
        return self._tabled_s(tokens, pairs, context, decodes)

    def rank_s(self, plan: "StepPlan", mean: float) -> float:
        """Return the duration of a rank's step: experts process the tokens of all ranks."""
        tokens = plan.tokens + EXPERTS_SHARE * (mean - plan.tokens)
        return self._tabled_s(tokens, plan.pairs, plan.context, len(plan.decode))

    def _tabled_s(self, tokens: float, pairs: float, context: int, decodes: int) -> float:
        points = self.decode_points if decodes == tokens else self.prefill_points
        return (
            self.fixed_s
            + interpolated_ms(points, tokens) / 1e3
            + self.attention_s_per_pair * pairs
            + self.kv_s_per_token * context
            + self.decode_s * decodes
        )


def interpolated_ms(points: Points, tokens: float) -> float:
    """Interpolate linearly; below the first point its value applies, and the last segment is extended."""
    xs, ys = points
    right = min(bisect_left(xs, tokens), len(xs) - 1)
    if right == 0:
        return ys[0]
    x, y = xs[right - 1], ys[right - 1]
    return y + (ys[right] - y) * (tokens - x) / (xs[right] - x)


def law_from(constants: Mapping[str, float]) -> Law:
    """Build the law from constants by name, in the form in which a calibration stores them; other names are ignored."""
    return Law(**{field.name: constants[field.name] for field in fields(Law) if field.name in constants})


def chunk_pairs(new_tokens: int, before: int) -> float:
    """Return the attention work of a prefill chunk: n·c + n²/2."""
    return new_tokens * (before + new_tokens / 2)


def used_experts(tokens: int, share: float) -> float:
    """Return the share of the experts, 0–1, used by any of the tokens. `share` is the share that one token uses."""
    return float(1 - (1 - share) ** tokens)


def law_of(profile: Profile, host_s: float | None = None) -> Law:
    """Return the law of a profile. `host_s` is the host time per step, by default that of the profile's engine
    version."""
    sizes, peak, fit, tp = profile.sizes, profile.peak, profile.fit, profile.tp
    host = (TABLED_HOST if isinstance(fit, Tables) else FITTED_HOST)[profile.is_async]
    step_s = host.step_s + host.workers_s * math.log2(tp) if host_s is None else host_s
    decode_s = host.decode_s_per_layer * sizes.layers
    draws = draws_of(profile.gpu)
    if isinstance(fit, Tables):
        return _tabled(fit, step_s, decode_s, draws)
    attention_flops_per_pair = 4 * sizes.layers * sizes.q_heads / tp * sizes.head_dim
    read_s_per_byte = 1 / (tp * peak.bandwidth * fit.weight_bandwidth)
    activations_s = (sizes.norm_bytes + sizes.divided_bytes / tp) / (peak.bandwidth * ACTIVATION_BANDWIDTH)
    return Law(
        fixed_s=(fit.t0_ms + fit.allreduce_ms_per_step) / 1e3 + step_s,
        compute_s_per_token=2 * sizes.params / (tp * peak.flops * fit.gemm),
        weights_s=(sizes.weight_bytes - sizes.expert_bytes) * read_s_per_byte,
        attention_s_per_pair=attention_flops_per_pair / (peak.flops * fit.prefill_attention),
        kv_s_per_token=sizes.kv_bytes_per_token / tp / (peak.bandwidth * fit.kv_bandwidth),
        allreduce_s_per_token=fit.allreduce_us_per_token / 1e6 + activations_s,
        experts_s=sizes.expert_bytes * read_s_per_byte,
        expert_share=sizes.expert_share,
        decode_s=decode_s,
        computing_draw=draws.computing,
        reading_draw=draws.reading,
        prompts_s=host.prompts_s_per_layer * sizes.layers if tp > 1 else 0.0,
    )


def _tabled(tables: Tables, step_s: float, decode_s: float, draws: Draws) -> TabledLaw:
    """Return the law of measured tables, whose points include reductions and experts."""
    tokens, times = tables.prefill
    return TabledLaw(
        fixed_s=step_s,
        compute_s_per_token=(times[-1] - times[-2]) / (tokens[-1] - tokens[-2]) / 1e3,
        weights_s=tables.decode[1][0] / 1e3,
        attention_s_per_pair=tables.pair_ns / 1e9,
        kv_s_per_token=tables.context_ns / 1e9,
        allreduce_s_per_token=0.0,
        decode_s=decode_s,
        computing_draw=draws.computing,
        reading_draw=draws.reading,
        prefill_points=tables.prefill,
        decode_points=tables.decode,
    )
