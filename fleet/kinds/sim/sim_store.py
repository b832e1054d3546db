"""The `sim-store` kind: a simulated Mooncake store for simulated engines. It serves no requests."""

from dataclasses import dataclass

from fleet.engine.engine_model import TransferLink
from fleet.engine.tiers.shared import StoreModel
from fleet.kinds.kind import Kind, Launch
from fleet.kinds.options.common_options import WEIR_IMAGE, image_option
from fleet.kinds.options.option import option
from fleet.kinds.serving import flags
from router.contract.metrics.engine_metrics import MOONCAKE_SCRAPE


@dataclass(frozen=True)
class StoreSpec:
    capacity_gb: float = option(64.0, "Capacity", "For KV blocks.", unit="GB", range=(0.001, 1_000_000))
    setup_ms: float = option(
        1.0, "Setup of a transfer", "Time that any transfer from the store takes.", unit="ms", range=(0, 60_000)
    )
    gb_per_s: float = option(
        9.7, "Transfer rate", "From the store; concurrent transfers share it.", unit="GB/s", range=(0.001, 10_000)
    )
    image: str | None = image_option()


def command(spec: StoreSpec, launch: Launch) -> list[str]:
    given = {
        "host": launch.host,
        "port": launch.ports["http"],
        "capacity-gb": spec.capacity_gb,
        "setup-ms": spec.setup_ms,
        "gb-per-s": spec.gb_per_s,
    }
    return [launch.python, "-m", "fleet.simengine.store", *flags(given)]


def twin_store(spec: StoreSpec, bytes_per_token: float) -> StoreModel:
    rate = spec.gb_per_s * 1e9
    link = TransferLink(setup_s=spec.setup_ms / 1e3, idle_bytes_per_s=rate, busy_bytes_per_s=rate)
    return StoreModel(spec.capacity_gb * 1e9, link, bytes_per_token)


SIM_STORE = Kind(
    name="sim-store",
    title="Simulated store",
    spec=StoreSpec,
    ports=("http",),
    command=command,
    models_path="",
    scrape=MOONCAKE_SCRAPE,
    load_timeout_s=60,
    drain_timeout_s=1,
    grace_s=5,
    simulated=True,
    serves=False,
    service="http",
    image=WEIR_IMAGE,
    max_replicas=lambda spec: 1,
    twin_store=twin_store,
)
