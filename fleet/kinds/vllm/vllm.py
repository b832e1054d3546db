"""The `vllm` kind: vLLM's OpenAI server in its own Python environment, with any KV transfer."""

from collections.abc import Mapping

from fleet.engine.engine_model import EngineModel
from fleet.engine.law import law_of
from fleet.engine.profiles import UnknownProfile, kv_blocks, profile_by, read
from fleet.engine.scheduler import Limits
from fleet.engine.tiers.devices import DRAM, SSD, SSD_GDS, TierDevice
from fleet.engine.tiers.model import TierModel
from fleet.kinds import data_parallel, kv_size, transfer
from fleet.kinds.kind import PAUSE_PATH, Kind, Launch, Requirement, TwinModel
from fleet.kinds.kv_size import heads_of, sizes_of
from fleet.kinds.options.common_options import adapter_slots, refuse_loras
from fleet.kinds.serving import (
    BOTH,
    NVIDIA,
    address,
    base_url,
    compact,
    events_at,
    events_config,
    flags,
    gpus_of,
    own_role,
    replicas_for,
    tokenizer_of,
    visible,
    weights_of,
)
from fleet.kinds.sim.twin_kv import TwinKv
from fleet.kinds.transfer import GIB, modes, rank_0
from fleet.kinds.vllm.vllm_spec import VllmSpec
from fleet.kinds.wire import KvFacts, KvWire
from router.contract.connectors import MOONCAKE_P2P, MOONCAKE_STORE, NIXL
from router.contract.metrics.engine_metrics import VLLM_SCRAPE
from router.contract.net import engine_key
from router.contract.values.json_value import JsonObject

_CUDA_ONLY = ("mooncake-p2p", "offload-dram", "offload-ssd", "lmcache-dram", "lmcache-disk", "lmcache-gds")
STORE = "mooncake-store"
_SERVERS = ("--api-server-count", "--api_server_count", "-asc")
_LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's parser refuses other ranks


def command(spec: VllmSpec, launch: Launch) -> list[str]:
    given = {
        "host": launch.host,
        "port": launch.ports["http"],
        "served-model-name": launch.model,
        "tensor-parallel-size": spec.tensor_parallel,
        **_data_parallel(spec, launch),
        "max-model-len": spec.max_model_len,
        "gpu-memory-utilization": spec.gpu_memory_utilization if spec.device == "cuda" else None,
        "dtype": spec.dtype,
        "load-format": spec.load_format,
        "block-size": spec.block_size,
        "max-num-seqs": spec.max_num_seqs,
        "max-num-batched-tokens": spec.max_num_batched_tokens,
        "enable-prefix-caching": spec.prefix_caching,
        "enable-chunked-prefill": spec.chunked_prefill,
        "enable-prompt-tokens-details": True,  # reports the cached tokens per request, for hit rates and receipts
        "api-server-count": spec.api_server_count,
    }
    if spec.enable_lora:
        given |= {
            "enable-lora": True,
            "max-loras": spec.max_loras,
            "max-cpu-loras": spec.max_cpu_loras,
            "max-lora-rank": spec.max_lora_rank,
        }
    argv = [launch.path(spec.python), "-m", *_server(spec, launch), *flags(given)]
    if spec.sleep_mode:
        argv.append("--enable-sleep-mode")
    if spec.kv_events:
        argv += ["--kv-events-config", compact(_events(spec, launch))]
    connector = transfer.made(spec, launch).connector
    if connector:
        argv += ["--kv-transfer-config", compact(connector)]
    return [*argv, *spec.arguments]


def _server(spec: VllmSpec, launch: Launch) -> tuple[str, ...]:
    """Return the command `vllm serve`, which is needed to start several API servers. It requires a distribution named
    vllm, whereas CPU builds have another name."""
    if spec.device == "cpu":
        return ("vllm.entrypoints.openai.api_server", "--model", weights_of(spec, launch))
    return ("vllm.entrypoints.cli.main", "serve", weights_of(spec, launch))


def _data_parallel(spec: VllmSpec, launch: Launch) -> dict[str, object]:
    """Return the flags for data parallelism. Every start gets a separate RPC port, because vLLM's default would be the
    same for all engines of a host."""
    if spec.data_parallel_size == 1:
        return {}
    given: dict[str, object] = {"data-parallel-size": spec.data_parallel_size}
    if not data_parallel.is_shared(spec):
        return given | {"data-parallel-rpc-port": launch.ports["rpc"]}
    leader = data_parallel.leader(spec, launch.ordinal)
    name = launch.sibling(leader) if leader is not None else ""
    place = launch.peers.get(name, f"<address of {name}>:<rpc port>") if name else address(launch, "rpc")
    host, _, port = place.rpartition(":")
    return given | {
        "data-parallel-size-local": data_parallel.local(spec),
        "data-parallel-start-rank": data_parallel.first(spec, launch.ordinal),
        "data-parallel-address": host,
        "data-parallel-rpc-port": port,
        "data-parallel-hybrid-lb": True,
    }


def _events_place(spec: VllmSpec, launch: Launch) -> str:
    """Return the address of KV events for routers, because only newer vLLM versions report it by GET /kv_event_sources
    (0.20 does not). If a group spans instances, the engine is asked, because vLLM versions number its ranks
    differently.
    """
    if data_parallel.first(spec, launch.ordinal):
        return base_url(launch)
    return events_at(launch)


def _events(spec: VllmSpec, launch: Launch) -> JsonObject:
    live, replay = (rank_0(launch.ports[name], spec, launch) for name in ("events", "replay"))
    return events_config(launch.host, live, replay)


def environment(spec: VllmSpec, launch: Launch) -> dict[str, str]:
    # Only the engine's own modules may be imported, because it is started in the folder that contains Weir's. The fault
    # handler logs what ended a process in native code.
    found = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1", "PYTHONFAULTHANDLER": "1", "VLLM_NO_USAGE_STATS": "1"}
    if spec.device == "cpu":
        found["VLLM_CPU_KVCACHE_SPACE"] = str(spec.cpu_kv_gib)
    if spec.sleep_mode:
        found["VLLM_SERVER_DEV_MODE"] = "1"  # enables POST /sleep
    if spec.enable_lora:
        found["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"  # enables POST /v1/load_lora_adapter
    found |= visible(gpus_of(spec.gpus, _gpus(spec), launch))
    return found | transfer.made(spec, launch).environment | dict(spec.environment or {})


def _gpus(spec: VllmSpec) -> int:
    return spec.tensor_parallel * data_parallel.local(spec)


def files(spec: VllmSpec, launch: Launch) -> dict[str, str]:
    return transfer.made(spec, launch).files


def wire(spec: VllmSpec, launch: Launch) -> KvWire:
    moved, model = transfer.made(spec, launch), weights_of(spec, launch)
    return KvWire(
        role=own_role(spec, launch),
        connector=moved.routed_as,
        kv=KvFacts(
            moved.bootstrap,
            kv_size.of_model(model, spec.dtype, spec.arguments),
            shares_store=moved.shares_store,
            takes_lent=spec.lend_s > 0,
        ),
        events=_events_place(spec, launch) if spec.kv_events else "",
        tokenizer=tokenizer_of(spec, launch, "--tokenizer", _OTHER_PROMPTS, weights_of(spec, launch)),
        dp=data_parallel.published(spec, launch, moe=kv_size.is_moe(model)),
    )


# Extra arguments that make prompts differ from those that the tokenizer's folder implies.
_OTHER_PROMPTS = (
    *("--chat-template", "--chat-template-content-format", "--default-chat-template-kwargs"),
    *("--exclude-tools-when-tool-choice-none", "--reasoning-effort-map", "--anthropic-disabled-thinking-effort"),
)


def requires(spec: VllmSpec, launch: Launch) -> tuple[Requirement, ...]:
    python, moved = launch.path(spec.python), transfer.made(spec, launch)
    modules = ("vllm", *moved.modules)
    found = [Requirement("program", python, advice="set engine.python to the interpreter of vLLM's environment")]
    found += [Requirement("module", name, python, advice=_INSTALL.get(name, f"pip install {name}")) for name in modules]
    if spec.model and launch.path(spec.model).startswith("/"):
        found.append(Requirement("folder", launch.path(spec.model), advice="set engine.model to the model's folder"))
    if moved.volume:
        found.append(Requirement("folder", moved.volume, need_gb=spec.disk_gib, advice="free space or set engine.disk"))
    ids = gpus_of(spec.gpus, _gpus(spec), launch) if spec.device == "cuda" else ()
    advice = "free the GPU, or lower engine.gpu_memory_utilization"
    found += [Requirement("gpu", name, python, need_gb=1.0, advice=advice) for name in ids]
    return tuple(found)


_INSTALL = {
    "vllm": "pip install vllm (without a GPU: make engines)",
    "mooncake": "pip install mooncake-transfer-engine (without a GPU: …-non-cuda)",
}


def refuse(spec: VllmSpec) -> dict[str, str]:
    problems = {
        "kv": _cuda_problem(spec) if spec.device == "cpu" else "",
        "sleep_mode": spec.device == "cpu" and spec.sleep_mode and "needs the device cuda",
        "gpus": spec.device == "cpu" and spec.gpus and "needs the device cuda",
        "master": _master_problem(spec),
        "api_server_count": _servers_problem(spec),
        **refuse_loras(spec),
        "max_lora_rank": _lora_rank_problem(spec),
        "lend_s": spec.lend_s and "nixl" not in modes(spec) and "must be 0 unless kv has nixl, which lends blocks",
        "store_pool": spec.store_pool and STORE not in modes(spec) and "needs kv mooncake-store",
        "prefill_instances": spec.prefill_instances
        and spec.role != BOTH
        and "needs the role both: prefill_instances assigns the roles",
        "data_parallel_size": _ranks_problem(spec),
        "profile": _profile_problem(spec),
    }
    return {name: str(problem) for name, problem in problems.items() if problem} | data_parallel.refuse(spec)


def _servers_problem(spec: VllmSpec) -> str:
    if (spec.api_server_count or 1) == 1 and not any(word.startswith(_SERVERS) for word in spec.arguments):
        return ""
    if spec.enable_lora:
        return "must be 1 with enable_lora: each process would have its own list of adapters"
    return "" if spec.device == "cuda" else "must be 1 with the device cpu: its builds are started without vllm serve"


def _lora_rank_problem(spec: VllmSpec) -> str:
    if not spec.enable_lora or spec.max_lora_rank in _LORA_RANKS:
        return ""
    return f"must be a rank that vLLM takes; allowed: {', '.join(map(str, _LORA_RANKS))}"


def _cuda_problem(spec: VllmSpec) -> str:
    need = [mode for mode in modes(spec) if mode in _CUDA_ONLY]
    return f"{' and '.join(need)} needs the device cuda" if need else ""


def _profile_problem(spec: VllmSpec) -> str:
    if not spec.profile:
        return ""
    try:
        made = read(spec.profile)
        profile_by(made)
    except UnknownProfile as error:
        return str(error)
    dp = spec.data_parallel_size if made.has_experts else 1
    if (made.tp, made.dp) == (spec.tensor_parallel, dp):
        return ""
    return f"is one of {made.layout}; the pool has tp {spec.tensor_parallel}, dp {spec.data_parallel_size}"


def _ranks_problem(spec: VllmSpec) -> str:
    if spec.data_parallel_size > 1 and STORE in modes(spec):
        return "must be 1 with kv mooncake-store: every rank would listen on the same lookup_rpc_port"
    if data_parallel.is_shared(spec) and spec.prefill_instances:
        return "must be data_parallel_size_local with prefill_instances: a group has one role"
    return ""


def _master_problem(spec: VllmSpec) -> str:
    if STORE in modes(spec):
        return "" if spec.master else "must name the pool of the Mooncake master for kv mooncake-store"
    return "needs kv mooncake-store" if spec.master else ""


def refuse_for(spec: VllmSpec, model: str) -> dict[str, str]:
    """Return the conflicting options: each GPU of an instance must compute an equal number of attention heads."""
    size, gpus, heads = spec.tensor_parallel, len(spec.gpus), heads_of(spec.model or model)
    ranks = data_parallel.local(spec)
    if gpus and size * ranks > gpus:
        if size > gpus // ranks > 0 or ranks == 1:
            allowed = f"1 to {gpus // ranks}"
            return {"tensor_parallel": f"must not be more than the ids in gpus{_each(ranks)}; allowed: {allowed}"}
        return {"data_parallel_size": f"must not be more than the ids in gpus; allowed: 1 to {gpus // size}"}
    if heads and heads % size:
        allowed = ", ".join(str(each) for each in range(1, min(heads, 64) + 1) if heads % each == 0)
        rule = f"must divide the {heads} attention heads of {spec.model or model}"
        return {"tensor_parallel": f"{rule}; allowed: {allowed}"}
    return {}


def _each(ranks: int) -> str:
    return f" for each of {ranks} ranks" if ranks > 1 else ""


def needs(spec: VllmSpec) -> tuple[str, ...]:
    return tuple(name for name in (spec.master, spec.store_pool) if name)


def twin_kv(spec: VllmSpec, launch: Launch) -> TwinKv:
    sizes = sizes_of(weights_of(spec, launch), spec.dtype, spec.arguments)
    dram, disk = spec.dram_gib * GIB, spec.disk_gib * GIB
    devices = next((_TIERS[mode] for mode in modes(spec) if mode in _TIERS), ())
    tiers = tuple(TierModel(device, dram if device is DRAM else disk) for device in devices)
    provides = STORE in modes(spec) and spec.store_pool is None
    return TwinKv(sizes, spec.tensor_parallel, tiers, spec.store_dram_mb * 1e6 if provides else 0.0, spec.lend_s)


BLOCK_SIZE = 16
LARGE_GPU = 70 * GIB  # memory above which vLLM uses larger batches, except on an A100
LARGE, SMALL = (1024, 8192), (256, 2048)  # default sequences and tokens per step


def twin_model(spec: VllmSpec, launch: Launch) -> TwinModel:
    """Return the twin's model by the pool's profile. Raise UnknownProfile."""
    of, kv, where = profile_by(read(spec.profile or "")), twin_kv(spec, launch), wire(spec, launch)
    seqs, tokens = LARGE if of.peak.memory >= LARGE_GPU and not of.gpu.startswith("a100") else SMALL
    seqs, tokens = spec.max_num_seqs or seqs, spec.max_num_batched_tokens or tokens
    size = spec.block_size or BLOCK_SIZE
    blocks = kv_blocks(of, size, spec.gpu_memory_utilization, sequences=seqs, step_tokens=tokens)
    engine = EngineModel(
        law=law_of(of),
        kv_blocks=blocks,
        limits=Limits(size, seqs, tokens, async_scheduling=of.is_async),
        window=min(spec.max_model_len or blocks * size, blocks * size),
        kv_events=bool(where.events),
        role=where.role,
        connector=where.connector,
        pair=where.kv.pair,
        tiers=kv.below(),
        transfers=kv.transfers(where.connector),
    )
    return TwinModel(engine, of.about, of.doubts, family=of.family)


_TIERS: Mapping[str, tuple[TierDevice, ...]] = {
    "offload-dram": (DRAM,),
    "offload-ssd": (DRAM, SSD),
    "lmcache-dram": (DRAM,),
    "lmcache-disk": (DRAM, SSD),
    "lmcache-gds": (SSD_GDS,),
    "example-disk": (SSD,),
}


VLLM = Kind(
    name="vllm",
    title="vLLM",
    spec=VllmSpec,
    ports=("http", "events", "replay", "side", "rpc"),
    port_spans=lambda spec: (
        data_parallel.spans(spec, ("events", "replay", "side")) | {"rpc": spec.data_parallel_size > 1}
    ),
    free_options=("profile",),
    later_options=(
        *data_parallel.OPTIONS,
        "enable_lora",
        "max_loras",
        "max_cpu_loras",
        "max_lora_rank",
        "api_server_count",
        "engine_key",
        "lend_s",
    ),
    key_variable=engine_key.VARIABLE,
    pair=lambda spec, ordinal: data_parallel.leader(spec, ordinal),
    pair_port="rpc",
    group=lambda spec, ordinal: data_parallel.group(spec, ordinal),
    command=command,
    environment=environment,
    scrape=VLLM_SCRAPE,
    load_timeout_s=1800,  # allows for a large model from a network disk, and compilation
    drain_timeout_s=600,
    grace_s=15,
    refuse=refuse,
    refuse_for=refuse_for,
    needs=needs,
    can_sleep=lambda spec: bool(spec.sleep_mode),
    pause_path=PAUSE_PATH,
    adapter_slots=adapter_slots,
    wire=wire,
    max_replicas=lambda spec: replicas_for(spec.gpus, _gpus(spec)),
    numbered=lambda spec: bool(spec.prefill_instances) or data_parallel.is_shared(spec),
    files=files,
    requires=requires,
    volume=lambda spec, launch: transfer.made(spec, launch).volume,
    metrics_folder=lambda spec, launch: transfer.made(spec, launch).metrics_folder,
    image="vllm/vllm-openai:v0.32.0",
    device=NVIDIA,
    devices=lambda spec, role: _gpus(spec) if spec.device == "cuda" else 0,
    connectors=(NIXL, MOONCAKE_P2P, MOONCAKE_STORE),
    twin_kv=twin_kv,
    twin_model=twin_model,
    has_law=lambda spec: bool(spec.profile),
)
