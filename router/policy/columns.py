"""The inputs of a decision, as a receipt stores them.
Candidates are stored as one list per field, or as a single value if all are equal: {id: […], cached, tiers (each
[device, host, disk] or null; only if the request had them), running, waiting, decodes, prefill_tokens, kv_usage (null,
like waiting, if the load was unknown), kv_tokens, block_size, role, connector, pair (absent if no instance has one),
score (null where the strategy did not compare; absent if it compared none), refused: {index: reason}, aside: {index:
reason}}.
`refused` holds instances that could not take the request, `aside` those that the policy's filters excluded. A decision
adds: prefill, the instance that computes the prompt for another; pace, absent if it is 1 for all; pulls and
pull_tokens, where a pull was weighed against computing; left_out: {reason: count} for instances that the decision did
not compare, namely those of a large pool beyond the shortlist and those without the request's adapter.
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
_NAMES = ("cached", *FIELDS)
_KV_USAGE = FIELDS.index("kv_usage")


def _by_field(instances: Sequence[Any], ids: list[str]) -> list[list[Any]]:
    """Return the columns of FIELDS, and add the ids: by a loop, as compiled code reads a named field at once."""
    made: tuple[list[Any], ...] = ([], [], [], [], [], [], [], [], [], [])
    running, waiting, decodes, prefill, usage, tokens, sizes, roles, connectors, pairs = made
    for one in instances:
        ids.append(one.id)
        running.append(one.running)
        waiting.append(one.waiting)
        decodes.append(one.decodes)
        prefill.append(one.prefill_tokens)
        usage.append(one.kv_usage)
        tokens.append(one.kv_tokens)
        sizes.append(one.block_size)
        roles.append(one.role)
        connectors.append(one.connector)
        pairs.append(one.pair)
    return list(made)


def _as_known(instances: Sequence[InstanceState], by_field: list[list[Any]]) -> list[list[Any]]:
    """Return the columns, with null where an instance's load is unknown."""
    if KV_UNKNOWN not in by_field[_KV_USAGE]:
        return by_field
    known = [instance.known for instance in instances]
    nulled: dict[int, list[Any]] = {FIELDS.index(name): [row[name] for row in known] for name in UNKNOWN}
    return [nulled.get(place, column) for place, column in enumerate(by_field)]


def rounded(scores: Sequence[Any]) -> list[Any]:
    """Round to about seven digits; unrounded, the scores of a large pool take a quarter of its receipts."""
    known = [abs(one) for one in scores if one is not None and one != inf]
    places = 2 if max(known, default=0.0) > LARGE else 6
    return [None if one is None else round(one, places) for one in scores]


def columns(
    request: RoutingRequest,
    instances: Sequence[InstanceState],
    scores: Sequence[float | None],
    refusals: Mapping[int, str],
) -> dict[str, Any]:
    """Return the columns. `scores` is empty if no instances were compared; `refusals` holds reasons of rejection by
    index."""
    if not instances:
        return {"id": []}
    ids: list[str] = []
    by_field, count = _by_field(instances, ids), len(instances)
    made: dict[str, Any] = {"id": ids}
    own = [one.cached_tokens for one in instances] if request.held is None else ()
    every = [cached_by(request, ids, own), *_as_known(instances, by_field)]
    for name, values in zip(_NAMES, every):  # noqa: B905 - one for each field
        first = values[0]
        made[name] = first if values.count(first) == count else values
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
        if of_large_pool:  # older routers wrote them unrounded
            scores = rounded(scores)
        cached = self.column("cached")
        return [
            Candidate(name, held, prompt_tokens - held, scores[position], rejected.get(str(position), ""))
            for position, (name, held) in enumerate(zip(self.ids, cached, strict=True))
        ]
