"""Tutti without one of its three designs, and without all of them, to show what each is worth. Pure.
The publication compares each design only with its alternative, and shows no run without all three.
"""

from dataclasses import replace

from fleet.engine.tiers.devices import TierDevice, with_prp
from fleet.engine.tiers.sizes import KvLayout


def ablations(device: TierDevice, layout: KvLayout) -> dict[str, TierDevice]:
    """Return the devices by the part that is left out: one command per page (PRP) instead of per object; loads before
    computing instead of during it, layer by layer; writes immediately after each prefill.
    """
    prp = with_prp(device, layout.object_bytes)
    return {
        "PRP lists": prp,
        "no overlap by layers": replace(device, mode="block"),
        "naive writes": replace(device, contention="naive"),
        "all three": replace(prp, mode="block", contention="naive"),
    }
