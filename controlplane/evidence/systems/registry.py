"""The published systems as calculators: one module each, listed here."""

from collections.abc import Mapping
from typing import Any

from controlplane.common.computing import computed
from controlplane.evidence.systems.dwdp import DWDP
from controlplane.evidence.systems.neuron import NEURON
from controlplane.evidence.systems.offload import OFFLOAD
from controlplane.evidence.systems.system import Answer, Figure, Play, PoolFacts, System
from controlplane.evidence.systems.tiers import TIERS
from fleet.kinds.options.option import build, check
from fleet.selectors import pools
from router.contract.values.problem import InvalidInput

SYSTEMS: dict[str, System] = {system.slug: system for system in (TIERS, OFFLOAD, NEURON, DWDP)}


def inputs_of(system: System, given: Mapping[str, object]) -> Any:
    """Return the inputs with their defaults. Raise InvalidInput."""
    problems = check(system.inputs, given)
    if problems:
        raise InvalidInput(problems=problems)
    inputs: Any = build(system.inputs, given)
    problems = system.rules(inputs)
    if problems:
        raise InvalidInput(problems=problems)
    return inputs


def ask(system: System, given: Mapping[str, object]) -> Answer:
    """Return the system's answer. Raise InvalidInput, Busy."""
    inputs = inputs_of(system, given)
    return computed(system.compute, inputs) if system.beside else system.compute(inputs)


def plays(system: System, given: Mapping[str, object]) -> list[Play]:
    """Return the experiments that follow from valid inputs and that can run on a pool of the fleet."""
    if system.playable is None:
        return []
    facts = [PoolFacts(pool.name, pool.kind, pool.model, pool.engine) for pool in pools()]
    return list(system.playable.plays(inputs_of(system, given), facts))


def figures(slug: str) -> tuple[Figure, ...]:
    """Return the published figures. Raise Busy."""
    system = SYSTEMS[slug]
    return computed(system.figures) if system.beside else system.figures()
