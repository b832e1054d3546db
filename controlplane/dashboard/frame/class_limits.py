"""The classes as the thresholds of a policy define them, in words. Pure."""

from collections.abc import Mapping
from typing import Any

from fleet.counted import percent


def in_words(limits: Mapping[str, Any]) -> dict[str, str]:
    """By class; empty while the thresholds are unknown."""
    if not {"heavy_new_tokens", "warm_hit_share", "warm_new_tokens"} <= limits.keys():
        return {}
    heavy, warm, share = limits["heavy_new_tokens"], limits["warm_new_tokens"], limits["warm_hit_share"]
    return {
        "warm": f"more than {percent(share)} cached or under {warm:,} new tokens",
        "medium": f"{warm:,} to {heavy:,} new tokens",
        "heavy": f"{heavy:,} new tokens or more",
    }
