"""The inputs of a decision, as a receipt stores them. Candidates are stored as one list per field, or as a single value
if all are equal: {id: […], cached, tiers (each [device, host, disk] or null; only if the request had them), running,
waiting, decodes, prefill_tokens, kv_usage (null, like waiting, if the load was unknown), kv_tokens, block_size, role,
connector, pair (absent if no instance has one), score (null where the strategy did not compare; absent if it compared
none), refused: {index: reason}, aside: {index: reason}}. `refused` holds instances that could not take the request,
`aside` those that the policy's filters excluded. A decision adds: prefill, the instance that computes the prompt for
another; pace, absent if it is 1 for all; pulls and pull_tokens, if a pull was compared with computing; left_out:
{reason: count} for instances that the decision did not compare, namely those of a large pool beyond the shortlist and
those without the request's adapter.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from router.policy.types import KV_UNKNOWN, Candidate, InstanceState, RoutingRequest
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
PACE = "pace"
PULLS = ("pulls", "pull_tokens")
UNKNOWN = {"kv_usage": KV_UNKNOWN, "waiting": 0}  # values of an unknown load, written as null
LARGE = 1_000.0


def _shortened(column: list[Any]) -> Any:
    """Return the column, or its value if all are equal."""
    first = column[0]
    return first if column.count(first) == len(column) else column


def rounded(scores: Sequence[Any]) -> list[Any]:
    """Round to about seven digits; unrounded, the scores of a large pool take up a quarter of its receipts."""
    known = [abs(one) for one in scores if one is not None and one != inf]
    places = 2 if max(known, default=0.0) > LARGE else 6
    return [None if one is None else round(one, places) for one in scores]


def columns(
    request: RoutingRequest,
    instances: list[InstanceState],
    scores: Sequence[float | None],
    refusals: Mapping[int, str],
) -> dict[str, Any]:
    """Return the columns. `scores` is empty if no instances were compared; `refusals` holds reasons of rejection by
    index."""
    if not instances:
        return {"id": []}
    ids = [one.id for one in instances]
    waiting, usage = [one.waiting for one in instances], [one.kv_usage for one in instances]
    known = [one.known for one in instances] if KV_UNKNOWN in usage else []
    own = [one.cached_tokens for one in instances] if request.held is None else []
    # Fields are named one by one, because compiled code reads them directly
    made: dict[str, Any] = {
        "id": ids,
        "cached": _shortened(list(cached_by(request, ids, own))),
        "running": _shortened([one.running for one in instances]),
        "waiting": _shortened([row["waiting"] for row in known] or waiting),
        "decodes": _shortened([one.decodes for one in instances]),
        "prefill_tokens": _shortened([one.prefill_tokens for one in instances]),
        "kv_usage": _shortened([row["kv_usage"] for row in known] or usage),
        "kv_tokens": _shortened([one.kv_tokens for one in instances]),
        "block_size": _shortened([one.block_size for one in instances]),
        "role": _shortened([one.role for one in instances]),
        "connector": _shortened([one.connector for one in instances]),
    }
    if pair := _shortened([one.pair for one in instances]):
        made["pair"] = pair
    if scores:
        made["score"] = scores
    if request.held_tiers is not None:
        made["tiers"] = [request.held_tiers.get(name) for name in ids]
    if refusals:
        kinds = {True: "refused", False: "aside"}
        for position, why in refusals.items():
            made.setdefault(kinds[bool(instances[position].refused)], {})[str(position)] = why
    return made


class RecordedColumns:
    """The candidates of a receipt. Fields that a router did not write raise KeyError, TypeError, ValueError, IndexError
    or AttributeError, here or when they are read."""

    def __init__(self, made: dict[str, Any]) -> None:
        self._made = made
        self.ids: list[str] = made["id"]
        self.prefill: str = made.get("prefill", "")
        self.refused: dict[str, str] = made.get("refused") or {}  # reasons by index (as text)
        self.left_out: dict[str, int] = made.get("left_out") or {}  # number of instances not compared, by reason

    def column(self, name: str) -> Sequence[Any]:
        column = self._made.get(name)
        if not isinstance(column, list):
            return [column] * len(self.ids)
        if len(column) != len(self.ids):
            raise ValueError(f"a column has {len(column)} values for {len(self.ids)} candidates")
        return column

    def instances(self) -> list[InstanceState]:
        """Return the instances as the decision saw them, without their cached tokens (`held`)."""
        by_field = {name: self.column(name) for name in (*FIELDS, PACE, *PULLS) if name in self._made}
        for name, value in UNKNOWN.items():
            if None in by_field.get(name, ()):
                by_field[name] = [value if known is None else known for known in by_field[name]]
        return [
            InstanceState(
                id=name,
                refused=self.refused.get(str(position), ""),
                **{field: values[position] for field, values in by_field.items()},
            )
            for position, name in enumerate(self.ids)
        ]

    def held(self) -> dict[str, int]:
        """Return h_i by instance."""
        return dict(zip(self.ids, self.column("cached"), strict=True))

    def held_tiers(self) -> dict[str, tuple[int, int, int]] | None:
        if "tiers" not in self._made:
            return None
        return {
            name: (tiers[0], tiers[1], tiers[2])
            for name, tiers in zip(self.ids, self._made["tiers"], strict=True)
            if tiers is not None
        }

    def candidates(self, prompt_tokens: int, *, of_large_pool: bool = False) -> list[Candidate]:
        rejected = {**(self._made.get("aside") or {}), **self.refused}
        scores = self._made.get("score") or [None] * len(self.ids)
        if of_large_pool:  # unrounded in receipts of older routers
            scores = rounded(scores)
        cached = self.column("cached")
        return [
            Candidate(name, held, prompt_tokens - held, scores[position], rejected.get(str(position), ""))
            for position, (name, held) in enumerate(zip(self.ids, cached, strict=True))
        ]
