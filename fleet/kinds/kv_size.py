"""A model's KV per token, layers and attention heads, from the config.json next to its weights, or by its name."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fleet.engine.profiles import MODELS, ModelProfile

_BYTES = {"float32": 4, "float": 4}  # all others: 2, also `auto` for a float32 model
# Layer types that keep a fixed-size state instead of KV per token
_STATE = {"linear_attention", "mamba", "recurrent", "conv"}


@dataclass(frozen=True, slots=True)
class KvSizes:
    bytes_per_token: float  # of the whole model
    layers: int


def sizes_of(model: str, dtype: str = "auto", arguments: Sequence[str] = ()) -> KvSizes | None:
    """`model`: a folder or a hub name; for a name that holds that of a known model (Qwen/Qwen3-8B-FP8), its sizes."""
    config, found = _config(model), of_model(model, dtype, arguments)
    if config is not None and found:
        return KvSizes(found, _text(config)["num_hidden_layers"])
    sizes = _named(model)
    return (
        None
        if sizes is None
        else KvSizes(sizes.kv_bytes_per_token * _element_bytes(dtype, arguments) / 2, sizes.layers)
    )


def heads_of(model: str) -> int | None:
    """Attention heads, of the same models."""
    config, sizes = _config(model), _named(model)
    if config is None:
        return None if sizes is None else sizes.q_heads
    heads = _text(config).get("num_attention_heads")
    return heads if isinstance(heads, int) else None


def _named(model: str) -> ModelProfile | None:
    known = [name for name in MODELS if name.lower() in model.lower()]
    return MODELS[max(known, key=len)] if known else None


def of_model(folder: str, dtype: str, arguments: Sequence[str]) -> int | None:
    """For the whole model, over all its GPUs. None: no such file on this host, or another architecture."""
    config = _config(folder)
    return of_config(config, _element_bytes(dtype, arguments)) if config is not None else None


def _config(folder: str) -> dict[str, Any] | None:
    try:
        config = json.loads(Path(folder, "config.json").read_text())
    except (OSError, ValueError):
        return None
    return config if isinstance(config, dict) else None


def _text(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.get("text_config") or config
    return found


def of_config(config: Mapping[str, Any], element_bytes: int) -> int | None:
    """`layers × 2 × KV heads × head size × bytes`; latent attention (MLA) keeps one compressed vector instead of 2."""
    text = _text(config)
    layers, heads = text.get("num_hidden_layers"), text.get("num_attention_heads")
    if not isinstance(layers, int) or not isinstance(heads, int) or _STATE & set(text.get("layer_types") or ()):
        return None
    if text.get("kv_lora_rank"):
        return int(layers * (text["kv_lora_rank"] + text.get("qk_rope_head_dim", 0)) * element_bytes)
    head_size = text.get("head_dim") or text.get("hidden_size", 0) // max(heads, 1)
    kv_heads = text.get("num_key_value_heads") or heads
    return int(layers * 2 * kv_heads * head_size * element_bytes) or None


def _element_bytes(dtype: str, arguments: Sequence[str]) -> int:
    joined = " ".join(arguments).replace("=", " ").split()
    if "--kv-cache-dtype" in joined[:-1]:
        given = joined[joined.index("--kv-cache-dtype") + 1]
        if given != "auto":
            return 1 if given.startswith(("fp8", "int8")) else _BYTES.get(given, 2)
    return _BYTES.get(dtype, 2)
