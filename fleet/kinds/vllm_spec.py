"""Options of the `vllm` kind."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.kinds.image import image_option
from fleet.kinds.option import option
from fleet.kinds.serving import BOTH, ROLES
from fleet.kinds.transfer import MODES

_DTYPES = ("auto", "bfloat16", "float16", "float32", "half", "float")


@dataclass(frozen=True)
class VllmSpec:
    model: str | None = option(
        None, title="Model", kind="text", help="Folder or hub name of the weights; left out: the pool's model."
    )
    python: str = option(
        "python3",
        title="Python",
        kind="text",
        help="Interpreter of the environment that vLLM is installed in; ./… is taken from Weir's own folder.",
    )
    device: str = option(
        "cuda", title="Device", kind="text", choices=("cuda", "cpu"), help="Which build of vLLM it is."
    )
    gpus: tuple[str, ...] = option(
        (),
        title="GPUs",
        kind="list",
        help="Ids dealt out to the instances in order, tensor_parallel to each; empty: all are visible.",
    )
    tensor_parallel: int = option(
        1, title="Tensor parallel", unit="GPUs", minimum=1, maximum=64, help="GPUs that one instance spans."
    )
    max_model_len: int | None = option(
        None,
        title="Longest request",
        unit="tokens",
        minimum=16,
        maximum=10_000_000,
        help="Prompt and output; left out: what the model allows.",
    )
    gpu_memory_utilization: float = option(
        0.9,
        title="GPU memory",
        kind="float",
        minimum=0.05,
        maximum=1.0,
        help="Share of each GPU that it takes; what weights and activations leave becomes KV cache.",
    )
    cpu_kv_gib: int = option(
        4, title="KV cache on CPU", unit="GiB", minimum=1, maximum=4096, help="Of the device cpu only."
    )
    dtype: str = option("auto", title="Number format", kind="text", choices=_DTYPES, help="Of weights and activations.")
    load_format: str = option(
        "auto", title="Load format", kind="text", help="How weights are read; dummy makes them up, the same each time."
    )
    block_size: int | None = option(
        None, title="Block size", unit="tokens", minimum=1, maximum=1024, help="Per KV block; left out: vLLM's choice."
    )
    max_num_seqs: int | None = option(
        None, title="Sequences", minimum=1, maximum=65_536, help="Running at once; left out: vLLM's choice."
    )
    max_num_batched_tokens: int | None = option(
        None,
        title="Batched tokens",
        unit="tokens",
        minimum=16,
        maximum=1_048_576,
        help="In one engine step; more favours prefill, fewer favour decode. Left out: vLLM's choice.",
    )
    prefix_caching: bool = option(True, title="Prefix caching", kind="bool", help="Reuse of KV between requests.")
    chunked_prefill: bool = option(True, title="Chunked prefill", kind="bool", help="Long prompts beside decodes.")
    kv_events: bool = option(
        True, title="KV events", kind="bool", help="Tells routers which blocks it holds: what the exact index needs."
    )
    sleep_mode: bool = option(
        False, title="Sleep mode", kind="bool", help="It can give its GPU memory back and wake again. Not on CPU."
    )
    role: str = option(
        BOTH, title="Role", kind="text", choices=ROLES, help="What every instance of the pool is there for."
    )
    prefill_instances: int = option(
        0,
        title="Prefill instances",
        minimum=0,
        maximum=512,
        help="The first so many instances prefill and the others decode; 0: all have the pool's role.",
    )
    kv: str = option(
        "none",
        title="KV transfer",
        kind="text",
        choices=tuple(MODES),
        help="How KV leaves the instance: to another one (nixl, mooncake-p2p), to a store of all, to memory or disk.",
    )
    master: str | None = option(
        None, title="Master pool", kind="text", help="Pool of the kind mooncake-master; of kv mooncake-store."
    )
    store_pool: str | None = option(
        None,
        title="Store pool",
        kind="text",
        help="Pool of the kind mooncake-client that holds the store; left out: the instances hold it themselves.",
    )
    store_dram_mb: int = option(
        4096, title="Store memory", unit="MB", minimum=16, maximum=4_194_304, help="That it adds to the Mooncake store."
    )
    store_buffer_mb: int = option(
        512, title="Store buffer", unit="MB", minimum=16, maximum=1_048_576, help="For transfers with the store."
    )
    protocol: str = option(
        "tcp", title="Protocol", kind="text", choices=("tcp", "rdma"), help="Of Mooncake's transfers."
    )
    rdma_device: str | None = option(
        None, title="RDMA device", kind="text", help="For example mlx5_0; left out: Mooncake finds one."
    )
    dram_gib: float = option(
        8.0,
        title="Host memory for KV",
        kind="float",
        unit="GiB",
        minimum=0.1,
        maximum=8192,
        help="Of kv offload-* and lmcache-* (lmcache-gds: the buffer on the GPU).",
    )
    disk: str | None = option(
        None,
        title="Disk folder",
        kind="text",
        help="Of kv *-ssd, *-disk, *-gds; left out: one in the instance's folder.",
    )
    disk_gib: float = option(
        64.0,
        title="Disk for KV",
        kind="float",
        unit="GiB",
        minimum=0.01,
        maximum=1_048_576,
        help="Space it may take; the check looks whether so much is free.",
    )
    arguments: tuple[str, ...] = option(
        (), title="Extra arguments", kind="list", help="Appended to the command line as they are, one word each."
    )
    environment: Mapping[str, str] | None = option(
        None, title="Environment", kind="map", help="Variables of the process, over those that Weir sets."
    )
    image: str | None = image_option()
