"""The published systems as calculators: one module for each, listed here."""

from controlplane.evidence.systems.dwdp import DWDP
from controlplane.evidence.systems.neuron import NEURON
from controlplane.evidence.systems.offload import OFFLOAD
from controlplane.evidence.systems.system import System
from controlplane.evidence.systems.tiers import TIERS

SYSTEMS: dict[str, System] = {system.slug: system for system in (TIERS, OFFLOAD, NEURON, DWDP)}
