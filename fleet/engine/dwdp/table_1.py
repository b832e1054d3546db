"""Measurements in table 1 of [P], and the resulting shares of GB200's peaks. DeepSeek-R1, DEP4 and DWDP4, prompts of
0.8–1 x 8,192 tokens, at most 32,768 tokens in an iteration. [P] prints µs. As µs, the copy would run at 643 TB/s; as
ms, it runs at 643 GB/s (0.71 of NVLink 5 one way), attention at 0.81 of its peak, and a GPU computes 22,000 tokens/s.
So they are ms, of a whole iteration. Likewise for [N]'s "7 µs against 10–11 µs".
"""

from dataclasses import replace

from fleet.engine.dwdp.clock import PowerLimit
from fleet.engine.dwdp.machine import DEEPSEEK_R1, GB200, Efficiencies
from fleet.engine.power import GH100

# Milliseconds of an iteration under DEP.
ATTENTION, GROUPED_GEMM, DENSE_GEMM, OTHERS = 269.67, 342.40, 177.50, 241.69
COMMUNICATION, SYNCHRONISATION = 126.74, 161.85
COMPUTING = ATTENTION + GROUPED_GEMM + DENSE_GEMM + OTHERS
# Milliseconds under DWDP: attention, grouped and dense GEMM, others; the copy.
COMPUTING_DWDP = 320.56 + 337.42 + 189.28 + 284.32
ATTENTION_DWDP, GROUPED_GEMM_DWDP = 320.56, 337.42
COPY = 429.0

MAX_TOKENS = 32_768
FILLED = 0.9  # filled share of the chunk: 4 prompts of 7,373 tokens
PROMPT = 0.9 * 8192  # mean tokens of a prompt
TOKENS = FILLED * MAX_TOKENS
RANKS = 4

# Spread of a GPU's iteration that prompt lengths do not explain (skewed experts, jitter), solved from table 3c at STD
# 0.
SKEW = 140.7  # ms

# Milliseconds between iterations if only the context phase runs, solved from table 3a at 8,192. There DWDP has 1.1
# times the TPS/GPU, whereas DEP takes 1.17 times as long in the iterations above and in its TTFT. The publication does
# not explain these milliseconds.
_TPS_GAIN = 1.10
BETWEEN = (COMPUTING + COMMUNICATION + SYNCHRONISATION - _TPS_GAIN * COMPUTING_DWDP) / (_TPS_GAIN - 1)

# The power draws of an H200, and the draw of the copy engine beside them: solved from the computing times of the two
# iterations.
_shown = PowerLimit(GH100.computing, GH100.reading, 0.0, COMPUTING / (COMPUTING + COMMUNICATION + SYNCHRONISATION))
_copying = (COMPUTING_DWDP - GH100.computing * COMPUTING / _shown.measured) / COPY
POWER = replace(_shown, copying=_copying)

_moe, _gpu = DEEPSEEK_R1, GB200
_grouped = TOKENS * _moe.top_k * _moe.expert_flops * _moe.moe_layers / _gpu.expert_flops * 1e3  # ms at the peak
_all_experts_ms = GROUPED_GEMM * (_moe.top_k + _moe.shared) / _moe.top_k  # with the shared expert as fast as the others
_projections_ms = TOKENS * 2 * _moe.attention_weights * _moe.layers / _gpu.projection_flops * 1e3
_attention_ms = TOKENS * PROMPT / 2 * _moe.pair_flops * _moe.layers / _gpu.attention_flops * 1e3
_all_to_all_ms = TOKENS * _moe.top_k * _moe.hidden * 3 * (RANKS - 1) / RANKS / _gpu.link_bytes_per_s * 1e3
_copied_bytes = (_moe.experts - _moe.experts // RANKS) * _moe.expert_bytes

REACHED = Efficiencies(
    experts=_grouped / GROUPED_GEMM,
    projections=1.0,  # not listed in table 1: their time beyond the peak counts as `other`
    attention=_attention_ms / ATTENTION,
    other_ms_per_token=(COMPUTING - _all_experts_ms - _projections_ms - ATTENTION) / TOKENS,
    link=_copied_bytes * _moe.moe_layers / (COPY / 1e3) / _gpu.link_bytes_per_s,
    all_to_all=COMMUNICATION / _moe.moe_layers / _all_to_all_ms,
    power=POWER,
    skew_ms_per_token=SKEW / TOKENS,
)
