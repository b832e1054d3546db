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
    device: str = option("cuda", title="Device", choices=("cuda", "cpu"), help="The build of vLLM.")
    gpus: tuple[str, ...] = option(
        (),
        title="GPUs",
        help="Ids, assigned to the instances in order, tensor_parallel for each rank; empty: all are visible.",
    )
    tensor_parallel: int = option(
        1,
        title="Tensor parallel",
        unit="GPUs",
        minimum=1,
        maximum=64,
        help="GPUs per instance, or per rank; a divisor of the model's attention heads.",
    )
    data_parallel_size: int = data_parallel_size_option(
        "Copies of the engine behind one address, each with its GPUs and KV cache; routers choose the rank."
    )
    data_parallel_size_local: int | None = data_parallel_size_local_option()
    max_model_len: int | None = option(
        None,
        title="Longest request",
        unit="tokens",
        minimum=16,
        maximum=10_000_000,
        help="Prompt and output; left out: the model's limit.",
    )
    gpu_memory_utilization: float = option(
        0.9,
        title="GPU memory",
        minimum=0.05,
        maximum=1.0,
        help="Share of each GPU's memory; what weights and activations leave free is KV cache.",
    )
    cpu_kv_gib: int = option(
        4, title="KV cache on CPU", unit="GiB", minimum=1, maximum=4096, help="With device cpu only."
    )
    dtype: str = option("auto", title="Number format", choices=_DTYPES, help="Of weights and activations.")
    load_format: str = option(
        "auto", title="Load format", help="How weights are loaded; dummy: random weights, the same in every process."
    )
    block_size: int | None = option(
        None, title="Block size", unit="tokens", minimum=1, maximum=1024, help="Of a KV block; left out: vLLM's choice."
    )
    max_num_seqs: int | None = option(
        None, title="Sequences", minimum=1, maximum=65_536, help="Concurrent sequences; left out: vLLM's choice."
    )
    max_num_batched_tokens: int | None = option(
        None,
        title="Batched tokens",
        unit="tokens",
        minimum=16,
        maximum=1_048_576,
        help="Per engine step; more favours prefill, fewer favours decode. Left out: vLLM's choice.",
    )
    prefix_caching: bool = option(True, title="Prefix caching", help="Reuse KV between requests.")
    chunked_prefill: bool = option(
        True, title="Chunked prefill", help="Split long prompts into chunks that run next to decodes."
    )
    kv_events: bool = option(
        True, title="KV events", help="Publish which blocks are cached; the exact prefix index needs it."
    )
    sleep_mode: bool = option(
        False, title="Sleep mode", help="Can release its GPU memory and wake up again. Not on CPU."
    )
    enable_lora: bool = enable_lora_option()
    max_loras: int = max_loras_option()
    max_cpu_loras: int | None = max_cpu_loras_option()
    max_lora_rank: int = option(
        16, title="Largest rank", minimum=1, maximum=512, help="Of an adapter; with enable_lora."
    )
    api_server_count: int | None = option(
        None,
        title="API servers",
        minimum=1,
        maximum=64,
        help="Processes of vLLM's HTTP server; left out: vLLM's choice. Not beside enable_lora: each would have a list"
        " of adapters of its own.",
    )
    profile: str | None = option(
        None,
        title="Profile",
        kind="text",
        help="As JSON, as weir profile --json prints it: what the twin computes with until an instance is calibrated.",
    )
    role: str = option(BOTH, title="Role", choices=ROLES, help="Role of every instance.")
    prefill_instances: int = prefill_instances_option()
    kv: str = option(
        "none",
        title="KV transfer",
        choices=tuple(MODES),
        groups=GROUPS,
        help="Where KV goes: another instance (nixl, mooncake-p2p), a shared store (mooncake-store), memory or disk; "
        "a list names one of each.",
    )
    lend_s: int = option(
        0,
        title="Lending",
        unit="s",
        minimum=0,
        maximum=86_400,
        help="Decoders keep an answer's blocks as long, for the prefill of the session's next turn; 0: not. With nixl.",
    )
    master: str | None = option(
        None, title="Master pool", kind="text", help="Pool of the kind mooncake-master; with kv mooncake-store."
    )
    store_pool: str | None = option(
        None,
        title="Store pool",
        kind="text",
        help="Pool of the kind mooncake-client that holds the store; left out: the instances hold it.",
    )
    store_dram_mb: int = option(
        4096,
        title="Store memory",
        unit="MB",
        minimum=16,
        maximum=4_194_304,
        help="Memory that each instance provides to the Mooncake store.",
    )
    store_buffer_mb: int = option(
        512, title="Store buffer", unit="MB", minimum=16, maximum=1_048_576, help="For transfers to and from the store."
    )
    protocol: str = option("tcp", title="Protocol", choices=("tcp", "rdma"), help="For Mooncake's transfers.")
    rdma_device: str | None = option(
        None, title="RDMA device", kind="text", help="For example mlx5_0; left out: Mooncake selects one."
    )
    dram_gib: float = option(
        8.0,
        title="Host memory for KV",
        unit="GiB",
        minimum=0.1,
        maximum=8192,
        help="With kv offload-* and lmcache-* (lmcache-gds: the buffer on the GPU).",
    )
    disk: str | None = option(
        None, title="Disk folder", kind="text", help="With kv *-ssd, *-disk, *-gds; left out: in the instance's folder."
    )
    disk_gib: float = option(
        64.0,
        title="Disk for KV",
        unit="GiB",
        minimum=0.01,
        maximum=1_048_576,
        help="Space to use; the check requires this much to be free.",
    )
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()
    engine_key: str | None = engine_key_option(STARTED_WITH_KEY)
