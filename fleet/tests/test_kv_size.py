"""Compute the KV bytes per token from a model's configuration."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.kinds.kind import Launch
from fleet.kinds.kv_size import KvSizes, heads_of, of_model, sizes_of
from fleet.kinds.vllm.vllm import VLLM
from fleet.kinds.vllm.vllm_spec import VllmSpec

LLAMA_8B = {"num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        (LLAMA_8B, 131_072),
        ({**LLAMA_8B, "head_dim": 64}, 65_536),
        ({**LLAMA_8B, "num_key_value_heads": None}, 524_288),
        ({"text_config": LLAMA_8B, "vision_config": {"num_hidden_layers": 2}}, 131_072),
        # DeepSeek-V3: 61 layers of 512 + 64 numbers each
        ({**LLAMA_8B, "num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 70_272),
        ({**LLAMA_8B, "layer_types": ["full_attention", "linear_attention"]}, None),
        ({**LLAMA_8B, "layer_types": ["full_attention", "sliding_attention"]}, 131_072),
        ({"num_hidden_layers": 32}, None),
        ({}, None),
    ],
)
def test_the_size_follows_from_layers_heads_and_number_format(
    tmp_path: Path, config: dict[str, Any], size: int | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert of_model(str(tmp_path), "auto", ()) == size


@pytest.mark.parametrize(
    ("dtype", "arguments", "size"),
    [
        ("auto", (), 131_072),
        ("float32", (), 262_144),
        ("auto", ("--kv-cache-dtype", "fp8"), 65_536),
        ("auto", ("--kv-cache-dtype=fp8_e5m2",), 65_536),
        ("float32", ("--kv-cache-dtype", "bfloat16"), 131_072),
        ("float32", ("--kv-cache-dtype", "auto"), 262_144),
        ("auto", ("--kv-cache-dtype",), 131_072),
    ],
)
def test_the_number_format_of_the_kv_cache_counts(
    tmp_path: Path, dtype: str, arguments: tuple[str, ...], size: int
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    assert of_model(str(tmp_path), dtype, arguments) == size


def test_sizes_come_from_the_configuration_or_from_the_name_of_a_known_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": {**LLAMA_8B, "num_hidden_layers": 16}}))
    assert sizes_of(str(tmp_path)) == KvSizes(65_536, 16)
    assert sizes_of("org/llama-3.1-8b-instruct") == KvSizes(131_072, 32)
    assert sizes_of("Qwen/Qwen3-30B-A3B", arguments=("--kv-cache-dtype", "fp8")) == KvSizes(49_152, 48)
    assert sizes_of("org/unknown") is None


@pytest.mark.parametrize("text", ["", "[]", "{", None])
def test_a_model_without_a_readable_configuration_has_no_known_size(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert of_model(str(tmp_path), "auto", ()) is None


def test_routers_learn_the_kv_size_of_a_vllm_instance(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    launch = Launch("p-0", "m", "127.0.0.1", {"http": 1, "events": 2, "replay": 3, "side": 4}, "python3")
    told = VLLM.wire(VllmSpec(model=str(tmp_path), kv="mooncake-p2p"), launch)
    assert told.kv_stored() == {"bootstrap": "http://127.0.0.1:4", "bytes_per_token": 131_072}
    assert VLLM.wire(VllmSpec(model="hub/name"), launch).kv_stored() == {}


@pytest.mark.parametrize(
    ("config", "heads"), [(LLAMA_8B, 32), ({"text_config": {"num_attention_heads": 28}}, 28), ({}, None)]
)
def test_the_heads_of_a_model_come_from_its_folder_or_its_name(
    tmp_path: Path, config: dict[str, Any], heads: int | None
) -> None:
    folder = tmp_path / "Qwen3-8B"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    assert heads_of(str(folder)) == heads
    assert [heads_of("Qwen/Qwen3-14B-FP8"), heads_of("mine")] == [40, None]
