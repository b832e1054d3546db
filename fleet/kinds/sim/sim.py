"""The `sim` kind: vLLM's HTTP API over a model of the engine (fleet/simengine), for any machine without a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.engine import profiles
from fleet.engine.dwdp.machine import GPUS as CONTEXT_GPUS
from fleet.engine.dwdp.mixtures import MOES
from fleet.engine.profiles import Profile
from fleet.engine.tiers.devices import DRIVE_BYTES_PER_S, DRIVES
from fleet.kinds import data_parallel
from fleet.kinds.kind import Hardware, Kind, Launch, TwinModel
from fleet.kinds.options.common_options import (
    STARTED_WITH_KEY,
    WEIR_IMAGE,
    adapter_slots,
    data_parallel_size_local_option,
    data_parallel_size_option,
    enable_lora_option,
    engine_key_option,
    image_option,
    max_cpu_loras_option,
    max_loras_option,
    refuse_loras,
)
from fleet.kinds.options.option import option
from fleet.kinds.serving import PREFILL, base_url, flags, own_role, pair_of
from fleet.kinds.wire import KvFacts, KvWire
from fleet.simengine import generation
from fleet.simengine.arguments import (
    CONTEXT_SERVERS,
    ONE_ENGINE,
    SGL,
    SSD_ACCESS,
    SSD_METADATA,
    TIER_LAWS,
    TIER_LOADS,
    TIER_WRITES,
    SimOptions,
)
from fleet.simengine.model import context_ranks, gpus_of, machine_of, model_of, served_by
from router.contract.connectors import CONNECTOR_CHOICES, CONNECTORS, MOONCAKE_STORE, NEURON, NIXL, NONE, SGLANG, TRTLLM
from router.contract.metrics.engine_metrics import VLLM_SCRAPE
from router.contract.net import engine_key
from router.contract.redis.published import DataParallel

GPUS = tuple(profiles.GPUS)
MODEL_PROFILES = profiles.model_names()
XPYD, FIXED = "xPyD", "1P1D"


@dataclass(frozen=True)
class SimSpec:
    gpu: str = option("h100_sxm", "GPU", "GPU whose step times are simulated.", choices=GPUS)
    model_profile: str = option(
        "Llama-3.1-8B", "Model profile", "Model whose step times are simulated.", choices=MODEL_PROFILES
    )
    tp: int | None = option(
        None,
        "Tensor parallel",
        "GPUs per instance: 1, 2, 4 or 8; left out: the smallest number that the model was fitted for or fits on.",
        unit="GPUs",
        range=(1, 64),
    )
    expert_parallel: bool = option(
        False,
        "Expert parallel",
        "Whole experts are dealt among the GPUs of all ranks; off: every GPU has a slice of each expert.",
    )
    profile: str | None = option(
        None,
        "Made profile",
        "A profile as JSON, as weir profile --json prints it, instead of GPU, model and parallelism above.",
        kind="text",
    )
    context_servers: str = option(
        ONE_ENGINE,
        "Context servers",
        "dep, dwdp: the model and GPU below instead of those above; prefill instances are groups of "
        "prefill_tp GPUs that share the experts, and those of dwdp have a rank for each GPU. With kv trtllm.",
        choices=CONTEXT_SERVERS,
    )
    context_model: str = option(next(iter(MOES)), "Model of the groups", "With context servers.", choices=tuple(MOES))
    context_gpu: str = option(
        next(iter(CONTEXT_GPUS)), "GPU of the groups", "With context servers.", choices=tuple(CONTEXT_GPUS)
    )
    context_hot_experts: float = option(
        0.0,
        "Hot experts",
        "With context servers dep: Zipf exponent of the router's choice, for which a group waits; 0: uniform.",
        range=(0.0, 3.0),
    )
    data_parallel_size: int = data_parallel_size_option(
        "Engines behind one address, each with its own KV cache; routers choose the rank. 1 unless kv is none."
    )
    data_parallel_size_local: int | None = data_parallel_size_local_option()
    time_scale: float = option(1.0, "Time scale", "10: ten times faster than real time.", range=(0.01, 1000))
    seed: int = option(1, "Seed", "Seed of output lengths and texts.", range=(0, 2**31 - 1))
    kv_blocks: int | None = option(
        None,
        "KV blocks",
        "Size of the KV cache; left out: what fits on the GPU next to the model.",
        unit="blocks",
        range=(16, 10_000_000),
    )
    block_size: int = option(16, "Block size", "Tokens in a KV block.", unit="tokens", range=(1, 1024))
    max_model_len: int = option(131_072, "Longest request", "Prompt and output.", unit="tokens", range=(16, 10_000_000))
    max_num_seqs: int = option(256, "Sequences", "Concurrent sequences.", range=(1, 65_536))
    max_num_batched_tokens: int = option(
        8192, "Batched tokens", "Per engine step.", unit="tokens", range=(16, 1_048_576)
    )
    kv: str = option(
        NONE,
        "KV connector",
        "How KV blocks move between instances: as with this connector of real engines.",
        choices=CONNECTOR_CHOICES,
    )
    prefill_instances: int = option(
        0,
        "Prefill instances",
        "This many instances, the first of the pool, only prefill and the others only decode; 0: each does both.",
        range=(0, 512),
    )
    pairs: str = option(
        XPYD,
        "Pairs",
        "With kv neuron: each decoder takes KV from any prefill instance (xPyD), or from one of its own (1P1D).",
        choices=(XPYD, FIXED),
    )
    etcd: str | None = option(
        None,
        "etcd",
        "host:port where the instances register as workers, with kv neuron and xPyD; left out: nowhere.",
        kind="text",
    )
    prefill_tp: int | None = option(
        None, "Tensor parallel of prefill", "GPUs per prefill instance; left out: tp.", unit="GPUs", range=(1, 64)
    )
    prefill_max_num_seqs: int | None = option(
        None,
        "Sequences of prefill",
        "Limit of a prefill instance, those whose KV is in transfer included with kv neuron; left out: max_num_seqs.",
        range=(1, 65_536),
    )
    kv_setup_ms: float = option(
        5.0, "Setup of a transfer", "Time that any KV transfer takes, however small.", unit="ms", range=(0, 60_000)
    )
    kv_gb_per_s: float = option(
        9.7,
        "Transfer rate, idle",
        "While the sender computes nothing; concurrent transfers share it.",
        unit="GB/s",
        range=(0.001, 10_000),
    )
    kv_busy_gb_per_s: float = option(
        3.0, "Transfer rate, busy", "While the sender computes.", unit="GB/s", range=(0.001, 10_000)
    )
    kv_hold_s: float = option(
        480.0,
        "Hold time of blocks",
        "Blocks that are not pulled are freed after this time.",
        unit="s",
        range=(0.1, 86_400),
    )
    kv_lend_s: float = option(
        0.0,
        "Lending",
        "Decoders keep an answer's blocks this long, for the prefill of the session's next turn; 0: not. With nixl.",
        unit="s",
        range=(0, 86_400),
    )
    kv_connect_ms: float = option(
        0.0,
        "First contact",
        "Added to the first transfer between two instances: buffers are made then.",
        unit="ms",
        range=(0, 60_000),
    )
    store_pool: str | None = option(
        None, "Store pool", "Pool of the kind sim-store that the instances share; with kv mooncake_store.", kind="text"
    )
    dram_gb: float = option(
        0.0,
        "Host memory for KV",
        "Per instance, for KV blocks that leave the GPU. 0: none.",
        unit="GB",
        range=(0, 1_000_000),
    )
    ssd_gb: float = option(
        0.0,
        "Drives for KV",
        "Per instance, for KV blocks that leave the GPU. 0: none.",
        unit="GB",
        range=(0, 10_000_000),
    )
    ssd_access: str = option(
        SSD_ACCESS[0],
        "Access to the drives",
        "ssd: through host memory, as LMCache; ssd-gds: GPUDirect Storage; ssd-tutti: by the GPU, layer by layer.",
        choices=SSD_ACCESS,
    )
    ssd_drives: int = option(DRIVES, "Drives of an instance", "They read and write beside each other.", range=(1, 64))
    ssd_read_gb_s: float = option(
        DRIVE_BYTES_PER_S / 1e9,
        "Reads of a drive",
        "By default, of one D7-PS1010. Writes are in proportion, but no faster than the CPU controls them.",
        unit="GB/s",
        range=(0.001, 1_000),
    )
    ssd_metadata: str = option(
        SGL,
        "Commands to the drives",
        "For ssd-tutti. sgl: one for each object; prp: one for each page of 4 KiB.",
        choices=SSD_METADATA,
    )
    tier_write: str = option(
        TIER_WRITES[0],
        "Writing to tiers",
        "through: every computed block; evict: what the GPU evicts; second_use: what is used twice.",
        choices=TIER_WRITES,
    )
    tier_promote_hits: int = option(
        1,
        "Promotion after",
        "Hits on the drives after which a block is copied to host memory; 0: never.",
        unit="hits",
        range=(0, 1000),
    )
    tier_prefetch: bool = option(
        False, "Prefetch", "Blocks are read from the drives to host memory while their request waits."
    )
    tier_load: str = option(
        TIER_LOADS[0],
        "Loading from tiers",
        "if_faster: only what takes longer to compute; always: whatever a tier holds.",
        choices=TIER_LOADS,
    )
    tier_law: str = option(
        TIER_LAWS[0],
        "Steps beside tiers",
        "published: with Tutti's fitted constants, attention x 1.6 and at least 217 ms for a load by layers.",
        choices=TIER_LAWS,
    )
    dram_gb_per_s: float | None = option(
        None,
        "Reads from host memory",
        "Left out: 50, the link's.",
        unit="GB/s",
        range=(0.001, 10_000),
    )
    dram_layer_ms: float | None = option(
        None,
        "Set-up of a layer, host memory",
        "Left out: 0; with tier_law published and no rate of reads, 4.15.",
        unit="ms",
        range=(0, 1_000),
    )
    enable_lora: bool = enable_lora_option()
    max_loras: int = max_loras_option()
    max_cpu_loras: int | None = max_cpu_loras_option()
    image: str | None = image_option()
    engine_key: str | None = engine_key_option(STARTED_WITH_KEY)


_ALWAYS = ("time_scale", "seed", "block_size", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
_UNLESS_DEFAULT = (
    *("expert_parallel", "profile", "context_servers", "context_model", "context_gpu", "context_hot_experts"),
    *("kv_blocks", "tp", "etcd", "kv_lend_s", "kv_connect_ms"),
)
_OF_MOVES = ("kv", "kv_setup_ms", "kv_gb_per_s", "kv_busy_gb_per_s", "kv_hold_s")
_OF_TIERS = ("dram_gb", "ssd_gb", "ssd_access", "tier_write", "tier_promote_hits", "tier_prefetch", "tier_load")
_TIER_DETAILS = ("tier_law", "dram_gb_per_s", "dram_layer_ms", "ssd_drives", "ssd_read_gb_s", "ssd_metadata")


def command(spec: SimSpec, launch: Launch) -> list[str]:
    spec = _of_role(spec, own_role(spec, launch))
    store = launch.peers.get(spec.store_pool or "", f"<address of {spec.store_pool}>")
    given = {
        "host": launch.host,
        "port": launch.ports["http"],
        "events-port": launch.ports["events"],
        "replay-port": launch.ports["replay"],
        "model": launch.model,
        **_given(spec, () if _has_groups(spec) else ("gpu", "model_profile")),
        **_given(spec, _ALWAYS),
        **_changed(spec, _UNLESS_DEFAULT),
        **_data_parallel(spec, launch),
        **(_given(spec, _OF_MOVES) | {"role": own_role(spec, launch)} if spec.kv != NONE else {}),
        "kv-store": f"http://{store}" if spec.store_pool is not None else None,
        "kv-peer": _peer(spec, launch),
        **(_given(spec, _OF_TIERS) | _changed(spec, _TIER_DETAILS) if spec.dram_gb or spec.ssd_gb else {}),
        **(_given(spec, ("max_loras", "max_cpu_loras")) if spec.enable_lora else {}),
    }
    return [launch.python, "-m", "fleet.simengine", *flags(given)]


def _given(spec: SimSpec, names: Sequence[str]) -> dict[str, object]:
    return {name.replace("_", "-"): getattr(spec, name) for name in names}


def _changed(spec: SimSpec, names: Sequence[str]) -> dict[str, object]:
    """Return the flags of options that differ from their defaults."""
    default = SimSpec()
    return _given(spec, [name for name in names if getattr(spec, name) != getattr(default, name)])


def _data_parallel(spec: SimSpec, launch: Launch) -> dict[str, object]:
    if spec.data_parallel_size == 1:
        return {}
    first = data_parallel.first(spec, launch.ordinal)
    group = spec.data_parallel_size if data_parallel.is_shared(spec) else None
    return {
        "data-parallel-size": data_parallel.local(spec),
        "data-parallel-start-rank": first or None,
        "data-parallel-group": group,
    }


def _of_role(spec: SimSpec, role: str) -> SimSpec:
    """Return the spec with the parallelism and batch size of the role."""
    if role != PREFILL:
        return spec
    seqs = spec.prefill_max_num_seqs or spec.max_num_seqs
    return replace(spec, tp=spec.prefill_tp or spec.tp, max_num_seqs=seqs)


def port_spans(spec: SimSpec) -> dict[str, int]:
    """Return the number of ports for each use: a rank publishes on the first port plus its index. Decoders of DWDP
    groups get the same number, and use one.
    """
    uses = ("events", "replay")
    if not _has_groups(spec):
        return data_parallel.spans(spec, uses)
    return dict.fromkeys(uses, context_ranks(_options(_of_role(spec, PREFILL)), PREFILL))


def pair(spec: SimSpec, ordinal: int) -> int | None:
    return pair_of(spec.prefill_instances, ordinal) if spec.pairs == FIXED else None


def _paired_with(spec: SimSpec, launch: Launch) -> str:
    """Return the prefill instance of a decoder; empty if any prefill instance is suitable, or if the instance is not a
    decoder.
    """
    other = pair(spec, launch.ordinal)
    return "" if other is None else launch.sibling(other)


def _peer(spec: SimSpec, launch: Launch) -> str | None:
    name = _paired_with(spec, launch)
    return launch.peers.get(name, f"<address of {name}>") if name else None


def profile_of(spec: SimSpec, tp: int | None = None) -> Profile:
    """Return the profile. `tp` is the tensor-parallel size of the instance's role, if the role has one. Raise
    UnknownProfile."""
    return served_by(_options(replace(spec, tp=tp or spec.tp)))


def _has_groups(spec: SimSpec) -> bool:
    """Return whether the prefill instances are context servers of DEP or DWDP."""
    return spec.context_servers != ONE_ENGINE


def _options(spec: SimSpec) -> SimOptions:
    names = SimOptions.__dataclass_fields__.keys() - {"data_parallel_group"}
    return SimOptions(data_parallel_group=spec.data_parallel_size, **{name: getattr(spec, name) for name in names})


def twin_model(spec: SimSpec, launch: Launch) -> TwinModel:
    spec = _of_role(spec, own_role(spec, launch))
    engine = replace(model_of(_options(spec), own_role(spec, launch)), pair=_paired_with(spec, launch))
    if _has_groups(spec):
        about = machine_of(_options(spec)).about
        return TwinModel(engine, f"{about}; context servers: {spec.context_servers}", transferred=True)
    known = profile_of(spec)
    return TwinModel(engine, known.about, known.doubts, known.transferred != "", known.family)


def hardware(spec: SimSpec, role: str) -> Hardware:
    """Return the GPUs that the instance simulates."""
    options, ranks = _options(_of_role(spec, role)), data_parallel.local(spec)
    if _has_groups(spec):
        return Hardware(gpus_of(options, role))
    return Hardware(served_by(options).tp * ranks, spec.dram_gb * ranks, spec.ssd_gb * ranks)


def wire(spec: SimSpec, launch: Launch) -> KvWire:
    url = base_url(launch)
    if spec.kv == NONE or (spec.kv in (NEURON, SGLANG) and not spec.prefill_instances):
        dp = data_parallel.published(spec, launch, moe=profile_of(spec).has_experts)
        return KvWire(own_role(spec, launch), events=url, tokenizer="sim", dp=dp)
    kv = KvFacts(
        bootstrap=url if CONNECTORS[spec.kv].needs_bootstrap else "",
        bytes_per_token=(
            MOES[spec.context_model].kv_bytes if _has_groups(spec) else profile_of(spec).sizes.kv_bytes_per_token
        ),
        etcd=spec.etcd or "",
        pair=_paired_with(spec, launch),
        takes_lent=spec.kv_lend_s > 0,
    )
    ranks = context_ranks(_options(_of_role(spec, own_role(spec, launch))), own_role(spec, launch))
    return KvWire(own_role(spec, launch), spec.kv, kv, url, "sim", dp=DataParallel(ranks))


def refuse(spec: SimSpec) -> dict[str, str]:
    """Return the conflicting options: the model must fit on the GPUs, and roles require a connector."""
    if (spec.kv == MOONCAKE_STORE) != (spec.store_pool is not None):
        return {"store_pool": f"must name a pool of the kind sim-store when kv is {MOONCAKE_STORE}, and only then"}
    if spec.kv == NONE and spec.prefill_instances:
        allowed = ", ".join(CONNECTORS)
        return {"prefill_instances": f"must be 0 when kv is none, as KV cannot move then; allowed kv: {allowed}"}
    if spec.kv_lend_s and spec.kv != NIXL:
        return {"kv_lend_s": f"must be 0 unless kv is {NIXL}, which lends blocks"}
    if spec.tier_prefetch and not (spec.dram_gb and spec.ssd_gb):
        return {
            "tier_prefetch": "must be false unless dram_gb and ssd_gb are more than 0: it reads from one to the other"
        }
    if spec.ssd_metadata != SGL and spec.ssd_access != SSD_ACCESS[0]:
        return {"ssd_metadata": f"must be {SGL} unless ssd_access is {SSD_ACCESS[0]}: the CPU uses other commands"}
    if spec.data_parallel_size > 1 and spec.kv != NONE:
        return {"data_parallel_size": "must be 1 unless kv is none: simulated ranks move no KV"}
    if spec.data_parallel_size > 1 and spec.enable_lora:
        return {"enable_lora": "must be false unless data_parallel_size is 1: simulated ranks share no adapters"}
    return (
        data_parallel.refuse(spec)
        or _refuse_groups(spec)
        or _refuse_neuron(spec)
        or _refuse_profiles(spec)
        or refuse_loras(spec)
    )


def _refuse_groups(spec: SimSpec) -> dict[str, str]:
    if not _has_groups(spec):
        return {}
    if spec.kv != TRTLLM or not spec.prefill_instances:
        allowed = f"{ONE_ENGINE} unless kv is {TRTLLM} and prefill_instances at least 1"
        return {"context_servers": f"must be {allowed}: the groups compute prompts, other instances answer"}
    if spec.profile or spec.dram_gb or spec.ssd_gb or spec.enable_lora:
        name = next(one for one in ("profile", "dram_gb", "ssd_gb", "enable_lora") if getattr(spec, one))
        return {name: f"must be left out unless context_servers is {ONE_ENGINE}: groups have no such part"}
    for name, ordinal in (("tp", spec.prefill_instances), ("prefill_tp", 0)):
        try:
            twin_model(spec, Launch("", "", "", {}, "", ordinal))
        except profiles.UnknownProfile as error:
            return {name: str(error)}
    return {}


def _refuse_neuron(spec: SimSpec) -> dict[str, str]:
    if spec.kv == NEURON and (spec.dram_gb or spec.ssd_gb):
        return {"dram_gb" if spec.dram_gb else "ssd_gb": "must be 0 when kv is neuron: its engines cache no prefixes"}
    sides = spec.kv == NEURON and spec.prefill_instances
    if spec.etcd and (not sides or spec.pairs == FIXED):
        return {"etcd": f"must be left out unless kv is neuron, prefill_instances at least 1 and pairs {XPYD}"}
    if spec.pairs == FIXED and not sides:
        return {"pairs": f"must be {XPYD} unless kv is neuron and prefill_instances is at least 1"}
    return {}


def _refuse_profiles(spec: SimSpec) -> dict[str, str]:
    if _has_groups(spec):
        return {}
    named = "profile" if spec.profile else "model_profile" if spec.tp is None else "tp"
    for name, tp in ((named, None), ("prefill_tp", spec.prefill_tp)):
        try:
            of = profile_of(spec, tp)
        except profiles.UnknownProfile as error:
            return {name: str(error)}
        if spec.kv_blocks is None and (problem := _no_room(spec, of)):
            return {"max_num_batched_tokens": problem}
    return {}


def _no_room(spec: SimSpec, of: Profile) -> str:
    sequences = max(spec.max_num_seqs, spec.prefill_max_num_seqs or 0)
    try:
        profiles.kv_blocks(of, spec.block_size, sequences=sequences, step_tokens=spec.max_num_batched_tokens)
    except profiles.NoRoom as error:
        return str(error)
    return ""


SIM = Kind(
    name="sim",
    hardware=hardware,
    title="Simulated engine",
    spec=SimSpec,
    ports=("http", "events", "replay"),
    later_options=(
        *data_parallel.OPTIONS,
        "expert_parallel",
        "profile",
        "context_servers",
        "context_model",
        "context_gpu",
        "context_hot_experts",
        "enable_lora",
        "max_loras",
        "max_cpu_loras",
        *_TIER_DETAILS,
        "engine_key",
        "kv_lend_s",
    ),
    key_variable=engine_key.VARIABLE,
    port_spans=port_spans,
    group=lambda spec, ordinal: data_parallel.group(spec, ordinal),
    command=command,
    scrape=VLLM_SCRAPE,
    load_timeout_s=60,
    drain_timeout_s=120,
    grace_s=5,
    refuse=refuse,
    wire=wire,
    pair=pair,
    max_replicas=lambda spec: 2 * spec.prefill_instances if spec.pairs == FIXED else None,
    numbered=lambda spec: bool(spec.prefill_instances) or data_parallel.is_shared(spec),
    can_sleep=lambda spec: True,
    adapter_slots=adapter_slots,
    needs=lambda spec: (spec.store_pool,) if spec.store_pool else (),
    image=WEIR_IMAGE,
    connectors=tuple(CONNECTORS),
    simulated=True,
    time_scale_option="time_scale",
    bytes_per_token=generation.BYTES_PER_TOKEN,
    twin_model=twin_model,
)
