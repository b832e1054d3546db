"""Tutti, which reads KV from drives at the speed of memory, compared with its baselines under one generated load."""

from controlplane.evidence.systems.pool_plays import TIERS_PLAYABLE
from controlplane.evidence.systems.system import System
from controlplane.evidence.systems.tiers.answer import answer
from controlplane.evidence.systems.tiers.figures import NOTES, figures
from controlplane.evidence.systems.tiers.inputs import GROUPS, PRESETS, TierInputs, rules

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
    playable=TIERS_PLAYABLE,
)
