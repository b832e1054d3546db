"""The cost of a prompt token to a fleet: the GPU time of its arithmetic. Pure. A law applies to one endpoint; a
data-parallel rank has its share of the instance's GPUs.
"""

from collections import Counter
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.kinds.kind import Kind, hardware_of
from router.contract import ranks


@dataclass(frozen=True, slots=True)
class PromptCost:
    """The mean over the endpoints that compute prompts."""

    gpu_s: float  # time per token; for an engine without GPUs, its own seconds
    has_gpus: bool


def prompt_cost(fleet: TwinFleet, kind: Kind, spec: Any) -> PromptCost:
    of_instance = Counter(map(ranks.instance_of, fleet.instances))
    computing = {name: engine for name, engine in fleet.instances.items() if engine.role != "decode"} or fleet.instances
    gpus = {
        name: hardware_of(kind, spec, engine.role).gpus / of_instance[ranks.instance_of(name)]
        for name, engine in computing.items()
    }
    has_gpus = any(gpus.values())
    seconds = (engine.law.compute_s_per_token * (gpus[name] if has_gpus else 1) for name, engine in computing.items())
    return PromptCost(fmean(seconds), has_gpus)
