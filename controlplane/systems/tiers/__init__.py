"""Tutti: KV on drives at the speed of memory, against its baselines, under one generated load."""

from controlplane.systems.system import System
from controlplane.systems.tiers.answer import answer
from controlplane.systems.tiers.figures import NOTES, figures
from controlplane.systems.tiers.inputs import GROUPS, PRESETS, TierInputs, rules

TIERS = System(
    "tutti",
    "Tutti",
    "KV blocks on drives, loaded layer by layer behind the computation. When does a tier below HBM pay?",
    TierInputs,
    PRESETS,
    answer,
    figures,
    GROUPS,
    rules,
    NOTES,
)
