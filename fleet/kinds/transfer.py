"""KV transfer and tiers of a vLLM instance: one function per value of the option `kv`. Pure.
Each returns the connector's configuration, environment variables, files and the entry for routers, and `made` combines
those of a list. A new value is a function, a line in MODES and an entry in GROUPS.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fleet.kinds import data_parallel
from fleet.kinds.kind import Launch
from fleet.kinds.serving import BOTH, PREFILL, address, kv_folder, own_role
from router.contract.connectors import MOONCAKE_P2P, MOONCAKE_STORE, NIXL
from router.contract.values.fields import JOIN

if TYPE_CHECKING:
    from fleet.kinds.vllm.vllm_spec import VllmSpec

GIB = 1024**3
_ROLES = {BOTH: "kv_both", PREFILL: "kv_producer"}
# Blocks that cannot be loaded are computed, as after a cache miss. By default, vLLM would fail the request with status
# 500.
_CACHE = {"kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
STORE_FILE = "mooncake.json"
LMCACHE_FILE = "lmcache.yaml"


@dataclass(frozen=True, slots=True)
class Transfer:
    # Value of --kv-transfer-config; empty if there is none
    connector: Mapping[str, object] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # name → text
    routed_as: str = ""  # routers' name of the connector; empty: KV does not move
    shares_store: bool = False  # True: it also reads blocks that other instances put into a store
    bootstrap: str = ""  # URL at which the engines meet
    modules: tuple[str, ...] = ()  # modules that the engine's Python must find
    volume: str = ""  # folder that may run out of space
    metrics_folder: str = ""  # folder emptied at each start


def rank_0(port: int, spec: "VllmSpec", launch: Launch) -> int | str:
    """Return the port of the group's rank 0, given the port of the instance's first rank: vLLM adds the rank to it."""
    first = data_parallel.first(spec, launch.ordinal)
    if not first:
        return port
    return port - first if isinstance(port, int) else f"{port} - {first}"  # in a preview, ports are names


def none(spec: "VllmSpec", launch: Launch) -> Transfer:
    return Transfer()


def nixl(spec: "VllmSpec", launch: Launch) -> Transfer:
    role = own_role(spec, launch)
    config: dict[str, object] = {"kv_connector": "NixlConnector", "kv_role": _ROLES.get(role, "kv_consumer")}
    side = {
        "VLLM_NIXL_SIDE_CHANNEL_HOST": launch.host,
        "VLLM_NIXL_SIDE_CHANNEL_PORT": str(rank_0(launch.ports["side"], spec, launch)),
    }
    if spec.lend_s:
        extra = {"bidirectional_kv_xfer": True, "decoder_kv_blocks_ttl": spec.lend_s}
        config |= {"kv_connector_extra_config": extra}
        # Blocks that have been freed by then are computed again
        config |= {"kv_load_failure_policy": "recompute"} if role == PREFILL else {}
    return Transfer(
        config | ({"kv_buffer_device": "cpu"} if spec.device == "cpu" else {}),
        side,
        routed_as=NIXL,
        modules=("nixl",),
    )


def mooncake_p2p(spec: "VllmSpec", launch: Launch) -> Transfer:
    role = own_role(spec, launch)
    device = {"device_name": spec.rdma_device} if spec.rdma_device else {}
    return Transfer(
        {
            "kv_connector": "MooncakeConnector",
            "kv_role": _ROLES.get(role, "kv_consumer"),
            "kv_connector_extra_config": {"mooncake_protocol": spec.protocol} | device,
        },
        {"VLLM_MOONCAKE_BOOTSTRAP_PORT": str(launch.ports["side"])},
        routed_as=MOONCAKE_P2P,
        bootstrap=f"http://{address(launch, 'side')}",
        modules=("mooncake",),
    )


def mooncake_store(spec: "VllmSpec", launch: Launch) -> Transfer:
    """Join the instances' DRAM in one store; with `store_pool` the store has its own memory and disk."""
    config = {
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": launch.peers.get(spec.master or "", f"<address of {spec.master}>"),
        "protocol": spec.protocol,
        "device_name": spec.rdma_device or "",
        "global_segment_size": f"{spec.store_dram_mb}MB" if spec.store_pool is None else 0,
        "local_buffer_size": f"{spec.store_buffer_mb}MB",
    }
    environment = {"MOONCAKE_CONFIG_PATH": f"{launch.folder}/{STORE_FILE}"}
    if spec.store_pool is not None:
        config |= {"mode": "standalone-store", "enable_offload": True}
        environment["MOONCAKE_PREFERRED_SEGMENT"] = launch.peers.get(spec.store_pool, f"<address of {spec.store_pool}>")
    return Transfer(
        {
            "kv_connector": "MooncakeStoreConnector",
            **_CACHE,
            "kv_connector_extra_config": {
                # The number of a socket file on the host; with the same one, instances would answer for each other.
                "lookup_rpc_port": launch.ports["http"],
                "cache_prefix": _weights(spec, launch),
            },
        },
        environment,
        {STORE_FILE: json.dumps(config, indent=1) + "\n"},
        MOONCAKE_STORE,
        modules=("mooncake",),
    )


def _weights(spec: "VllmSpec", launch: Launch) -> str:
    """Return a name for the pool's weights in a store. vLLM 0.32 names a model by the last part of its path alone, so
    that pools of /a/final and /b/final would load each other's KV (findings/vllm-store-names.sh)."""
    return hashlib.sha256(f"{spec.model or launch.model} {spec.dtype}".encode()).hexdigest()[:16]


def offload_dram(spec: "VllmSpec", launch: Launch) -> Transfer:
    return Transfer(_offloading({"cpu_bytes_to_use": _bytes(spec.dram_gib)}))


def offload_ssd(spec: "VllmSpec", launch: Launch) -> Transfer:
    folder = kv_folder(spec, launch)
    tiers = [{"type": "fs", "root_dir": folder, "enable_kv_events": spec.kv_events}]
    extra = {"spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": _bytes(spec.dram_gib), "secondary_tiers": tiers}
    return Transfer(_offloading(extra), volume=folder)


def _offloading(extra: Mapping[str, object]) -> Mapping[str, object]:
    return {"kv_connector": "OffloadingConnector", **_CACHE, "kv_connector_extra_config": extra}


def _bytes(gib: float) -> int:
    return int(gib * GIB)


def lmcache_dram(spec: "VllmSpec", launch: Launch) -> Transfer:
    return _lmcache(launch, {"local_cpu": True, "max_local_cpu_size": spec.dram_gib})


def lmcache_disk(spec: "VllmSpec", launch: Launch) -> Transfer:
    folder = kv_folder(spec, launch)
    values = {"local_cpu": True, "max_local_cpu_size": spec.dram_gib, "local_disk": f"file://{folder}/"}
    return _lmcache(launch, values | {"max_local_disk_size": spec.disk_gib}, folder)


def lmcache_gds(spec: "VllmSpec", launch: Launch) -> Transfer:
    """Move KV from GPU to disk without host memory (GPUDirect Storage); `dram_gib` is the size of the buffer on the
    GPU."""
    folder = kv_folder(spec, launch)
    values = {"local_cpu": False, "gds_path": folder, "cufile_buffer_size": int(spec.dram_gib * 1024)}
    return _lmcache(launch, values, folder)


def _lmcache(launch: Launch, values: Mapping[str, object], volume: str = "") -> Transfer:
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in {"chunk_size": 256, **values}.items())
    metrics = f"{launch.folder}/metrics"  # puts LMCache's numbers on vLLM's page, which another process serves
    return Transfer(
        {"kv_connector": "LMCacheConnectorV1", **_CACHE},
        {"LMCACHE_CONFIG_FILE": f"{launch.folder}/{LMCACHE_FILE}", "PROMETHEUS_MULTIPROC_DIR": metrics},
        {LMCACHE_FILE: text},
        modules=("lmcache",),
        volume=volume,
        metrics_folder=metrics,
    )


def example_disk(spec: "VllmSpec", launch: Launch) -> Transfer:
    folder = kv_folder(spec, launch)
    extra = {"shared_storage_path": folder}
    config = {"kv_connector": "ExampleConnector", **_CACHE, "kv_connector_extra_config": extra}
    return Transfer(config, volume=folder)


MODES: dict[str, Callable[["VllmSpec", Launch], Transfer]] = {
    "none": none,
    "nixl": nixl,
    "mooncake-p2p": mooncake_p2p,
    "mooncake-store": mooncake_store,
    "offload-dram": offload_dram,
    "offload-ssd": offload_ssd,
    "lmcache-dram": lmcache_dram,
    "lmcache-disk": lmcache_disk,
    "lmcache-gds": lmcache_gds,
    "example-disk": example_disk,
}

# Modes that can be combined, in the order in which vLLM asks them: first the one with the whole prompt, then the
# nearest, then the store
GROUPS = (
    ("nixl", "mooncake-p2p"),
    ("offload-dram", "offload-ssd", "lmcache-dram", "lmcache-disk", "lmcache-gds", "example-disk"),
    ("mooncake-store",),
)


def modes(spec: "VllmSpec") -> tuple[str, ...]:
    return tuple(spec.kv.split(JOIN))


def made(spec: "VllmSpec", launch: Launch) -> Transfer:
    """Return the KV transfer of an instance. From several connectors, vLLM loads a prompt from the first that has part
    of it, and saves to all.
    """
    parts = [MODES[mode](spec, launch) for mode in modes(spec)]
    return parts[0] if len(parts) == 1 else _joined(parts)


def _joined(parts: Sequence[Transfer]) -> Transfer:
    moves = [part.routed_as for part in parts if part.routed_as]
    # vLLM reads only the policy of the combination, which is therefore the first connector's: a decoder must not
    # compute a prompt whose KV a transfer has failed to bring.
    policy = {name: value for name, value in parts[0].connector.items() if name == "kv_load_failure_policy"}
    inner = {"connectors": [dict(part.connector) for part in parts]}
    return Transfer(
        {"kv_connector": "MultiConnector", "kv_role": "kv_both", **policy, "kv_connector_extra_config": inner},
        {name: value for part in parts for name, value in part.environment.items()},
        {name: text for part in parts for name, text in part.files.items()},
        routed_as=next(iter(moves), ""),
        shares_store=MOONCAKE_STORE in moves[1:],
        bootstrap="".join(part.bootstrap for part in parts),
        modules=tuple(dict.fromkeys(module for part in parts for module in part.modules)),
        volume="".join(part.volume for part in parts),
        metrics_folder="".join(part.metrics_folder for part in parts),
    )
