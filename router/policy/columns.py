"""What a decision was made from, as a receipt keeps it.

Candidates are one list per figure, or the value itself where all have the same: {id: […], cached, tiers ([device, host,
disk] or null each; when the request had them), running, waiting, decodes, prefill_tokens, kv_usage, kv_tokens,
block_size, role, connector, score (null where the route did not compare; left out when it compared nobody), refused:
{place: why}, aside: {place: why}}. `refused` are instances that could not take the request, `aside` those that the
policy's filters left out. Those of a decision add prefill: who computes the prompt when that is another.
"""

from collections.abc import Mapping, Sequence
from dataclasses import astuple
from typing import Any

from router.policy.types import Instance, Rates, Request

_UNKNOWN = Rates()
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


def inputs(request: Request, draw: float) -> dict[str, Any]:
    """What a receipt keeps of the request and the draw; what is as usual is left out."""
    kept: dict[str, Any] = {"prompt_tokens": request.prompt_tokens, "turn": request.turn, "draw": draw}
    if request.session is not None:
        kept["session"] = request.session
    if request.bound_to is not None:
        kept["bound_to"] = request.bound_to
    if request.history_tokens:
        kept["history_tokens"] = request.history_tokens
    if request.prefix_key:
        kept["prefix_key"] = request.prefix_key
    if request.rates != _UNKNOWN:
        kept["rates"] = astuple(request.rates)
    return kept


def columns(
    request: Request,
    instances: Sequence[Instance],
    cached: Sequence[int],
    scores: Mapping[str, float],
    refusals: Mapping[int, str],
) -> dict[str, Any]:
    """`refusals`: by place, why an instance was not considered; the scores are by instance id."""
    made: dict[str, Any] = {
        "id": [instance.id for instance in instances],
        "cached": _packed(cached),
        "running": _packed([instance.running for instance in instances]),
        "waiting": _packed([instance.waiting for instance in instances]),
        "decodes": _packed([instance.decodes for instance in instances]),
        "prefill_tokens": _packed([instance.prefill_tokens for instance in instances]),
        "kv_usage": _packed([instance.kv_usage for instance in instances]),
        "kv_tokens": _packed([instance.kv_tokens for instance in instances]),
        "block_size": _packed([instance.block_size for instance in instances]),
        "role": _packed([instance.role for instance in instances]),
        "connector": _packed([instance.connector for instance in instances]),
    }
    if scores:
        made["score"] = [scores.get(name) for name in made["id"]]
    if request.held_tiers is not None:
        made["tiers"] = [request.held_tiers.get(name) for name in made["id"]]
    if refusals:
        told = {True: "refused", False: "aside"}
        for place, why in refusals.items():
            made.setdefault(told[bool(instances[place].refused)], {})[str(place)] = why
    return made


def instances(made: Mapping[str, Any]) -> list[Instance]:
    """The instances as the decision saw them, but for what they have cached (`held`)."""
    ids: list[str] = made["id"]
    figures = {name: unpacked(made[name], len(ids)) for name in FIGURES}
    refused: Mapping[str, str] = made.get("refused") or {}
    return [
        Instance(
            id=name,
            refused=refused.get(str(place), ""),
            **{figure: values[place] for figure, values in figures.items()},
        )
        for place, name in enumerate(ids)
    ]


def held(made: Mapping[str, Any]) -> dict[str, int]:
    """h_i by instance."""
    return dict(zip(made["id"], unpacked(made["cached"], len(made["id"])), strict=True))


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
    figures = {name: unpacked(made[name], len(ids)) for name in ("cached", *FIGURES)}
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


def _packed(values: Sequence[Any]) -> Any:
    """The one value that all have, else the values."""
    return values[0] if values and values.count(values[0]) == len(values) else values
