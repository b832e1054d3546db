"""Before a pool is reviewed, its form says whether the model fits into the memory of the GPUs."""

import json
from pathlib import Path

import pytest
from django.test import Client

from controlplane.pages.fleet_pages.memory_fit import memory_fit
from fleet.engine.profiles import UnknownProfile
from fleet.kinds import KINDS
from fleet.kinds.resources import NodeGpu
from fleet.models import Node

H100 = NodeGpu(0, "NVIDIA H100 80GB HBM3", 85_000_000_000)
NODES = {"gpu-1": (H100, H100)}
LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def fit(kind: str, model: str = LLAMA, nodes: dict[str, tuple[NodeGpu, ...]] | None = None, **engine: object) -> str:
    found = memory_fit(KINDS[kind], engine, model, NODES if nodes is None else nodes)
    return f"{found.word}: {found.text}" if found else ""


@pytest.mark.parametrize(
    ("kind", "model", "engine", "said"),
    [
        ("vllm", LLAMA, {}, "beside 16.1 GB of weights on 1 × 85 GB of gpu-1"),
        ("vllm", LLAMA, {"max_model_len": 10_000_000}, "is tight: KV for "),
        ("vllm", LLAMA, {"gpu_memory_utilization": 0.2}, "does not fit: No room for 16,384 tokens of KV"),
        ("vllm", "Qwen2.5-72B", {}, "on 1 × 85 GB of gpu-1; tensor parallel 4 would do."),
        ("vllm", LLAMA, {"tensor_parallel": 4}, "not known: 16.1 GB of weights; no node reports 4 GPUs."),
        ("vllm", "Qwen3-8B-FP8", {}, "not known: The sizes of Qwen3-8B-FP8 are those of its folder"),
        *(
            ("vllm", f"Qwen3-32B-{format}", {}, f"not known: The sizes of Qwen3-32B-{format} are those of its folder")
            for format in ("GGUF", "exl2", "NF4", "HQQ", "bnb-4bit")
        ),
        ("vllm", "", {}, "not known: Type the model"),
        ("sglang", LLAMA, {"mem_fraction_static": 0.85}, "fits: KV for "),
        ("trtllm", LLAMA, {}, "fits: KV for 462,269 tokens beside 16.1 GB of weights on 1 × 85 GB of gpu-1."),
        ("trtllm", LLAMA, {"free_gpu_memory_fraction": 0.45}, "fits: KV for 231,134 tokens beside 16.1 GB"),
        ("trtllm", LLAMA, {"free_gpu_memory_fraction": 0.05, "max_seq_len": 131_072}, "is tight: KV for "),
        ("sglang", LLAMA, {"context_length": 10_000_000}, "is tight: KV for "),
        ("trtllm", "DeepSeek-R1", {"tensor_parallel": 8}, "not known: The sizes of DeepSeek-R1 are those of its"),
        (
            "trtllm",
            "DeepSeek-R1",
            {"attention_dp": True, "tensor_parallel": 1},
            "does not fit: DeepSeek-R1 NVFP4 needs",
        ),
        ("trtllm", "DeepSeek-R1", {"attention_dp": True, "tensor_parallel": 8}, "fits: KV for "),
        ("vllm", LLAMA, {"arguments": ["--kv-cache-dtype", "fp8"]}, "fits: KV for 897,564 tokens"),
        ("vllm", LLAMA, {"arguments": ["--kv_cache_dtype=fp8"]}, "fits: KV for 897,564 tokens"),
        ("vllm", "Qwen2.5-72B", {"arguments": ["--pipeline-parallel-size", "4"]}, "not known: The size of the weights"),
        ("vllm", LLAMA, {"arguments": ["-pp", "2"]}, "not known: The size of the weights on a GPU with -pp is not"),
        ("vllm", LLAMA, {"arguments": ["--quantization=fp8"]}, "on a GPU with --quantization is not known here."),
        ("vllm", "Qwen2.5-72B", {"arguments": ["--cpu-offload-gb", "90"]}, "with --cpu-offload-gb is not known here."),
        ("trtllm", LLAMA, {"arguments": ["--pp_size", "2"]}, "on a GPU with --pp-size is not known here."),
        ("vllm", LLAMA, {"dtype": "float32"}, "not known: The size of the weights on a GPU with dtype float32 is not"),
        ("sim", "any name", {}, "fits: KV for "),
        ("sim", "any name", {"kv_blocks": 1000}, "is tight: KV for 16,000 tokens on 1 GPU, fewer than the longest"),
    ],
)
def test_the_form_says_whether_the_model_fits_and_what_decides_that(
    kind: str, model: str, engine: dict[str, object], said: str
) -> None:
    assert said in fit(kind, model, **engine)


def test_the_form_shows_nothing_for_engines_without_gpus_or_with_invalid_options() -> None:
    assert fit("vllm", device="cpu") == fit("external") == fit("vllm", tensor_parallel="x") == ""
    assert fit("sim", model_profile="Llama-3.3-70B", tp=1) == "", "the option itself says so"


def test_the_node_with_the_most_memory_counts_if_there_are_several() -> None:
    small = NodeGpu(0, "NVIDIA L4", 24_000_000_000)
    assert "of gpu-1" in fit("vllm", nodes={"l4": (small,), **NODES})
    assert "no node reports 1 GPU" in fit("vllm", nodes={"none": ()})


def test_the_files_of_a_folder_determine_the_size_of_the_weights(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(3_000_000_000)
    assert "beside 3 GB of weights" in fit("vllm", str(tmp_path))
    with (tmp_path / "consolidated.safetensors").open("wb") as copy:
        copy.truncate(3_000_000_000)
    assert "beside 3 GB of weights" in fit("vllm", str(tmp_path))
    (tmp_path / "model.safetensors").unlink()
    assert "beside 3 GB of weights" in fit("vllm", str(tmp_path))


@pytest.mark.parametrize("model", ["m" * 300, "a\0b"])
def test_a_model_that_cannot_be_a_folder_is_unknown(model: str) -> None:
    assert "not known: The sizes of" in fit("vllm", model)


def test_a_folder_with_a_dangling_link_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    assert "not known: The sizes of" in fit("vllm", str(tmp_path))


def test_an_unknown_model_is_not_reported_as_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise UnknownProfile("no constants")

    monkeypatch.setattr("controlplane.pages.fleet_pages.memory_fit._by_law", unknown)
    assert fit("sim") == "not known: no constants."


def test_the_form_updates_as_fields_change(otto_client: Client, vera_client: Client) -> None:
    gpu = {"number": 0, "name": H100.name, "memory_bytes": H100.memory_bytes}
    Node.objects.create(name="gpu-1", inventory={"gpus": [gpu]})
    Node.objects.create(name="local")
    asked = {"step": "fit", "kind": "vllm", "model": LLAMA}
    assert "no node reports 1 GPU" in otto_client.post("/fleet/new-pool", asked).content.decode()
    answer = otto_client.post("/fleet/new-pool", asked | {"node": "gpu-1"}).content.decode()
    assert '<span class="status status--ready">Fits</span> <span class="muted">KV for ' in answer
    assert vera_client.post("/fleet/new-pool", asked).status_code == 403
    assert (
        '<span class="status status--ready">Fits</span>' in otto_client.get("/fleet/new-pool?kind=sim").content.decode()
    )
