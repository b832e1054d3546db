"""The candidates of a decision, built on first access: the hot path passes them on without reading them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, overload

from router.policy.columns import PACE, PULLS, columns, rounded
from router.policy.fleet import FleetColumns
from router.policy.types import UNKNOWN, Candidate, InstanceState, Pick, Rates, RoutingRequest
from router.policy.view import cached_tokens

# Fields that few requests set, with their usual values; all are compared in one operation
SELDOM = {"indivisible": "", "generates": True, "band": 0}
_seldom = attrgetter(*SELDOM)
_USUALLY = tuple(SELDOM.values())
_rates = attrgetter(*(one.name for one in fields(Rates)))  # astuple makes deep copies, which takes thirty times as long


class Candidates(Sequence[Candidate]):
    """The candidates, in the order of the instances. Equal to any sequence of equal candidates."""

    __slots__ = (
        "_draw",
        "_instances",
        "_left_out",
        "_made",
        "_paced",
        "_prefill",
        "_ranked",
        "_refusals",
        "_request",
        "_scores",
        "_weighed",
    )

    def __init__(
        self,
        request: RoutingRequest,
        fleet: FleetColumns,
        refusals: Mapping[int, str],
        pick: Pick | None,
        draw: float,
    ) -> None:
        self._draw = draw
        self._request = request
        self._instances = fleet.instances.copy()
        self._left_out = fleet.left_out
        self._paced = fleet.is_paced
        self._refusals = refusals
        ranked: Sequence[InstanceState] = pick.ranked if pick is not None else ()
        self._ranked = self._instances if ranked is fleet else list(ranked)
        self._scores = list(pick.scores) if pick is not None else []
        self._prefill = pick.prefill.id if pick is not None and pick.prefill is not None and not pick.refused else ""
        self._weighed = pick is not None and pick.weighed
        self._made: tuple[Candidate, ...] | None = None

    @overload
    def __getitem__(self, position: int) -> Candidate: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, position: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self._all()[position]

    def __len__(self) -> int:
        return len(self._instances)

    def __iter__(self) -> Iterator[Candidate]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all())

    def __repr__(self) -> str:
        return repr(self._all())

    def _all(self) -> tuple[Candidate, ...]:
        if self._made is None:
            self._made = tuple(self._make())
        return self._made

    def situation(self) -> tuple[RoutingRequest, list[InstanceState], float]:
        """Return the arguments of `decide`, except for the policy."""
        return self._request, self._instances, self._draw

    def inputs(self) -> dict[str, Any]:
        """Return the inputs of the decision as a receipt keeps them, without candidates, length and session;
        fields with their usual values are left out."""
        request = self._request
        kept: dict[str, Any] = {"turn": request.turn, "draw": self._draw}
        if request.bound_to is not None:
            kept["bound_to"] = request.bound_to
        if request.history_tokens:
            kept["history_tokens"] = request.history_tokens
        if request.prefix_key:
            kept["prefix_key"] = request.prefix_key
        if _seldom(request) != _USUALLY:
            kept |= {name: value for name, usual in SELDOM.items() if (value := getattr(request, name)) != usual}
        if request.pool is not None:
            kept["pool"] = [request.pool.running, request.pool.idle]
        if request.rates is not UNKNOWN:
            kept["rates"] = _rates(request.rates)
        return kept

    def columns(self) -> dict[str, Any]:
        """Return the columns of a receipt (columns.py) without building candidates."""
        made = columns(self._request, self._instances, self._in_order(), self._refusals)
        if self._paced:
            made[PACE] = [instance.pace for instance in self._instances]
        if self._weighed:
            made |= {name: [getattr(instance, name) for instance in self._instances] for name in PULLS}
        if self._prefill:
            made["prefill"] = self._prefill
        if self._left_out:
            made["left_out"] = self._left_out
        return made

    def _in_order(self) -> Sequence[float | None]:
        """Return the scores in the order of the instances; empty if no instances were compared."""
        if self._ranked is self._instances or not self._ranked:
            return self._written()
        scores = self._by_name()
        return [scores.get(instance.id) for instance in self._instances]

    def _written(self) -> Sequence[float]:
        return self._scores if self._request.pool is None else rounded(self._scores)

    def _by_name(self) -> dict[str, float]:
        return {one.id: score for one, score in zip(self._ranked, self._written(), strict=True)}

    def _make(self) -> Iterator[Candidate]:
        prompt, scores = self._request.prompt_tokens, self._by_name()
        cached = cached_tokens(self._request, FleetColumns(self._instances))
        for position, instance in enumerate(self._instances):
            yield Candidate(
                instance.id,
                cached[position],
                prompt - cached[position],
                scores.get(instance.id),
                self._refusals.get(position, ""),
            )
