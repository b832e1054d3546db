"""The layers of a model that do not keep all tokens, from its `config.json`. Pure."""

from typing import Any

from router.contract.values.json_value import JsonObject

# Fields of models with recurrent states, or with layers of several kinds
_OTHER_LAYERS = (
    *("attn_layer_indices", "attn_type_list", "compress_ratios", "full_attention_interval", "full_attn_idxs"),
    *("hybrid_layer_pattern", "hybrid_override_pattern", "is_hybrid_swa", "layer_group_size", "layers_block_type"),
    *("linear_attn_config", "mamba_d_state", "mamba_expand", "mamba_n_heads", "ssm_cfg", "state_size"),
)


def layers(config: JsonObject) -> tuple[int, bool]:
    """Return (chunk size of chunked attention in tokens, 0 without it; whether some layers keep only part of the
    tokens)."""
    inside = config.get("text_config")
    text: dict[str, Any] = inside if isinstance(inside, dict) else config
    chunk = _length(text.get("attention_chunk_size"))
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return chunk, bool(chunk) or any(kind != "full_attention" for kind in kinds)
    return chunk, bool(chunk) or any(_mixes(text.get(name)) for name in _OTHER_LAYERS) or _has_window(text)


def _mixes(value: object) -> bool:
    """Return whether the field lists different kinds of layers; MiniMax-M2, for example, lists equal ones."""
    return any(one != value[0] for one in value) if isinstance(value, list) else bool(value)


def _has_window(text: dict[str, Any]) -> bool:
    """Return whether the window is shorter than the context. Qwen2's configurations declare a window without using
    it."""
    window, context = _length(text.get("sliding_window")), _length(text.get("max_position_embeddings"))
    return bool(window) and text.get("use_sliding_window") is not False and (not context or window < context)


def _length(value: object) -> int:
    return value if type(value) is int and value > 0 else 0
