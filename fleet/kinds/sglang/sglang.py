"""The `sglang` kind: SGLang's server in its own Python environment, with HiCache below the GPU.

Only its command line is tested: running it takes GPUs. Hit rates, load and KV events are always on.
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
    python_option,
)
from fleet.kinds.options.option import option
from fleet.kinds.serving import NVIDIA, TOPIC, address, compact, events_at, flags, gpus_of, replicas_for, visible
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.transfer import GIB
from fleet.kinds.wire import DataParallel, KvFacts, Wire
from router.contract.metrics.engine_metrics import SGLANG_SCRAPE

_DTYPES = ("auto", "bfloat16", "float16", "float32")
_TIERS = {"none": (), "dram": (DRAM,), "disk": (DRAM, SSD)}


@dataclass(frozen=True)
class SglangSpec:
    model: str | None = model_option()
    python: str = python_option("SGLang's environment")
    gpus: tuple[str, ...] = option(
        (), title="GPUs", help="Ids, assigned to the instances in order, tensor_parallel each; empty: all are visible."
    )
    tensor_parallel: int = option(1, title="Tensor parallel", unit="GPUs", minimum=1, maximum=64, help="Per instance.")
    data_parallel_size: int = data_parallel_size_option(
        "Attention ranks within the tensor_parallel GPUs, each with its KV cache; routers choose the rank."
    )
    context_length: int | None = option(
        None,
        title="Longest request",
        unit="tokens",
        minimum=16,
        maximum=10_000_000,
        help="Prompt and output; left out: the model's limit.",
    )
    mem_fraction_static: float | None = option(
        None,
        title="GPU memory",
        kind="float",
        minimum=0.05,
        maximum=0.99,
        help="Share of each GPU's memory for weights and KV cache; left out: SGLang's choice.",
    )
    page_size: int = option(
        16,
        title="Page",
        unit="tokens",
        minimum=1,
        maximum=1024,
        help="Of a KV block. SGLang's own choice is 1: an entry of the exact index for each token.",
    )
    max_running_requests: int | None = option(
        None, title="Sequences", minimum=1, maximum=65_536, help="Concurrent requests; left out: SGLang's choice."
    )
    chunked_prefill_size: int | None = option(
        None,
        title="Prefill chunk",
        unit="tokens",
        minimum=16,
        maximum=1_048_576,
        help="More favours prefill, fewer favours decode; left out: SGLang's choice.",
    )
    dtype: str = option("auto", title="Number format", choices=_DTYPES, help="Of weights and activations.")
    load_format: str = option(
        "auto", title="Load format", help="How weights are loaded; dummy: random weights, the same in every process."
    )
    hicache: str = option(
        "none",
        title="HiCache",
        choices=tuple(_TIERS),
        help="KV below the GPU: in host memory, or there and in a folder.",
    )
    dram_gib: int = option(
        8, title="Host memory for KV", unit="GiB", minimum=1, maximum=8192, help="With hicache, for each GPU."
    )
    disk: str | None = option(
        None, title="Disk folder", kind="text", help="With hicache disk; left out: in the instance's folder."
    )
    disk_gib: float = option(
        64.0, title="Disk for KV", unit="GiB", minimum=0.01, maximum=1_048_576, help="The check requires it to be free."
    )
    write_policy: str = option(
        "write_through",
        title="Write policy",
        choices=("write_through", "write_through_selective", "write_back"),
        help="With hicache: at once, once hit again, or when the GPU evicts.",
    )
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()


def _model(spec: SglangSpec, launch: Launch) -> str:
    return launch.path(spec.model) if spec.model else launch.model


def command(spec: SglangSpec, launch: Launch) -> list[str]:
    given = {
        "model-path": _model(spec, launch),
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
        "enable-cache-report": True,  # reports the cached tokens per request, against which the index is checked
        "kv-events-config": compact(_events(launch)),
        **_hicache(spec),
    }
    return [launch.path(spec.python), "-m", "sglang.launch_server", *flags(given), *spec.arguments]


def _hicache(spec: SglangSpec) -> dict[str, object]:
    if spec.hicache == "none":
        return {}
    return {
        "enable-hierarchical-cache": True,
        "hicache-size": spec.dram_gib,
        "hicache-write-policy": spec.write_policy,
        "hicache-storage-backend": "file" if spec.hicache == "disk" else None,
    }


def _events(launch: Launch) -> dict[str, object]:
    """Return the flags of KV events: rank r publishes at the port + r. Without `bind` SGLang connects to a concrete
    address instead of listening."""
    places = {"endpoint": f"tcp://{address(launch, 'events')}", "replay_endpoint": f"tcp://{address(launch, 'replay')}"}
    return {"publisher": "zmq", **places, "bind": True, "topic": TOPIC}


def _folder(spec: SglangSpec, launch: Launch) -> str:
    if spec.hicache != "disk":
        return ""
    return launch.path(spec.disk) if spec.disk else f"{launch.folder}/kv"


def environment(spec: SglangSpec, launch: Launch) -> dict[str, str]:
    found = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1", "PYTHONFAULTHANDLER": "1"}
    if folder := _folder(spec, launch):
        found["SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"] = folder
    return found | visible(gpus_of(spec.gpus, spec.tensor_parallel, launch)) | dict(spec.environment or {})


def wire(spec: SglangSpec, launch: Launch) -> Wire:
    """Return the facts for routers. Attention ranks compute each layer's other parts together, so they wait for each
    other in every step."""
    ranks = spec.data_parallel_size
    return Wire(
        kv=KvFacts(bytes_per_token=kv_size.of_model(_model(spec, launch), spec.dtype, spec.arguments)),
        events=events_at(launch),
        tokenizer=_model(spec, launch),
        dp=DataParallel(ranks, together=launch.instance) if ranks > 1 else DataParallel(),
    )


def refuse(spec: SglangSpec) -> dict[str, str]:
    problems = {
        "tensor_parallel": spec.tensor_parallel % spec.data_parallel_size
        and f"must be a multiple of data_parallel_size, {spec.data_parallel_size}",
        "disk": spec.disk and spec.hicache != "disk" and "needs hicache disk",
    }
    return {name: str(problem) for name, problem in problems.items() if problem}


def requires(spec: SglangSpec, launch: Launch) -> tuple[Requirement, ...]:
    python, folder = launch.path(spec.python), _folder(spec, launch)
    found = [Requirement("program", python, advice="set engine.python to the interpreter of SGLang's environment")]
    found.append(Requirement("module", "sglang", python, advice="pip install sglang"))
    if folder:
        found.append(Requirement("folder", folder, need_gb=spec.disk_gib, advice="free space or set engine.disk"))
    ids = gpus_of(spec.gpus, spec.tensor_parallel, launch)
    advice = "free the GPU, or lower engine.mem_fraction_static"
    found += [Requirement("gpu", name, python, need_gb=1.0, advice=advice) for name in ids]
    return tuple(found)


def twin_kv(spec: SglangSpec, launch: Launch) -> TwinKv:
    sizes = kv_size.sizes_of(_model(spec, launch), spec.dtype, spec.arguments)
    dram, disk = spec.dram_gib * spec.tensor_parallel * GIB, spec.disk_gib * GIB
    tiers = tuple(TierModel(device, dram if device is DRAM else disk) for device in _TIERS[spec.hicache])
    return TwinKv(sizes, spec.tensor_parallel, tiers)


SGLANG = Kind(
    name="sglang",
    title="SGLang",
    spec=SglangSpec,
    ports=("http", "events", "replay"),
    port_spans=lambda spec: dict.fromkeys(("events", "replay"), spec.data_parallel_size),
    command=command,
    environment=environment,
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
    twin_kv=twin_kv,
)
