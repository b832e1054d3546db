"""The rule that redirects a request from an overloaded preferred instance."""

from router.policy.types import InstanceState
from router.policy.view import View, ongoing


def overloaded(view: View, instance: InstanceState) -> str:
    """Return why the request leaves the preferred instance; empty if it stays.
    It leaves when work_i > break_ratio · least work and work_i − least work > break_floor_tokens. The ratio alone would
    move a session because one small request runs on its instance and none elsewhere.
    """
    floor = view.policy["affinity.break_floor_tokens"]
    own = _work_on(view, instance)
    if own <= floor:  # common and cheap: work is never negative, so the difference cannot exceed the floor
        return ""
    if own <= most_work(view):
        return ""
    return f"{own:,.0f} tokens of work there, {min(view.work):,.0f} on the least loaded"


def most_work(view: View) -> float:
    """Return the work_i above which an instance is overloaded."""
    least_work = min(view.work)
    ratio: float = view.policy["affinity.break_ratio"]
    floor: float = view.policy["affinity.break_floor_tokens"]
    return max(ratio * least_work, least_work + floor)


def _work_on(view: View, instance: InstanceState) -> float:
    weight: float = view.policy["load.request_tokens"]
    return (view.request.prompt_tokens - view.cached_on(instance) + ongoing(instance, weight)) / view.pace_of(instance)
