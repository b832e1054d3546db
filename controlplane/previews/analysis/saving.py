"""What a draft saves a day at the preview's load: prompt tokens that it finds cached and live computes. Pure.

It counts only those tokens' arithmetic, without attention and without the gain of faster answers.
"""

from controlplane.previews.analysis.types import Saving, ValuePair
from controlplane.twin.prompt_cost import PromptCost

DAY_S, HOUR_S = 86_400, 3_600


def saving_of(new_tokens_per_s: ValuePair, cost: PromptCost, gpu_hour: float) -> Saving | None:
    """Negative if the draft computes more; without GPUs the dollars are unknown."""
    live, draft = new_tokens_per_s["live"], new_tokens_per_s["draft"]
    if live is None or draft is None:
        return None
    tokens = (live - draft) * DAY_S
    hours = tokens * cost.gpu_s / HOUR_S
    return {
        "new_tokens": round(tokens),
        "gpu_hours": round(hours, 4),
        "dollars": round(hours * gpu_hour, 4) if cost.has_gpus else None,
    }
