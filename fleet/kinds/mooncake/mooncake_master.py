"""The `mooncake-master` kind: the directory of the Mooncake store. It serves no requests."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.kinds.kind import Kind, Launch, Requirement
from fleet.kinds.options.common_options import arguments_option, environment_option, image_option, program_option
from fleet.kinds.options.option import option
from router.contract.metrics.engine_metrics import MOONCAKE_SCRAPE


@dataclass(frozen=True)
class MasterSpec:
    program: str = program_option("mooncake_master")
    ssd: bool = option(False, "SSD tier", "Clients also write blocks to disk.")
    lease_ms: int = option(
        5000, "Lease", "A block that was read is not evicted for this time.", unit="ms", range=(100, 3_600_000)
    )
    evict_at: float = option(0.95, "Evict at", "Share of memory in use at which eviction starts.", range=(0.1, 1.0))
    evict_share: float = option(0.05, "Evict share", "Share of the blocks evicted each time.", range=(0.01, 1.0))
    threads: int = option(4, "Threads", "For remote calls.", range=(1, 256))
    arguments: tuple[str, ...] = arguments_option()
    environment: Mapping[str, str] | None = environment_option()
    image: str | None = image_option()


def command(spec: MasterSpec, launch: Launch) -> list[str]:
    given = {
        "rpc_address": launch.host,
        "rpc_port": launch.ports["rpc"],
        "metrics_host": launch.host,
        "metrics_port": launch.ports["http"],
        "rpc_thread_num": spec.threads,
        "default_kv_lease_ttl": spec.lease_ms,
        "eviction_high_watermark_ratio": spec.evict_at,
        "eviction_ratio": spec.evict_share,
        "enable_offload": str(spec.ssd).lower(),
    }
    return [launch.path(spec.program), *(f"-{name}={value}" for name, value in given.items()), *spec.arguments]


MOONCAKE_MASTER = Kind(
    name="mooncake-master",
    title="Mooncake master",
    spec=MasterSpec,
    ports=("http", "rpc"),
    command=command,
    environment=lambda spec, launch: {"PYTHONPATH": ""} | dict(spec.environment or {}),
    models_path="",
    scrape=MOONCAKE_SCRAPE,
    load_timeout_s=60,
    drain_timeout_s=1,
    grace_s=5,
    serves=False,
    service="rpc",
    max_replicas=lambda spec: 1,
    requires=lambda spec, launch: (
        Requirement(
            "program", launch.path(spec.program), advice="pip install mooncake-transfer-engine, or set engine.program"
        ),
    ),
)
