"""A configurable strategy: filters, then weighted scorers, then a picker."""

from collections.abc import Callable, Sequence
from itertools import accumulate

from router.policy.rules.classify import class_by_cache
from router.policy.rules.scorers import SCORERS, explained, missing, scored
from router.policy.schema.parameter import Parameter, weight
from router.policy.strategies.strategy import Strategy
from router.policy.types import Pick
from router.policy.view import View, by_turn, least

Filter = Callable[[View], Sequence[bool]]  # whether each instance remains; empty if all remain
Picker = Callable[[View, Sequence[float], float], int]  # (view, gaps to the best possible score, greatest possible gap)


def rank(view: View) -> Pick:
    """Apply the filters in order, skipping those that would leave no instance; then the picker uses the weighted
    scores."""
    weights = {name: view.policy[f"strategy.weight_{name}"] for name in SCORERS}
    left, reasons = _filtered(view)
    scores = scored(left, weights)
    lacking = missing(scores, weights)
    picker: str = view.policy["strategy.picker"]
    position = PICKERS[picker](left, lacking, sum(weights.values()))
    rule = "weighted" if picker == "best" else picker
    return Pick(
        left.instances[position],
        class_by_cache(view),
        rule,
        (*reasons, explained(scores, position)),
        left.instances,
        lacking,
    )


def _filtered(view: View) -> tuple[View, tuple[str, ...]]:
    reasons = []
    for name, keep in FILTERS.items():
        stays = keep(view)
        count, kept = len(stays), sum(stays)
        if 0 < kept < count:
            reasons.append(f"{name}: {count - kept} of {count} left out")
            view = view.only(stays)
    return view, tuple(reasons)


def short_queue(view: View) -> Sequence[bool]:
    return _at_most(view.instances.waiting, view.policy["strategy.filter_waiting"])


def little_prefill(view: View) -> Sequence[bool]:
    return _at_most(view.instances.prefill_tokens, view.policy["strategy.filter_prefill_tokens"])


def long_match(view: View) -> Sequence[bool]:
    least = view.policy["strategy.filter_match_share"] * view.request.prompt_tokens
    return [cached >= least for cached in view.cached] if least > min(view.cached) else ()


def _at_most(column: Sequence[float], most: float) -> Sequence[bool]:
    return [one <= most for one in column] if max(column) > most else ()


FILTERS: dict[str, Filter] = {
    "short_queue": short_queue,
    "little_prefill": little_prefill,
    "long_match": long_match,
}


def best(view: View, lacking: Sequence[float], most: float) -> int:
    """Pick the instance with the least gap, ties by the draw."""
    return least(view, lacking)


def weighted_draw(view: View, lacking: Sequence[float], most: float) -> int:
    """Pick an instance with a probability proportional to its score."""
    positions = view.instances.order
    sums = list(accumulate(max(most - lacking[position], 0.0) for position in positions))
    mark = view.draw * sums[-1]
    if not sums[-1]:
        return any_of(view, lacking, most)
    return next(position for position, total in zip(positions, sums, strict=True) if total > mark)


def any_of(view: View, lacking: Sequence[float], most: float) -> int:
    """Pick any instance that passed the filters, with equal probability."""
    count = len(lacking)
    return by_turn(view, range(count), int(view.draw * count))


PICKERS: dict[str, Picker] = {"best": best, "weighted_draw": weighted_draw, "any": any_of}


def _weight(scorer: str, default: float, title: str, help: str, metric: str) -> Parameter:
    return weight(f"strategy.weight_{scorer}", default, title, help, metric)


FILTER_PARAMETERS = (
    Parameter(
        name="strategy.filter_waiting",
        title="Leave out instances where more wait than",
        unit="requests",
        default=100_000,
        range=(0, 100_000),
        step=1,
        help="Instances with longer queues stay in the comparison.",
        metric="instance.waiting_max",
        up="looser: longer queues are compared",
        down="stricter: long queues are left out",
    ),
    Parameter(
        name="strategy.filter_prefill_tokens",
        title="Leave out instances with more prefill than",
        unit="tokens",
        default=100_000_000,
        range=(0, 100_000_000),
        step=10_000,
        help="Instances with more prefill before them stay in the comparison.",
        metric="instance.prefill_tokens_max",
        up="looser: more prefill is compared",
        down="stricter: instances with much prefill are left out",
    ),
    Parameter(
        name="strategy.filter_match_share",
        title="Leave out instances that hold less of the prompt than",
        unit="share",
        default=0.0,
        range=(0.0, 1.0),
        step=0.05,
        help="Only instances that hold more of the prompt are compared, where there are any.",
        metric="class.hit_share_p50",
        up="stricter: short matches are left out",
        down="looser: shorter matches are compared",
    ),
)
WEIGHTS = (
    _weight(
        "prefix",
        2.0,
        "Weight of the matching prefix",
        "Requests follow the cache further before load sends them elsewhere.",
        "class.hit_share_p50",
    ),
    _weight(
        "kv_free", 1.0, "Weight of free KV", "Requests go more to instances whose KV is empty.", "instance.kv_usage_max"
    ),
    _weight(
        "queue", 1.0, "Weight of a short queue", "Requests go more to instances where few wait.", "instance.waiting_max"
    ),
    _weight(
        "requests",
        0.0,
        "Weight of few requests",
        "Requests go more to instances with few of them.",
        "instance.running_max",
    ),
    _weight(
        "decodes",
        0.0,
        "Weight of few decodes",
        "Requests go more to instances where few are decoding.",
        "instance.running_max",
    ),
    _weight(
        "prefill",
        0.0,
        "Weight of little prefill",
        "Requests go more to instances with little to prefill, this request's new tokens with it.",
        "instance.prefill_tokens_max",
    ),
    _weight(
        "session",
        0.0,
        "Weight of the session's instance",
        "Sessions stay where they are through greater differences in load.",
        "session.reuse_gap_p90_s",
    ),
)
PICKER = Parameter(
    name="strategy.picker",
    title="Picker",
    default="best",
    choices=tuple(PICKERS),
    help="best: the greatest sum; weighted_draw: drawn in proportion to the sums; any: each that passed the filters.",
)

STRATEGY = Strategy(
    "weighted",
    "Filters, weights, picker",
    "Your own: instances are filtered, scored by weighted measures from 0 to 1, and one of them is picked.",
    "filters; then argmax Σ weight_s · score_s(i), or drawn by it",
    rank,
    reads_kv=lambda policy: policy["strategy.weight_kv_free"] > 0,
    as_published=True,
    parameters=(*FILTER_PARAMETERS, *WEIGHTS, PICKER),
)
