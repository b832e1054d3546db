"""Published systems as calculators: one module for each, listed here."""

from controlplane.systems.dwdp import DWDP
from controlplane.systems.neuron import NEURON
from controlplane.systems.offload import OFFLOAD
from controlplane.systems.system import System
from controlplane.systems.tiers import TIERS

SYSTEMS: dict[str, System] = {system.slug: system for system in (TIERS, OFFLOAD, NEURON, DWDP)}
