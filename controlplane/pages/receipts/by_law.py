"""The time to a request's first content by its pool's law: on the instance that served it, and on others. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.common.figures import ms, whole
from fleet.counted import counted
from router.contract.redis.receipt import Receipt
from router.policy.columns import RecordedColumns
from router.policy.types import Candidate, InstanceState

NOT_PREFILL = 5.0  # multiple of the law's prefill time above which the time must have another cause
SOONER = 0.2  # share of the law's time that another instance must save to be named
SOONER_MS = 50.0


@dataclass(frozen=True, slots=True)
class LawAt:
    """An instance at the moment of the decision, and the time to the first content there."""

    candidate: Candidate
    state: InstanceState
    ms: float  # time of the queued prefill, then of the new tokens


def recorded(receipt: Receipt) -> list[tuple[Candidate, InstanceState]]:
    """Return the candidates in the order of the fleet; none if no decision was made."""
    if not isinstance(receipt.candidates, dict) or receipt.prompt_tokens is None:
        return []
    try:
        columns = RecordedColumns(receipt.candidates)
        return list(zip(columns.candidates(receipt.prompt_tokens), columns.instances(), strict=True))
    except (KeyError, TypeError, ValueError):
        return []  # the page shows everything else, without the unreadable part


def pace(receipt: Receipt) -> float | None:
    """Return the prompt tokens per second of the pool's engines; None if unknown."""
    rates = (receipt.inputs or {}).get("rates")
    found = rates[0] if isinstance(rates, list | tuple) and rates else None
    return float(found) if isinstance(found, int | float) and found > 0 else None


def compared(receipt: Receipt) -> list[LawAt]:
    """Return the instances that could take the request; none if another instance computed its prompt."""
    tokens_s = pace(receipt)
    if tokens_s is None or receipt.prefill_instance:
        return []
    try:
        return [
            LawAt(one, state, 1000 * (state.prefill_tokens + (one.new_tokens or 0)) / (tokens_s * (state.pace or 1.0)))
            for one, state in recorded(receipt)
            if not one.refused and state.role == "both"
        ]
    except (TypeError, ValueError):
        return []  # written by another release


def sentences(receipt: Receipt, first_ms: float | None) -> list[str]:
    """Return the sentences. `first_ms` is the time from the router's queue to the first content, if that is a single
    interval.
    """
    places = compared(receipt)
    here = next((place for place in places if place.candidate.id == receipt.instance), None)
    said = [_expected(receipt, here, first_ms), _elsewhere(here, places) if here is not None else ""]
    return [text for text in said if text]


def _expected(receipt: Receipt, here: LawAt | None, first_ms: float | None) -> str:
    new, tokens_s = receipt.new_tokens, pace(receipt)
    if first_ms is None or tokens_s is None or not new:
        return ""
    queued = here.state.prefill_tokens if here else 0
    expected_ms = here.ms if here else 1000 * new / tokens_s
    take = (
        f"{counted(new, 'new token')}{f' behind {whole(queued)} queued' if queued else ''} take about {ms(expected_ms)}"
    )
    beside = (
        "" if here is None else f", and {receipt.instance} had {whole(here.state.running)} running when it was chosen"
    )
    if first_ms > NOT_PREFILL * expected_ms:
        return (
            f"The {ms(first_ms)} until the first content are not prefill: {take}{beside}. "
            "The rest is network, a queue in the engine, or a process that stood still."
        )
    return f"By the law of its pool {take}; the first content came after {ms(first_ms)}{beside}."


def _elsewhere(here: LawAt, places: Sequence[LawAt]) -> str:
    """Name the instance where the request would have begun earliest, if that is much earlier."""
    best = min(places, key=lambda place: place.ms)
    if here.ms - best.ms < max(SOONER_MS, SOONER * here.ms):
        return "" if len(places) < 2 else "By that law no other instance would have begun much sooner."
    held = (
        f"held {whole(best.candidate.cached_tokens)} of its tokens"
        if best.candidate.cached_tokens
        else "held none of it"
    )
    queued = f", {whole(best.state.prefill_tokens)} were queued there" if best.state.prefill_tokens else ""
    return (
        f"By that law {best.candidate.id} would have begun {ms(here.ms - best.ms)} sooner: "
        f"it {held}{queued}, and {whole(best.state.running)} ran there."
    )
