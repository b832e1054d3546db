"""What a decision was made from, as a receipt keeps it.

Candidates are one list per figure, or the value itself where all have the same: {id: […], cached, tiers ([device, host,
disk] or null each; when the request had them), running, waiting, decodes, prefill_tokens, kv_usage, kv_tokens,
block_size, role, connector, score (null where the route did not compare; left out when it compared nobody), refused:
{place: why}, aside: {place: why}}. `refused` are instances that could not take the request, `aside` those that the
policy's filters left out. Those of a decision add prefill: who computes the prompt when that is another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from operator import attrgetter
from typing import Any

from router.policy.types import UNKNOWN, InstanceState, RoutingRequest
from router.policy.view import cached_by

FIGURES = (
    "running",
    "waiting",
    "decodes",
    "prefill_tokens",
    "kv_usage",
    "kv_tokens",
    "block_size",
    "role",
    "connector",
)
_NAMES = ("cached", *FIGURES)
_WRITE = attrgetter("id", "cached_tokens", *FIGURES)  # several at once: the cheapest way through many instances


def inputs(request: RoutingRequest, draw: float) -> dict[str, Any]:
    """What a receipt keeps of the request and the draw besides its length and session; what is as usual is left out."""
    kept: dict[str, Any] = {"turn": request.turn, "draw": draw}
    if request.bound_to is not None:
        kept["bound_to"] = request.bound_to
    if request.history_tokens:
        kept["history_tokens"] = request.history_tokens
    if request.prefix_key:
        kept["prefix_key"] = request.prefix_key
    if request.rates is not UNKNOWN:
        kept["rates"] = astuple(request.rates)
    return kept


def columns(
    request: RoutingRequest,
    instances: Sequence[InstanceState],
    scores: Sequence[float | None],
    refusals: Mapping[int, str],
) -> dict[str, Any]:
    """`scores` is empty when nobody was compared; `refusals`: by place, why an instance was not considered."""
    if not instances:
        return {"id": []}
    ids, own, *figures = zip(*map(_WRITE, instances), strict=True)
    count = len(ids)
    made: dict[str, Any] = {"id": ids}
    for name, values in zip(_NAMES, (cached_by(request, ids, own), *figures), strict=True):
        made[name] = values if values.count(values[0]) != count else values[0]
    if scores:
        made["score"] = scores
    if request.held_tiers is not None:
        made["tiers"] = [request.held_tiers.get(name) for name in ids]
    if refusals:
        told = {True: "refused", False: "aside"}
        for place, why in refusals.items():
            made.setdefault(told[bool(instances[place].refused)], {})[str(place)] = why
    return made


def instances(made: Mapping[str, Any]) -> list[InstanceState]:
    """The instances as the decision saw them, but for what they have cached (`held`)."""
    ids: list[str] = made["id"]
    figures = {name: unpacked(made.get(name), len(ids)) for name in FIGURES}
    refused: Mapping[str, str] = made.get("refused") or {}
    return [
        InstanceState(
            id=name,
            refused=refused.get(str(place), ""),
            **{figure: values[place] for figure, values in figures.items()},
        )
        for place, name in enumerate(ids)
    ]


def held(made: Mapping[str, Any]) -> dict[str, int]:
    """h_i by instance."""
    return dict(zip(made["id"], unpacked(made.get("cached"), len(made["id"])), strict=True))


def held_tiers(made: Mapping[str, Any]) -> dict[str, tuple[int, int, int]] | None:
    if "tiers" not in made:
        return None
    return {
        name: (tiers[0], tiers[1], tiers[2])
        for name, tiers in zip(made["id"], made["tiers"], strict=True)
        if tiers is not None
    }


def rows(made: Mapping[str, Any], prompt_tokens: int) -> list[dict[str, Any]]:
    """One object per candidate, with every figure by name."""
    ids: list[str] = made["id"]
    refused, aside = made.get("refused") or {}, made.get("aside") or {}
    figures = {name: unpacked(made.get(name), len(ids)) for name in _NAMES}
    scores = made.get("score") or [None] * len(ids)
    found = []
    for place, name in enumerate(ids):
        own = {figure: values[place] for figure, values in figures.items()}
        cached = own.pop("cached")
        why = refused.get(str(place)) or aside.get(str(place), "")
        told = {"cached_tokens": cached, "new_tokens": prompt_tokens - cached, "score": scores[place], "refused": why}
        found.append({"id": name, **told, **own})
    return found


def unpacked(column: Any, count: int) -> Sequence[Any]:
    if not isinstance(column, list):
        return [column] * count
    if len(column) != count:
        raise ValueError(f"a column has {len(column)} values for {count} candidates")
    return column
