"""Options of the `vllm` kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.kinds.options.common_options import (
    STARTED_WITH_KEY,
    arguments_option,
    data_parallel_size_local_option,
    data_parallel_size_option,
    enable_lora_option,
    engine_key_option,
    environment_option,
    image_option,
    max_cpu_loras_option,
    max_loras_option,
    model_option,
    prefill_instances_option,
    python_option,
)
from fleet.kinds.options.option import option
from fleet.kinds.serving import BOTH, ROLES
from fleet.kinds.transfer import GROUPS, MODES

_DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")


@dataclass(frozen=True)
class VllmSpec:
    model: str | None = model_option()
    python: str = python_option("vLLM's environment")
    device: str = option("cuda", "Device", "The build of vLLM.", choices=("cuda", "cpu"))
    gpus: tuple[str, ...] = option(
        (), "GPUs", "Ids, assigned to the instances in order, tensor_parallel for each rank; empty: all are visible."
    )
    tensor_parallel: int = option(
        1,
        "Tensor parallel",
        "GPUs per instance, or per rank; a divisor of the model's attention heads.",
        unit="GPUs",
        range=(1, 64),
    )
    data_parallel_size: int = data_parallel_size_option(
        "Copies of the engine behind one address, each with its GPUs and KV cache; routers choose the rank."
    )
    data_parallel_size_local: int | None = data_parallel_size_local_option()
    max_model_len: int | None = option(
        None,
        "Longest request",
        "Prompt and output; left out: the model's limit.",
        unit="tokens",
        range=(16, 10_000_000),
    )
    gpu_memory_utilization: float = option(
        0.9,
        "GPU memory",
        "Share of each GPU's memory; what weights and activations leave free is KV cache.",
        range=(0.05, 1.0),
    )
    cpu_kv_gib: int = option(4, "KV cache on CPU", "With device cpu only.", unit="GiB", range=(1, 4096))
    dtype: str = option("auto", "Number format", "Number format of weights and activations.", choices=_DTYPES)
    load_format: str = option(
        "auto", "Load format", "How weights are loaded; dummy: random weights, the same in every process."
    )
    block_size: int | None = option(
        None, "Block size", "Tokens in a KV block; left out: vLLM's choice.", unit="tokens", range=(1, 1024)
    )
    max_num_seqs: int | None = option(
        None, "Sequences", "Concurrent sequences; left out: vLLM's choice.", range=(1, 65_536)
    )
    max_num_batched_tokens: int | None = option(
        None,
        "Batched tokens",
        "Per engine step; more favours prefill, fewer favours decode. Left out: vLLM's choice.",
        unit="tokens",
        range=(16, 1_048_576),
    )
    prefix_caching: bool = option(True, "Prefix caching", "Reuse KV between requests.")
    chunked_prefill: bool = option(True, "Chunked prefill", "Split long prompts into chunks that run next to decodes.")
    kv_events: bool = option(True, "KV events", "Publish which blocks are cached; the exact prefix index needs it.")
    sleep_mode: bool = option(False, "Sleep mode", "Can release its GPU memory and wake up again. Not on CPU.")
    enable_lora: bool = enable_lora_option()
    max_loras: int = max_loras_option()
    max_cpu_loras: int | None = max_cpu_loras_option()
    max_lora_rank: int = option(16, "Largest rank", "Largest rank of an adapter; with enable_lora.", range=(1, 512))
    api_server_count: int | None = option(
        None,
        "API servers",
        "Processes of vLLM's HTTP server; left out: vLLM's choice. Not beside enable_lora: each would have a list"
        " of adapters of its own.",
        range=(1, 64),
    )
    profile: str | None = option(
        None,
        "Profile",
        "As JSON, as weir profile --json prints it: what the twin computes with until an instance is calibrated.",
        kind="text",
    )
    role: str = option(BOTH, "Role", "Role of every instance.", choices=ROLES)
    prefill_instances: int = prefill_instances_option()
    kv: str = option(
        "none",
        "KV transfer",
        "Where KV goes: another instance (nixl, mooncake-p2p), a shared store (mooncake-store), memory or disk; "
        "a list names one of each.",
        choices=tuple(MODES),
        groups=GROUPS,
    )
    lend_s: int = option(
        0,
        "Lending",
        "Decoders keep an answer's blocks this long, for the prefill of the session's next turn; 0: not. With nixl.",
        unit="s",
        range=(0, 86_400),
    )
    master: str | None = option(
        None, "Master pool", "Pool of the kind mooncake-master; with kv mooncake-store.", kind="text"
    )
    store_pool: str | None = option(
        None,
        "Store pool",
        "Pool of the kind mooncake-client that holds the store; left out: the instances hold it.",
        kind="text",
    )
    store_dram_mb: int = option(
        4096,
        "Store memory",
        "Memory that each instance provides to the Mooncake store.",
        unit="MB",
        range=(16, 4_194_304),
    )
    store_buffer_mb: int = option(
        512, "Store buffer", "For transfers to and from the store.", unit="MB", range=(16, 1_048_576)
    )
    protocol: str = option("tcp", "Protocol", "For Mooncake's transfers.", choices=("tcp", "rdma"))
    rdma_device: str | None = option(
        None, "RDMA device", "For example mlx5_0; left out: Mooncake selects one.", kind="text"
    )
    dram_gib: float = option(
        8.0,
        "Host memory for KV",
        "With kv offload-* and lmcache-* (lmcache-gds: the buffer on the GPU).",
        unit="GiB",
        range=(0.1, 8192),
    )
    disk: str | None = option(
        None, "Disk folder", "With kv *-ssd, *-disk, *-gds; left out: in the instance's folder.", kind="text"
    )
    disk_gib: float = option(
        64.0,
        "Disk for KV",
        "Space to use; the check requires this much to be free.",
        unit="GiB",
        range=(0.01, 1_048_576),
    )
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()
    engine_key: str | None = engine_key_option(STARTED_WITH_KEY)
