"""The mixtures of experts that a group can serve, by their names in the catalogue of profiles. Sizes are those of the
published configurations; a test compares them with the catalogue's weights.
"""

from dataclasses import replace

from fleet.engine.dwdp.machine import DEEPSEEK_R1, GPT_OSS_120B, Moe

BF16, FP8, NVFP4, INT4 = 2.0, 1.0, 0.5 + 1 / 16, 0.5 + 2 / 32  # bytes per weight, with scales


def _grouped(
    name: str,
    layers: int,
    hidden: int,
    heads: tuple[int, int],
    experts: tuple[int, int, int],
    bytes_per_weight: float,
) -> Moe:
    """Return a mixture with grouped heads of size 128 and no shared expert. `heads` is (number of query heads, number
    of key and value heads); `experts` is (their number, the number used by a token, their inner size)."""
    size, (q_heads, kv_heads), (count, top_k, inner) = 128, heads, experts
    return Moe(
        name=name,
        layers=layers,
        moe_layers=layers,
        experts=count,
        top_k=top_k,
        shared=0,
        hidden=hidden,
        inner=inner,
        bytes_per_weight=bytes_per_weight,
        attention_weights=hidden * size * 2 * (q_heads + kv_heads),
        attention_bytes_per_weight=max(bytes_per_weight, FP8),
        heads=q_heads,
        head_size=2 * size,
        kv_bytes=4 * size * kv_heads * layers,
    )


# MLA: a latent of 1,536 for queries, of 512 for keys and values, with 64 for positions; 64 heads of 192 and 128.
_KIMI_WEIGHTS = 7168 * 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 * 64 * 256 + 64 * 128 * 7168
KIMI_K2 = replace(
    DEEPSEEK_R1,
    name="Kimi-K2.5 INT4",
    moe_layers=60,
    experts=384,
    bytes_per_weight=INT4,
    attention_weights=_KIMI_WEIGHTS,
    attention_bytes_per_weight=BF16,
    heads=64,
    kv_bytes=2 * (512 + 64) * 61,
)
_QWEN_30B = _grouped("Qwen3-30B-A3B BF16", 48, 2048, (32, 4), (128, 8, 768), BF16)
_MINIMAX = _grouped("MiniMax-M2.5 FP8", 62, 3072, (48, 8), (256, 8, 1536), FP8)
MOES = {
    "DeepSeek-R1": DEEPSEEK_R1,
    "gpt-oss-120b": GPT_OSS_120B,
    "gpt-oss-20b": replace(
        GPT_OSS_120B,
        name="gpt-oss-20b MXFP4",
        layers=24,
        moe_layers=24,
        experts=32,
        kv_bytes=GPT_OSS_120B.kv_bytes * 24 / 36,
    ),
    "DeepSeek-V3": replace(DEEPSEEK_R1, name="DeepSeek-V3 FP8", bytes_per_weight=FP8, kv_bytes=2 * (512 + 64) * 61),
    "Kimi-K2.5": KIMI_K2,
    "Kimi-K2.5-NVFP4": replace(KIMI_K2, name="Kimi-K2.5 NVFP4", bytes_per_weight=NVFP4),
    "MiniMax-M2.5": _MINIMAX,
    "MiniMax-M2.5-NVFP4": replace(_MINIMAX, name="MiniMax-M2.5 NVFP4", bytes_per_weight=NVFP4),
    "Mixtral-8x7B-v0.1": _grouped("Mixtral-8x7B BF16", 32, 4096, (32, 8), (8, 2, 14_336), BF16),
    "Qwen3-235B-A22B-FP8": _grouped("Qwen3-235B-A22B FP8", 94, 4096, (64, 4), (128, 8, 1536), FP8),
    "Qwen3-30B-A3B": _QWEN_30B,
    "Qwen3-30B-A3B-FP8": replace(_QWEN_30B, name="Qwen3-30B-A3B FP8", bytes_per_weight=FP8),
}
