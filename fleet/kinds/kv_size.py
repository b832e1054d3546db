"""A model's KV per token, layers and attention heads, from the config.json next to its weights or from its name."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from fleet.engine.profiles import MODELS, ModelProfile
from fleet.systems.dwdp.known_models import experts_of
from router.contract.values.reading import read_json

_BYTES = {"float32": 4, "float": 4}  # 2 for all others, including `auto` for a float32 model
_QUANTIZED = re.compile(r"fp8|fp4|int[48]|awq|gptq|w[48]a|[48]bit|gguf|exl[23]|nf4|hqq|bnb", re.IGNORECASE)
# Types of layers that keep a state of fixed size instead of KV per token
_STATE = {"linear_attention", "mamba", "recurrent", "conv"}


class ModelConfig(msgspec.Struct, frozen=True):
    """The fields read from config.json."""

    num_hidden_layers: int | None = None
    num_attention_heads: int | None = None
    num_key_value_heads: int | None = None
    hidden_size: int | None = None
    head_dim: int | None = None
    kv_lora_rank: int | None = None
    qk_rope_head_dim: int | None = None
    layer_types: list[str] | None = None
    num_local_experts: int | None = None
    num_experts: int | None = None
    n_routed_experts: int | None = None
    text_config: "ModelConfig | None" = None  # set for a model that reads images


@dataclass(frozen=True, slots=True)
class KvSizes:
    bytes_per_token: float  # bytes over the whole model
    layers: int


def sizes_of(model: str, dtype: str = "auto", arguments: Sequence[str] = ()) -> KvSizes | None:
    """Return the KV sizes. `model` is a folder or a hub name; a hub name that contains a known model's
    (Qwen/Qwen3-8B-FP8) has the sizes of that model."""
    config, found = _config(model), of_model(model, dtype, arguments)
    if config is not None and config.num_hidden_layers is not None and found:
        return KvSizes(found, config.num_hidden_layers)
    sizes = _named(model)
    return (
        None
        if sizes is None
        else KvSizes(sizes.kv_bytes_per_token * _element_bytes(dtype, arguments) / 2, sizes.layers)
    )


def heads_of(model: str) -> int | None:
    """Return the number of attention heads, for the same models as `sizes_of`."""
    config, sizes = _config(model), _named(model)
    if config is None:
        return None if sizes is None else sizes.q_heads
    return config.num_attention_heads


def weight_bytes(model: str) -> float | None:
    """Return the size of the weights: from the files in its folder, or from the name of a known model with 16-bit
    weights. None if a file cannot be read."""
    try:
        files = list(Path(model).glob("*.safetensors")) if model else []
        shards = [path for path in files if not path.name.startswith("consolidated")]  # Mistral's copy of the shards
        sizes_of_files = [path.stat().st_size for path in shards or files]
    except (OSError, ValueError):
        return None
    if sizes_of_files:
        return float(sum(sizes_of_files))
    sizes = None if _QUANTIZED.search(model) else _named(model)
    return None if sizes is None else sizes.weight_bytes + sizes.embedding_bytes


def is_moe(model: str) -> bool:
    """Return whether the model is a mixture of experts: by its folder, or by a name that contains a known model's."""
    config = _config(model)
    if config is None:
        return experts_of(model) is not None
    return max(config.num_local_experts or 0, config.num_experts or 0, config.n_routed_experts or 0) > 1


def _named(model: str) -> ModelProfile | None:
    known = [name for name in MODELS if name.lower() in model.lower()]
    return MODELS[max(known, key=len)] if known else None


def of_model(folder: str, dtype: str, arguments: Sequence[str]) -> int | None:
    """Return the KV sizes of the whole model, over all its GPUs. None without the file or for an unknown
    architecture."""
    config = _config(folder)
    return of_config(config, _element_bytes(dtype, arguments)) if config is not None else None


def _config(folder: str) -> ModelConfig | None:
    try:
        found = read_json(Path(folder, "config.json").read_bytes(), ModelConfig)
    except (OSError, ValueError):
        return None
    return found.text_config or found


def of_config(text: ModelConfig, element_bytes: int) -> int | None:
    """Return `layers × 2 × KV heads × head size × bytes`; latent attention (MLA) keeps one compressed vector instead of
    2."""
    layers, heads = text.num_hidden_layers, text.num_attention_heads
    if layers is None or heads is None or _STATE & set(text.layer_types or ()):
        return None
    if text.kv_lora_rank:
        return layers * (text.kv_lora_rank + (text.qk_rope_head_dim or 0)) * element_bytes
    head_size = text.head_dim or (text.hidden_size or 0) // max(heads, 1)
    kv_heads = text.num_key_value_heads or heads
    return layers * 2 * kv_heads * head_size * element_bytes or None


def _element_bytes(dtype: str, arguments: Sequence[str]) -> int:
    joined = words_of(arguments)
    if "--kv-cache-dtype" in joined[:-1]:
        given = joined[joined.index("--kv-cache-dtype") + 1]
        if given != "auto":
            return 1 if given.startswith(("fp8", "int8")) else _BYTES.get(given, 2)
    return _BYTES.get(dtype, 2)


def words_of(arguments: Sequence[str]) -> list[str]:
    """Return the options and values of extra arguments; engines accept both hyphens and underscores."""
    words = " ".join(arguments).replace("=", " ").split()
    return [word.replace("_", "-") if word.startswith("-") else word for word in words]
