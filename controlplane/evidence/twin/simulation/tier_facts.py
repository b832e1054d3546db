"""The activity of tiers below the GPU in the twin, as facts of a run. Pure."""

from collections.abc import Sequence

from controlplane.evidence.twin.simulation.types import TwinOutcome
from fleet.engine.tiers.model import TierStats
from fleet.engine.tiers.sizes import drive_writes_per_day


def tier_facts(outcome: TwinOutcome) -> tuple[dict[str, dict[str, float]], dict[str, float]] | None:
    """Return two summaries over the instances; None without KV below the GPU. By tier: the bytes read and written, and
    drive writes per day, for drives rated for 1 over five years. Over all tiers: how long steps waited for KV, and the
    largest number of bytes waiting to be written.
    """
    used = [use.tiers for use in outcome.instances.values() if use.tiers is not None]
    stats = [tier for one in used for tier in one.tiers] + ([outcome.store] if outcome.store is not None else [])
    if not stats:
        return None
    by_name: dict[str, list[TierStats]] = {}
    for tier in stats:
        by_name.setdefault(tier.name, []).append(tier)
    tiers = {name: _tier(found, outcome.virtual_s) for name, found in by_name.items()}
    whole = {
        "bubble_s": sum(one.bubble_s for one in used),
        "backlog_most_gb": max((one.backlog_most_bytes for one in used), default=0.0) / 1e9,
        "wasted_gb": sum(one.wasted_bytes for one in used) / 1e9,
        "declined_tokens": sum(one.declined_tokens for one in used),
        "failed": sum(one.failed for one in used),
    }
    return tiers, {name: round(value, 4) for name, value in whole.items()}


def _tier(tiers: Sequence[TierStats], virtual_s: float) -> dict[str, float]:
    written = sum(tier.written_bytes for tier in tiers)
    facts = {
        "hit_tokens": sum(tier.hit_tokens for tier in tiers),
        "read_gb": round(sum(tier.read_bytes for tier in tiers) / 1e9, 4),
        "written_gb": round(written / 1e9, 4),
        "load_s": round(sum(tier.load_s for tier in tiers), 4),
        "evicted_tokens": sum(tier.evicted_tokens for tier in tiers),
    }
    capacity = sum(tier.capacity_bytes for tier in tiers if tier.wears)
    if capacity and virtual_s:
        facts["dwpd"] = round(drive_writes_per_day(written / virtual_s, capacity), 4)
    return facts
