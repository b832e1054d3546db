"""The savings per day of a pool's KV tiers at the current load: tokens that are loaded instead of computed. Only the
arithmetic of those tokens counts; attention and faster answers would be additional savings. Loads for which the GPU
waits are not deducted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.evidence.twin.pool_model import NotModelled, twin_of
from controlplane.evidence.twin.prompt_cost import PromptCost, prompt_cost
from controlplane.evidence.twin.simulation.types import TwinFleet
from controlplane.live.dashboard.frame.tiers import TierRow
from fleet import selectors
from fleet.kinds import KINDS
from fleet.kinds.kind import Hardware, hardware_of_pool
from fleet.kinds.options.option import build
from fleet.models import Pool
from fleet.systems.prices import Prices

HOURS = 24


@dataclass(frozen=True, slots=True)
class TierSaving:
    """The daily saving of a tier."""

    tokens: float  # loaded tokens
    gpu_hours: float  # GPU hours that computing them would take
    dollars: float
    costs: float  # $ for the host memory and the drives

    @property
    def pays(self) -> bool:
        return self.dollars > self.costs


def tier_saving(pool: Pool, rows: Iterable[TierRow]) -> TierSaving | None:
    """Return the saving; None without loads in the last minute, and for engines with unknown constants."""
    read = sum(row.total.read_bytes_per_s or 0.0 for row in rows)
    kind = KINDS.get(pool.kind)
    if not read or kind is None:
        return None
    try:
        fleet = twin_of(pool).fleet
    except NotModelled:
        return None
    spec = build(kind.spec, pool.engine)
    hardware = hardware_of_pool(kind, spec, fleet.instances)
    return saving(read, fleet, prompt_cost(fleet, kind, spec), hardware, selectors.prices())


def saving(
    read_bytes_per_s: float, fleet: TwinFleet, cost: PromptCost, hardware: Hardware, prices: Prices
) -> TierSaving | None:
    """Compute a saving. `hardware` is that of the whole pool. Return None for engines without tiers or GPUs."""
    engine = next(iter(fleet.instances.values()))
    if engine.tiers is None or not cost.has_gpus:
        return None
    tokens = read_bytes_per_s / engine.tiers.layout.bytes_per_token * 3600 * HOURS
    gpu_hours = tokens * cost.gpu_s / 3600
    costs = prices.per_hour(0, hardware.dram_gb, hardware.ssd_gb) * HOURS
    return TierSaving(tokens, gpu_hours, gpu_hours * prices.gpu_hour, costs)
