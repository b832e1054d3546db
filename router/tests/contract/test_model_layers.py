"""Layers that do not keep all tokens, in the configurations of published families of models."""

from typing import Any

import pytest

from router.contract.model_layers import layers


@pytest.mark.parametrize(
    ("config", "chunk"),
    [
        ({"model_type": "llama4", "text_config": {"attention_chunk_size": 8192}}, 8192),
        ({"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128}, 0),  # gpt-oss
        ({"layer_types": ["linear_attention", "full_attention"]}, 0),  # Qwen3.5
        ({"sliding_window": 4096, "max_position_embeddings": 32768}, 0),  # Mistral 7B v0.1
        ({"full_attention_interval": 4, "use_sliding_window": False}, 0),  # Qwen3-Next
        ({"hybrid_override_pattern": "M-M*"}, 0),  # Nemotron-H
        ({"linear_attn_config": {"full_attn_layers": [4]}}, 0),  # Kimi Linear
        ({"attn_type_list": [0, 0, 1]}, 0),  # MiniMax-01
        ({"hybrid_layer_pattern": [0, 1, 1], "sliding_window_size": 128}, 0),  # MiMo-V2
        ({"mamba_d_state": 256, "sliding_window": None}, 0),  # Falcon-H1
    ],
)
def test_windows_chunks_and_states_do_not_keep_all_tokens(config: dict[str, Any], chunk: int) -> None:
    assert layers(config) == (chunk, True)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"sliding_window": None, "attention_chunk_size": None, "layer_types": None},
        {"sliding_window": 131072, "use_sliding_window": False, "max_position_embeddings": 32768},  # Qwen2
        {"sliding_window": 262144, "max_position_embeddings": 131072},  # Phi-3
        {"attn_type_list": [1, 1, 1]},  # MiniMax-M2
        {"layer_types": ["full_attention"] * 4, "sliding_window": 4096},  # Qwen3
        {"attention_chunk_size": -1},
        {"text_config": None, "sliding_window": True},
    ],
)
def test_models_with_full_attention_keep_all_tokens(config: dict[str, Any]) -> None:
    assert layers(config) == (0, False)
