"""The cost of an arm's output tokens: its pool's GPUs and memory, by the prices of the fleet document."""

from collections.abc import Collection

from controlplane.evidence.experiments.record import RecordedFleet
from fleet.kinds import KINDS
from fleet.kinds.kind import hardware_of_pool
from fleet.kinds.options.option import build
from fleet.systems.prices import Prices, per_million

UNKNOWN = (None, None)


def of_arm(
    fleet: RecordedFleet | None, endpoints: Collection[str], output_tokens_per_s: float | None, prices: Prices
) -> tuple[float | None, float | None]:
    """Return (tokens per GPU and second, dollars per million tokens); None without GPUs, and for options that are no
    longer known."""
    if fleet is None or not output_tokens_per_s:
        return UNKNOWN
    try:
        kind = KINDS[fleet.kind]
        found = hardware_of_pool(kind, build(kind.spec, fleet.engine), endpoints)
    except LookupError:
        return UNKNOWN
    if not found.gpus:
        return UNKNOWN
    dollars = per_million(prices.per_hour(found.gpus, found.dram_gb, found.ssd_gb), output_tokens_per_s)
    return round(output_tokens_per_s / found.gpus, 3), None if dollars is None else round(dollars, 4)
