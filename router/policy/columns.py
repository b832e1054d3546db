"""The inputs of a decision, as a receipt keeps them.

Candidates are one list per field, or a single value where all are equal: {id: […], cached, tiers ([device, host,
disk] or null each; when the request had them), running, waiting, decodes, prefill_tokens, kv_usage, kv_tokens,
block_size, role, connector, pair (absent when none has one), score (null where the strategy did not compare; absent
when it compared none), refused: {index: reason}, aside: {index: reason}}. `refused` are instances that could not take
the request, `aside` those that the policy's filters left out. Those of a decision add prefill: the instance that
computes the prompt for another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from operator import attrgetter
from typing import Any

from router.policy.types import UNKNOWN, InstanceState, RoutingRequest
from router.policy.view import cached_by

FIELDS = (
    "running",
    "waiting",
    "decodes",
    "prefill_tokens",
    "kv_usage",
    "kv_tokens",
    "block_size",
    "role",
    "connector",
    "pair",
)
_NAMES = ("cached", *FIELDS)
_WRITE = attrgetter("id", "cached_tokens", *FIELDS)  # several at once: the cheapest way through many instances


def inputs(request: RoutingRequest, draw: float) -> dict[str, Any]:
    """The request and the draw, without length and session; fields with their usual values are left out."""
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
    """`scores` is empty when none was compared; `refusals` has the reasons of rejected instances by index."""
    if not instances:
        return {"id": []}
    ids, own, *by_field = zip(*map(_WRITE, instances), strict=True)
    count = len(ids)
    made: dict[str, Any] = {"id": ids}
    for name, values in zip(_NAMES, (cached_by(request, ids, own), *by_field), strict=True):
        made[name] = values if values.count(values[0]) != count else values[0]
    if not made["pair"]:
        del made["pair"]
    if scores:
        made["score"] = scores
    if request.held_tiers is not None:
        made["tiers"] = [request.held_tiers.get(name) for name in ids]
    if refusals:
        kinds = {True: "refused", False: "aside"}
        for position, why in refusals.items():
            made.setdefault(kinds[bool(instances[position].refused)], {})[str(position)] = why
    return made


def instances(made: Mapping[str, Any]) -> list[InstanceState]:
    """The instances as the decision saw them, without their cached tokens (`held`)."""
    ids: list[str] = made["id"]
    by_field = {name: unpacked(made.get(name), len(ids)) for name in FIELDS if name in made}
    refused: Mapping[str, str] = made.get("refused") or {}
    return [
        InstanceState(
            id=name,
            refused=refused.get(str(position), ""),
            **{field: values[position] for field, values in by_field.items()},
        )
        for position, name in enumerate(ids)
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
    """One object per candidate, with every field by name."""
    ids: list[str] = made["id"]
    refused, aside = made.get("refused") or {}, made.get("aside") or {}
    by_field = {name: unpacked(made.get(name), len(ids)) for name in _NAMES if name in made}
    scores = made.get("score") or [None] * len(ids)
    found = []
    for position, name in enumerate(ids):
        own = {field: values[position] for field, values in by_field.items()}
        cached = own.pop("cached")
        why = refused.get(str(position)) or aside.get(str(position), "")
        decided = {
            "cached_tokens": cached,
            "new_tokens": prompt_tokens - cached,
            "score": scores[position],
            "refused": why,
        }
        found.append({"id": name, **decided, **own})
    return found


def unpacked(column: Any, count: int) -> Sequence[Any]:
    if not isinstance(column, list):
        return [column] * count
    if len(column) != count:
        raise ValueError(f"a column has {len(column)} values for {count} candidates")
    return column
