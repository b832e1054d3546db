"""Before a pool is reviewed, its form says whether the model fits on the GPUs."""

import json
from pathlib import Path

import pytest
from django.test import Client

from controlplane.pages.fleet_pages.memory_fit import memory_fit
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
        ("vllm", "Qwen2.5-72B", {}, "on 1 × 85 GB of gpu-1; tensor parallel 2 would do."),
        ("vllm", LLAMA, {"tensor_parallel": 4}, "not known: 16.1 GB of weights; no node reports 4 GPUs."),
        ("vllm", "Qwen3-8B-FP8", {}, "not known: The sizes of Qwen3-8B-FP8 are those of its folder"),
        ("vllm", "", {}, "not known: Type the model"),
        ("sglang", LLAMA, {"mem_fraction_static": 0.85}, "fits: KV for "),
        ("trtllm", LLAMA, {}, "fits: KV for "),
        ("sim", "any name", {}, "fits: KV for "),
        ("sim", "any name", {"model_profile": "Llama-3.3-70B", "tp": 1}, "does not fit on 1 h100_sxm."),
        ("sim", "any name", {"kv_blocks": 1000}, "is tight: KV for 16,000 tokens on 1 GPU, fewer than the longest"),
    ],
)
def test_a_fit_is_said_with_what_decides_it(kind: str, model: str, engine: dict[str, object], said: str) -> None:
    assert said in fit(kind, model, **engine)


def test_nothing_is_said_of_engines_without_gpus_and_of_wrong_options() -> None:
    assert fit("vllm", device="cpu") == fit("external") == fit("vllm", tensor_parallel="x") == ""


def test_of_several_nodes_the_roomiest_counts() -> None:
    small = NodeGpu(0, "NVIDIA L4", 24_000_000_000)
    assert "of gpu-1" in fit("vllm", nodes={"l4": (small,), **NODES})
    assert "no node reports 1 GPU" in fit("vllm", nodes={"none": ()})


def test_the_files_of_a_folder_say_how_large_the_weights_are(tmp_path: Path) -> None:
    config = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with (tmp_path / "model.safetensors").open("wb") as weights:
        weights.truncate(3_000_000_000)
    assert "beside 3 GB of weights" in fit("vllm", str(tmp_path))


def test_the_form_says_it_as_fields_change(otto_client: Client, vera_client: Client) -> None:
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
