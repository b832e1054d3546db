"""The `sglang` kind: SGLang's server in its own Python environment, with HiCache below the GPU, or as separate prefill
and decode servers.
Hit rates, load and KV events are always on.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.engine.tiers.devices import DRAM, SSD
from fleet.engine.tiers.model import TierModel
from fleet.kinds import kv_size
from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.options.common_options import (
    arguments_option,
    data_parallel_size_option,
    environment_option,
    image_option,
    model_option,
    prefill_instances_option,
    python_option,
)
from fleet.kinds.options.option import option
from fleet.kinds.serving import (
    BOTH,
    DECODE,
    NVIDIA,
    PREFILL,
    ROLES,
    TOPIC,
    address,
    compact,
    events_at,
    flags,
    gpus_of,
    kv_folder,
    own_role,
    replicas_for,
    tokenizer_of,
    visible,
    weights_of,
)
from fleet.kinds.sglang.sleeping import SGLANG_SLEEP
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.transfer import GIB
from fleet.kinds.wire import DataParallel, KvFacts, KvWire
from router.contract import connectors
from router.contract.metrics.engine_metrics import SGLANG_SCRAPE
from router.contract.net.probe import READY

_DTYPES = ("auto", "bfloat16", "float16", "float32")
_TRANSFERS = ("mooncake", "mooncake_tcp", "nixl")
# Extra arguments that make prompts differ from what the tokenizer's folder implies.
_OTHER_PROMPTS = (
    "--chat-template",
    "--completion-template",
    "--hf-chat-template-name",
    "--default-chat-template-kwargs",
)
_TIERS = {"none": (), "dram": (DRAM,), "disk": (DRAM, SSD)}


@dataclass(frozen=True)
class SglangSpec:
    model: str | None = model_option()
    python: str = python_option("SGLang's environment")
    role: str = option(BOTH, "Role", "Whether its instances prefill, decode, or do both.", choices=ROLES)
    prefill_instances: int = prefill_instances_option()
    transfer: str = option(
        "mooncake", "KV transfer", "How KV moves; prefill and decode instances must agree.", choices=_TRANSFERS
    )
    rdma_device: str | None = option(
        None, "RDMA device", "For transfers, such as mlx5_0, or several; left out: any.", kind="text"
    )
    gpus: tuple[str, ...] = option(
        (), "GPUs", "Ids, assigned to the instances in order, tensor_parallel each; empty: all are visible."
    )
    tensor_parallel: int = option(1, "Tensor parallel", "Per instance.", unit="GPUs", range=(1, 64))
    data_parallel_size: int = data_parallel_size_option(
        "Attention ranks within the tensor_parallel GPUs, each with its KV cache; routers choose the rank."
    )
    context_length: int | None = option(
        None,
        "Longest request",
        "Prompt and output; left out: the model's limit.",
        unit="tokens",
        range=(16, 10_000_000),
    )
    mem_fraction_static: float | None = option(
        None,
        "GPU memory",
        "Share of each GPU's memory for weights and KV cache; left out: SGLang's choice.",
        kind="float",
        range=(0.05, 0.99),
    )
    page_size: int = option(
        16,
        "Page",
        "Tokens in a KV block. SGLang's own choice is 1: an entry of the exact index for each token.",
        unit="tokens",
        range=(1, 1024),
    )
    max_running_requests: int | None = option(
        None, "Sequences", "Concurrent requests; left out: SGLang's choice.", range=(1, 65_536)
    )
    chunked_prefill_size: int | None = option(
        None,
        "Prefill chunk",
        "More favours prefill, fewer favours decode; left out: SGLang's choice.",
        unit="tokens",
        range=(16, 1_048_576),
    )
    dtype: str = option("auto", "Number format", "Number format of weights and activations.", choices=_DTYPES)
    load_format: str = option(
        "auto", "Load format", "How weights are loaded; dummy: random weights, the same in every process."
    )
    hicache: str = option(
        "none", "HiCache", "KV below the GPU: in host memory, or there and in a folder.", choices=tuple(_TIERS)
    )
    dram_gib: int = option(8, "Host memory for KV", "With hicache, for each GPU.", unit="GiB", range=(1, 8192))
    disk: str | None = option(
        None, "Disk folder", "With hicache disk; left out: in the instance's folder.", kind="text"
    )
    disk_gib: float = option(
        64.0, "Disk for KV", "The check requires it to be free.", unit="GiB", range=(0.01, 1_048_576)
    )
    write_policy: str = option(
        "write_through",
        "Write policy",
        "With hicache: at once, once hit again, or when the GPU evicts.",
        choices=("write_through", "write_through_selective", "write_back"),
    )
    sleep_mode: bool = option(
        False, "Sleep mode", "Can release its GPU memory and wake up again; the weights need as much host memory."
    )
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()


def command(spec: SglangSpec, launch: Launch) -> list[str]:
    given = {
        "model-path": weights_of(spec, launch),
        "served-model-name": launch.model,
        "host": launch.host,
        "port": launch.ports["http"],
        "tp-size": spec.tensor_parallel,
        "attn-dp-size": spec.data_parallel_size if spec.data_parallel_size > 1 else None,
        "context-length": spec.context_length,
        "mem-fraction-static": spec.mem_fraction_static,
        "page-size": spec.page_size,
        "max-running-requests": spec.max_running_requests,
        "chunked-prefill-size": spec.chunked_prefill_size,
        "dtype": spec.dtype,
        "load-format": spec.load_format,
        "enable-metrics": True,
        "enable-cache-report": True,  # reports the cached tokens per request, which check the index
        "kv-events-config": compact(_events(launch)),
        "enable-memory-saver": spec.sleep_mode or None,
        "enable-weights-cpu-backup": spec.sleep_mode or None,  # otherwise it would wake with random weights
        **_hicache(spec, launch),
        **_disaggregation(spec, launch),
    }
    return [launch.path(spec.python), "-m", "sglang.launch_server", *flags(given), *spec.arguments]


def _is_divided(spec: SglangSpec) -> bool:
    return spec.role != BOTH or bool(spec.prefill_instances)


def _disaggregation(spec: SglangSpec, launch: Launch) -> dict[str, object]:
    if not _is_divided(spec):
        return {}
    own = own_role(spec, launch)
    return {
        "disaggregation-mode": own,
        "disaggregation-transfer-backend": spec.transfer,
        "disaggregation-bootstrap-port": launch.ports["side"] if own == PREFILL else None,
        "disaggregation-ib-device": spec.rdma_device,
    }


def _hicache(spec: SglangSpec, launch: Launch) -> dict[str, object]:
    """Return the flags of tiers; a decode server caches no prompts."""
    if spec.hicache == "none" or own_role(spec, launch) == DECODE:
        return {}
    return {
        "enable-hierarchical-cache": True,
        "hicache-size": spec.dram_gib,
        "hicache-write-policy": spec.write_policy,
        "hicache-storage-backend": "file" if spec.hicache == "disk" else None,
    }


def _events(launch: Launch) -> dict[str, object]:
    """Return the flags for KV events: rank r publishes on the port + r. Without `bind`, SGLang connects to a
    concrete address instead of listening."""
    places = {"endpoint": f"tcp://{address(launch, 'events')}", "replay_endpoint": f"tcp://{address(launch, 'replay')}"}
    return {"publisher": "zmq", **places, "bind": True, "topic": TOPIC}


def _folder(spec: SglangSpec, launch: Launch) -> str:
    if spec.hicache != "disk" or own_role(spec, launch) == DECODE:
        return ""
    return kv_folder(spec, launch)


def environment(spec: SglangSpec, launch: Launch) -> dict[str, str]:
    found = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1", "PYTHONFAULTHANDLER": "1"}
    if folder := _folder(spec, launch):
        found["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = folder
    return found | visible(gpus_of(spec.gpus, spec.tensor_parallel, launch)) | dict(spec.environment or {})


def wire(spec: SglangSpec, launch: Launch) -> KvWire:
    """Return the facts for routers. Attention ranks compute the rest of each layer together, so the ranks wait for each
    other in every step.
    """
    ranks, own = spec.data_parallel_size, own_role(spec, launch)
    return KvWire(
        own,
        connectors.SGLANG if _is_divided(spec) else "",
        KvFacts(
            bytes_per_token=kv_size.of_model(weights_of(spec, launch), spec.dtype, spec.arguments),
            bootstrap=f"http://{address(launch, 'side')}" if own == PREFILL else "",
        ),
        events=events_at(launch),
        tokenizer=tokenizer_of(spec, launch, "--tokenizer-path", _OTHER_PROMPTS, weights_of(spec, launch)),
        dp=DataParallel(ranks, together=launch.instance) if ranks > 1 else DataParallel(),
        uncached="--disable-radix-cache" in spec.arguments,
    )


def refuse(spec: SglangSpec) -> dict[str, str]:
    problems = {
        "prefill_instances": spec.prefill_instances
        and spec.role != BOTH
        and "needs the role both: prefill_instances assigns the roles",
        "tensor_parallel": spec.tensor_parallel % spec.data_parallel_size
        and f"must be a multiple of data_parallel_size, {spec.data_parallel_size}",
        "disk": spec.disk and spec.hicache != "disk" and "needs hicache disk",
        "rdma_device": spec.rdma_device and not _is_divided(spec) and "needs prefill_instances, or a role",
    }
    return {name: str(problem) for name, problem in problems.items() if problem}


def requires(spec: SglangSpec, launch: Launch) -> tuple[Requirement, ...]:
    python, folder = launch.path(spec.python), _folder(spec, launch)
    found = [Requirement("program", python, advice="set engine.python to the interpreter of SGLang's environment")]
    found.append(Requirement("module", "sglang", python, advice="pip install sglang"))
    if _is_divided(spec):
        moves, package = ("nixl", "nixl") if spec.transfer == "nixl" else ("mooncake", "mooncake-transfer-engine")
        found.append(Requirement("module", moves, python, advice=f"pip install {package}"))
    if spec.sleep_mode:
        found.append(Requirement("module", "torch_memory_saver", python, advice="pip install torch-memory-saver"))
    if folder:
        found.append(Requirement("folder", folder, need_gb=spec.disk_gib, advice="free space or set engine.disk"))
    ids = gpus_of(spec.gpus, spec.tensor_parallel, launch)
    advice = "free the GPU, or lower engine.mem_fraction_static"
    found += [Requirement("gpu", name, python, need_gb=1.0, advice=advice) for name in ids]
    return tuple(found)


def twin_kv(spec: SglangSpec, launch: Launch) -> TwinKv:
    sizes = kv_size.sizes_of(weights_of(spec, launch), spec.dtype, spec.arguments)
    dram, disk = spec.dram_gib * spec.tensor_parallel * GIB, spec.disk_gib * GIB
    held = _TIERS[spec.hicache if own_role(spec, launch) != DECODE else "none"]
    tiers = tuple(TierModel(device, dram if device is DRAM else disk) for device in held)
    return TwinKv(sizes, spec.tensor_parallel, tiers)


SGLANG = Kind(
    name="sglang",
    title="SGLang",
    spec=SglangSpec,
    ports=("http", "events", "replay", "side"),
    port_spans=lambda spec: (
        dict.fromkeys(("events", "replay"), spec.data_parallel_size) | {"side": int(_is_divided(spec))}
    ),
    command=command,
    environment=environment,
    can_sleep=lambda spec: bool(spec.sleep_mode),
    sleeping=SGLANG_SLEEP,
    health_path=READY,
    pause_path=READY,
    scrape=SGLANG_SCRAPE,
    load_timeout_s=1800,  # allows for a large model from a network disk, and compilation
    drain_timeout_s=600,
    grace_s=15,
    refuse=refuse,
    wire=wire,
    max_replicas=lambda spec: replicas_for(spec.gpus, spec.tensor_parallel),
    requires=requires,
    volume=_folder,
    image="lmsysorg/sglang:v0.5.23",
    device=NVIDIA,
    devices=lambda spec, role: spec.tensor_parallel,
    connectors=(connectors.SGLANG,),
    twin_kv=twin_kv,
)
