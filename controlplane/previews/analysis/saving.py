"""What a draft saves a day at the preview's load: prompt tokens that it finds cached and live computes. Pure.

It counts only those tokens' arithmetic, without attention and without the gain of faster answers.
"""

from controlplane.previews.analysis.types import Saving, ValuePair
from controlplane.twin.simulation.types import TwinFleet

DAY_S, HOUR_S = 86_400, 3_600


def saving_of(new_tokens_per_s: ValuePair, fleet: TwinFleet, gpus: int, gpu_hour: float) -> Saving | None:
    """Negative if the draft computes more. `gpus`: of an instance; without GPUs the dollars are unknown."""
    live, draft = new_tokens_per_s["live"], new_tokens_per_s["draft"]
    if live is None or draft is None:
        return None
    laws = [engine.law for engine in fleet.instances.values()]
    token_s = sum(law.compute_s_per_token for law in laws) / len(laws)
    tokens = (live - draft) * DAY_S
    hours = tokens * token_s / HOUR_S * max(gpus, 1)
    return {
        "new_tokens": round(tokens),
        "gpu_hours": round(hours, 4),
        "dollars": round(hours * gpu_hour, 4) if gpus else None,
    }
