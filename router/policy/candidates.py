"""The candidates of a decision, made when somebody looks: a hot path of a hundred instances only passes them on."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from router.policy.columns import columns, inputs
from router.policy.types import Candidate, Instance, Request
from router.policy.view import Pick, cached_tokens


class Candidates(Sequence[Candidate]):
    """In the order in which the instances were given. Equal to any other sequence of equal candidates."""

    __slots__ = ("_draw", "_instances", "_made", "_pick", "_refusals", "_request")

    def __init__(
        self,
        request: Request,
        instances: Sequence[Instance],
        refusals: Mapping[int, str],
        pick: Pick | None,
        draw: float,
    ) -> None:
        self._draw = draw
        self._request = request
        self._instances = instances
        self._refusals = refusals
        self._pick = pick
        self._made: tuple[Candidate, ...] | None = None

    @overload
    def __getitem__(self, place: int) -> Candidate: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Candidate, ...]: ...
    def __getitem__(self, place: int | slice) -> Candidate | tuple[Candidate, ...]:
        return self._all()[place]

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

    def inputs(self) -> dict[str, Any]:
        """What the decision was made from besides the candidates, as a receipt keeps it."""
        return inputs(self._request, self._draw)

    def columns(self) -> dict[str, Any]:
        """As a receipt keeps them (columns.py), without making candidates."""
        cached = cached_tokens(self._request, self._instances)
        made = columns(self._request, self._instances, cached, self._in_order(), self._refusals)
        if self._pick is not None and self._pick.prefill is not None and not self._pick.refused:
            made["prefill"] = self._pick.prefill.id
        return made

    def _in_order(self) -> Sequence[float | None]:
        """The scores in the order of the instances; empty when nobody was compared."""
        pick = self._pick
        if pick is None or pick.ranked is self._instances:
            return pick.scores if pick is not None else ()
        scores = self._scores()
        return [scores.get(instance.id) for instance in self._instances] if scores else ()

    def _scores(self) -> dict[str, float]:
        if self._pick is None:
            return {}
        return {one.id: score for one, score in zip(self._pick.ranked, self._pick.scores, strict=True)}

    def _make(self) -> Iterator[Candidate]:
        prompt, scores = self._request.prompt_tokens, self._scores()
        cached = cached_tokens(self._request, self._instances)
        for place, instance in enumerate(self._instances):
            yield Candidate(
                instance.id,
                cached[place],
                prompt - cached[place],
                scores.get(instance.id),
                self._refusals.get(place, ""),
            )
