"""Scores of the instances, each by one measure, from 0 to 1 (best); strategies weight them."""

from collections.abc import Callable, Sequence
from itertools import repeat
from operator import add, mul, sub

from router.policy.types import InstanceState
from router.policy.view import View

Scorer = Callable[[View], list[float]]


def prefix(view: View) -> list[float]:
    """h_i / L"""
    prompt = view.request.prompt_tokens or 1
    return [cached / prompt for cached in view.cached]


def kv_free(view: View) -> list[float]:
    """1 − u_i"""
    return view.instances.column(_kv_free)


def queue(view: View) -> list[float]:
    """(max q − q_i) / (max q − min q)"""
    return few(view.instances.waiting)


def requests(view: View) -> list[float]:
    """(max R − R_i) / (max R − min R)"""
    return few(view.instances.running)


def decodes(view: View) -> list[float]:
    """(max D − D_i) / (max D − min D)"""
    return few(view.instances.decodes)


def prefill(view: View) -> list[float]:
    """(max w − w_i) / (max w − min w), w_i = PP_i + n_i"""
    return few(view.at_pace(list(map(add, view.instances.prefill_tokens, view.new))))


def session(view: View) -> list[float]:
    """1 on the session's instance, 0 elsewhere."""
    bound_to = view.request.bound_to
    return [1.0 if name == bound_to else 0.0 for name in view.instances.ids]


def _kv_free(instance: InstanceState) -> float:
    return 1 - instance.kv_usage


def few(counts: Sequence[float]) -> list[float]:
    """Scale to 1 for the least and 0 for the most; 1 for all if they are equal."""
    most, least = max(counts), min(counts)
    if most == least:
        return [1.0] * len(counts)
    span = most - least
    return [(most - count) / span for count in counts]


SCORERS: dict[str, Scorer] = {
    "prefix": prefix,
    "kv_free": kv_free,
    "queue": queue,
    "requests": requests,
    "decodes": decodes,
    "prefill": prefill,
    "session": session,
}


def scored(view: View, weights: dict[str, float]) -> dict[str, list[float]]:
    return {name: SCORERS[name](view) for name, weight in weights.items() if weight}


def missing(scores: dict[str, list[float]], weights: dict[str, float]) -> list[float]:
    """Return each instance's gap to the best possible weighted sum; the smallest gap is best."""
    lacking = [sum(weights[name] for name in scores)] * len(next(iter(scores.values())))
    for name, own in scores.items():
        weight = weights[name]
        weighted = own if weight == 1 else map(mul, repeat(weight), own)
        lacking = list(map(sub, lacking, weighted))
    return lacking


def explained(scores: dict[str, list[float]], position: int) -> str:
    return "scores " + ", ".join(f"{name} {own[position]:.2f}" for name, own in scores.items())
