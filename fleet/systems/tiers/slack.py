"""The drive time that a layer of a prefill leaves free: first for reads of its prefix, then for writes. Pure, in closed
form.
The publication profiles these windows once per input, prefix and layer, but does not print its table. Here they follow
from the step-time law, which is the same for every layer, and from the device.
"""

import math
from dataclasses import dataclass

from fleet.engine.law import Law
from fleet.engine.tiers.devices import COMMAND_S, TierDevice
from fleet.engine.tiers.loading import CHUNK, load_s
from fleet.engine.tiers.sizes import KvLayout

CONTROLLED = 2_048  # commands per I/O control block of the publication: one for each thread of a multiprocessor
INPUTS, PREFIXES = (512, 2_048, 8_192), (8_192, 32_768, 131_072)  # tokens


@dataclass(frozen=True, slots=True)
class Slack:
    """Slack of one layer in s, while `new` tokens are computed after a prefix that is loaded."""

    new: int
    prefix: int
    compute_s: float
    read_s: float
    write_bytes: float  # bytes that fit after the reads
    control_blocks: int  # control blocks for the reads; each keeps the threads of one multiprocessor

    @property
    def free_s(self) -> float:
        """Return the time for writes; 0 if the layer waits for its reads instead."""
        return max(self.compute_s - self.read_s, 0.0)


def slack(law: Law, device: TierDevice, layout: KvLayout, new: int, prefix: int, floor_s: float = 0.0) -> Slack:
    compute_s = max(law.prefill_s(min(new, CHUNK), prefix), floor_s) / layout.layers
    read_s = load_s(device, layout, prefix) / layout.layers
    write_bytes = max(compute_s - read_s, 0.0) * device.write_bytes_per_s
    return Slack(new, prefix, compute_s, read_s, write_bytes, control_blocks(layout, prefix))


def control_blocks(layout: KvLayout, prefix: int) -> int:
    """Return the control blocks of a layer's reads, with a command for each K and V of a block."""
    return math.ceil(layout.objects(prefix) / layout.layers / CONTROLLED)


def commands_at_a_time(bytes_per_s: float, command_bytes: float) -> float:
    """Return the queue depth that reaches a rate with commands of that size, each taking as long as it takes alone
    (Little's law)."""
    return bytes_per_s * COMMAND_S / command_bytes
