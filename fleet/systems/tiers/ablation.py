"""Tutti with one of its three designs left out, and with none of them, to show the worth of each. Pure.

The publication has each design alone against its alternative, and no run without all three.
"""

from dataclasses import replace

from fleet.engine.tiers.devices import TierDevice, with_prp
from fleet.engine.tiers.sizes import KvLayout


def ablations(device: TierDevice, layout: KvLayout) -> dict[str, TierDevice]:
    """Return the devices by what is left out: a command for each page (PRP); loads before computing instead of beside
    it, layer by layer; writes that follow each prefill at once."""
    prp = with_prp(device, layout.object_bytes)
    return {
        "PRP lists": prp,
        "no overlap by layers": replace(device, mode="block"),
        "naive writes": replace(device, contention="naive"),
        "all three": replace(prp, mode="block", contention="naive"),
    }
