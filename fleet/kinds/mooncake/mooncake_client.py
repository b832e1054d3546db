"""The `mooncake-client` kind: memory, and optionally a disk, of the Mooncake store. It serves no requests."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.engine.tiers.shared import StoreModel
from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.options.common_options import arguments_option, environment_option, image_option, program_option
from fleet.kinds.options.option import option
from fleet.kinds.serving import kv_folder
from fleet.kinds.sim.twin_kv import STORE_LINK
from router.contract.metrics.engine_metrics import MOONCAKE_CLIENT_SCRAPE


@dataclass(frozen=True)
class ClientSpec:
    master: str | None = option(None, "Master pool", "Pool of the kind mooncake-master; required.", kind="text")
    program: str = program_option("mooncake_client")
    dram_mb: int = option(4096, "Memory", "Provided to the store.", unit="MB", range=(16, 4_194_304))
    buffer_mb: int = option(512, "Buffer", "For transfers.", unit="MB", range=(16, 1_048_576))
    ssd: bool = option(False, "SSD tier", "Also writes blocks to disk; the master needs ssd too.")
    disk: str | None = option(None, "Disk folder", "For the SSD tier; left out: in the instance's folder.", kind="text")
    disk_gib: float = option(
        64.0, "Disk", "Limit of the SSD tier; the oldest blocks are evicted.", unit="GiB", range=(0.01, 1_048_576)
    )
    heartbeat_s: int = option(10, "Heartbeat", "Interval of writes to the disk.", unit="s", range=(1, 3600))
    protocol: str = option("tcp", "Protocol", "For transfers.", choices=("tcp", "rdma"))
    rdma_device: str | None = option(None, "RDMA device", "For example mlx5_0.", kind="text")
    threads: int = option(4, "Threads", "Threads of its service.", range=(1, 256))
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()


def folder_of(spec: ClientSpec, launch: Launch) -> str:
    return kv_folder(spec, launch) if spec.ssd else ""


def command(spec: ClientSpec, launch: Launch) -> list[str]:
    given = {
        "host": launch.host,
        "port": launch.ports["rpc"],
        "master_server_address": launch.peers.get(spec.master or "", f"<address of {spec.master}>"),
        "metadata_server": "P2PHANDSHAKE",
        "protocol": spec.protocol,
        "device_names": spec.rdma_device or "",
        "global_segment_size": f"{spec.dram_mb}MB",
        "local_buffer_size": f"{spec.buffer_mb}MB",
        "threads": spec.threads,
        "enable_offload": str(spec.ssd).lower(),
        "enable_http_server": "true",
        "http_port": launch.ports["http"],
    }
    return [launch.path(spec.program), *(f"-{name}={value}" for name, value in given.items()), *spec.arguments]


def environment(spec: ClientSpec, launch: Launch) -> dict[str, str]:
    found = {"PYTHONPATH": ""}
    if spec.ssd:
        found |= {
            "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": folder_of(spec, launch),
            "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS": str(spec.heartbeat_s),
            "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES": str(int(spec.disk_gib * 1024**3)),
            "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE": str(int(spec.disk_gib * 1024**3)),
            "MOONCAKE_OFFLOAD_BUCKET_EVICTION_POLICY": "lru",
        }
    return found | dict(spec.environment or {})


def refuse(spec: ClientSpec) -> dict[str, str]:
    return {} if spec.master else {"master": "must name the pool of the Mooncake master"}


def requires(spec: ClientSpec, launch: Launch) -> tuple[Requirement, ...]:
    program = Requirement(
        "program", launch.path(spec.program), advice="pip install mooncake-transfer-engine, or set engine.program"
    )
    folder = folder_of(spec, launch)
    if not folder:
        return (program,)
    return program, Requirement("folder", folder, need_gb=spec.disk_gib, advice="free space, or set engine.disk")


def twin_store(spec: ClientSpec, bytes_per_token: float) -> StoreModel:
    capacity = spec.dram_mb * 1e6 + (spec.disk_gib * 2**30 if spec.ssd else 0.0)
    return StoreModel(capacity, STORE_LINK, bytes_per_token)


MOONCAKE_CLIENT = Kind(
    name="mooncake-client",
    title="Mooncake store client",
    spec=ClientSpec,
    ports=("http", "rpc"),
    command=command,
    environment=environment,
    models_path="",
    scrape=MOONCAKE_CLIENT_SCRAPE,
    load_timeout_s=120,
    drain_timeout_s=1,
    grace_s=10,
    refuse=refuse,
    needs=lambda spec: (spec.master,) if spec.master else (),
    serves=False,
    service="rpc",
    requires=requires,
    volume=folder_of,
    twin_store=twin_store,
)
