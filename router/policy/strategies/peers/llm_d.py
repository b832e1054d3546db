"""Cache match, free KV and short queues, weighted 2 : 1 : 1 (llm-d's default profile)."""

from router.policy.rules.classify import class_by_cache
from router.policy.rules.scorers import explained, missing, scored
from router.policy.schema.parameter import weight
from router.policy.strategies.strategy import Strategy
from router.policy.types import Pick
from router.policy.view import View, least

WEIGHTS = {"prefix": "strategy.match_weight", "kv_free": "strategy.kv_weight", "queue": "strategy.queue_weight"}


def rank(view: View) -> Pick:
    """Maximise match_weight · h_i/L + kv_weight · (1 − u_i) + queue_weight · (max q − q_i)/(max q − min q)."""
    weights = {name: view.policy[path] for name, path in WEIGHTS.items()}
    scores = scored(view, weights)
    lacking = missing(scores, weights)
    position = least(view, lacking)
    instance = view.instances[position]
    return Pick(instance, class_by_cache(view), "weighted", (explained(scores, position),), view.instances, lacking)


STRATEGY = Strategy(
    "llm_d",
    "llm-d",
    "The greatest weighted sum of matching prefix, free KV and short queue.",
    "argmax match_weight · h_i/L + kv_weight · (1 − u_i) + queue_weight · (max q − q_i)/(max q − min q)",
    rank,
    reads_kv=lambda policy: policy["strategy.kv_weight"] > 0,
    parameters=(
        weight(
            "strategy.match_weight",
            2.0,
            "Weight of the matching prefix",
            "Requests follow the cache further before load sends them elsewhere.",
            "class.hit_share_p50",
        ),
        weight(
            "strategy.kv_weight",
            1.0,
            "Weight of free KV",
            "Requests go more to instances whose KV is empty.",
            "instance.kv_usage_max",
        ),
        weight(
            "strategy.queue_weight",
            1.0,
            "Weight of a short queue",
            "Requests go more to instances where few wait.",
            "instance.waiting_max",
        ),
    ),
)
