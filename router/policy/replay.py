"""Replay of a recorded decision from its receipt, under any policy. Pure."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from router.policy.columns import RecordedColumns
from router.policy.decide import decide
from router.policy.reasons import in_words, of_price
from router.policy.types import Candidate, Decision, InstanceState, ParsedPolicy, PoolLoad, Rates, RoutingRequest

if TYPE_CHECKING:
    from router.contract.redis.receipt import Receipt

RATES = len(fields(Rates))  # older receipts have four rates, or a fifth rate that is always 0


class NotReplayable(ValueError):
    """The receipt lacks inputs of its decision; the message says why."""


@dataclass(frozen=True, slots=True)
class DecisionInputs:
    """The arguments of `decide`."""

    request: RoutingRequest
    instances: list[InstanceState]
    draw: float

    def decide(self, policy: ParsedPolicy) -> Decision:
        return decide(self.request, self.instances, policy, self.draw)


@dataclass(frozen=True, slots=True)
class ReplayedDecision:
    """A decision, as far as receipts record it."""

    instance: str
    prefill: str
    request_class: str
    flow: str  # decided flow; "offload" for every connector
    strategy: str
    rule: str
    reasons: tuple[str, ...]
    cached_tokens: int
    new_tokens: int
    candidates: tuple[Candidate, ...]

    def differences(self, other: "ReplayedDecision") -> list[str]:
        return [one.name for one in fields(self) if getattr(self, one.name) != getattr(other, one.name)]


def situation(receipt: "Receipt") -> DecisionInputs:
    """Return the inputs of the receipt's decision. Raise NotReplayable if some are missing."""
    if receipt.rule is None:
        raise NotReplayable("the request was refused before a decision")
    kept, made = receipt.inputs, receipt.candidates
    length = receipt.prompt_tokens
    if length is None or not isinstance(kept, dict) or not isinstance(made, dict):
        raise NotReplayable("it lacks the inputs of the decision: an older router wrote it")
    try:
        columns = RecordedColumns(made)
        request = RoutingRequest(
            prompt_tokens=length,
            session=receipt.session,
            bound_to=kept.get("bound_to"),
            history_tokens=kept.get("history_tokens", 0),
            held=columns.held(),
            held_tiers=columns.held_tiers(),
            rates=Rates(*kept.get("rates", ())[:RATES]),
            prefix_key=kept.get("prefix_key", 0),
            turn=kept["turn"],
            indivisible=kept.get("indivisible", ""),
            generates=kept.get("generates", True),
            band=kept.get("band", 0),
            pool=PoolLoad(*map(float, kept["pool"])) if "pool" in kept else None,
        )
        return DecisionInputs(request, columns.instances(), float(kept["draw"]))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise NotReplayable(f"the inputs of its decision cannot be read: {type(error).__name__} {error}") from None


def reasons(receipt: "Receipt") -> tuple[str, ...]:
    """Return the reasons of the receipt's decision as text."""
    return receipt.reasons if receipt.price is None else of_price(receipt.price)


def recorded(receipt: "Receipt") -> ReplayedDecision:
    """Return the decision that a replayable receipt records."""
    columns = RecordedColumns(receipt.candidates)
    return ReplayedDecision(
        instance=receipt.instance or "",
        prefill=columns.prefill,
        request_class=receipt.request_class or "",
        flow="offload" if columns.prefill else "colocated",
        strategy=receipt.strategy or "",
        rule=receipt.rule or "",
        reasons=reasons(receipt),
        cached_tokens=receipt.predicted_cached or 0,
        new_tokens=receipt.new_tokens or 0,
        candidates=tuple(
            columns.candidates(receipt.prompt_tokens or 0, of_large_pool="pool" in (receipt.inputs or {}))
        ),
    )


def outcome(decision: Decision) -> ReplayedDecision:
    return ReplayedDecision(
        instance=decision.instance,
        prefill=decision.prefill,
        request_class=decision.request_class,
        flow=decision.flow,
        strategy=decision.strategy,
        rule=decision.rule,
        reasons=in_words(decision.reasons),
        cached_tokens=decision.cached_tokens,
        new_tokens=decision.new_tokens,
        candidates=tuple(decision.candidates),
    )
