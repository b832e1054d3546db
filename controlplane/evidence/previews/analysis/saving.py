"""A draft's savings per day at the preview's load: prompt tokens that are cached under the draft but computed under the
live version. Pure. Only the arithmetic of those tokens counts, without attention and without the benefit of faster
answers.
"""

from controlplane.evidence.previews.analysis.types import Bounds, Saving, ValuePair
from controlplane.evidence.twin.prompt_cost import PromptCost

DAY_S, HOUR_S = 86_400, 3_600


def saving_of(
    new_tokens_per_s: ValuePair, cost: PromptCost, gpu_hour: float, bounds: Bounds | None = None
) -> Saving | None:
    """Return the saving; negative if the draft computes more. Without GPUs, the dollars are unknown."""
    live, draft = new_tokens_per_s["live"], new_tokens_per_s["draft"]
    if live is None or draft is None:
        return None
    tokens = (live - draft) * DAY_S
    hours = tokens * cost.gpu_s / HOUR_S
    return {
        "new_tokens": round(tokens),
        "low": None if bounds is None else round(bounds["low"] * DAY_S),
        "high": None if bounds is None else round(bounds["high"] * DAY_S),
        "gpu_hours": round(hours, 4),
        "dollars": round(hours * gpu_hour, 4) if cost.has_gpus else None,
    }


def is_sure(saving: Saving) -> bool:
    """Return whether the interval excludes zero; False for a saving without an interval."""
    low, high = saving.get("low"), saving.get("high")
    return low is not None and high is not None and low * high > 0
