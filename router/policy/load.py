"""How much work stands before a request on an instance, in tokens; and when that is too much to stay."""

from router.policy.types import Instance
from router.policy.view import View


def ongoing(view: View) -> list[float]:
    """PP_i + request_tokens · R_i: prefill still to be computed, and each request as if it were so many tokens more."""
    weight = view.policy["load.request_tokens"]
    return [instance.prefill_tokens + weight * instance.running for instance in view.instances]


def work(view: View) -> list[float]:
    """n_i + ongoing_i: what the instance would have to do with this request on it. Losing the cache counts as work."""
    prompt = view.request.prompt_tokens
    weight = view.policy["load.request_tokens"]
    return [
        max(prompt - instance.cached_tokens, 0) + instance.prefill_tokens + weight * instance.running
        for instance in view.instances
    ]


def overloaded(view: View, instance: Instance) -> str:
    """Why the preferred instance is left, in words; empty when it is kept.

    It is left when work_i > break_ratio · min work and work_i − min work > break_floor_tokens: the ratio alone would
    send a session away because one small request runs on its instance and none elsewhere.
    """
    floor = view.policy["affinity.break_floor_tokens"]
    own = _work_of(view, instance)
    if own <= floor:  # work is never negative, so the difference cannot pass the floor: the common case, and cheap
        return ""
    least_work = min(work(view))
    if own - least_work <= floor or own <= view.policy["affinity.break_ratio"] * least_work:
        return ""
    return f"{own:,.0f} tokens of work there against {least_work:,.0f} on the least loaded"


def _work_of(view: View, instance: Instance) -> float:
    weight: float = view.policy["load.request_tokens"]
    return view.new_tokens(instance) + instance.prefill_tokens + weight * instance.running
