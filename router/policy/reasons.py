"""Reasons of a decision by least price, formatted as text only when they are read, which is rare."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, overload

from router.policy.value import Value


class LeastPrice(Value, frozen=True):
    """Why an instance had the least price: numbers in tokens of prefill, except for requests and weights. Receipts
    store them as a list; newer routers may append fields."""

    price: float | None  # None: infinite
    instance: str  # instance that computes the prompt
    queued: int
    cost: float  # cost of the new tokens
    new: int
    transfer: float | None  # None: prompt and answer are computed on the same instance
    late: float | None  # waiting time from which the first token is late; None: it is in time
    lost: float | None  # cost of a late wait
    stalled: int  # requests that decode there
    stall: float  # weight of a stall
    requests: int  # requests on the instance that decodes the answer
    context: float  # tokens of their context
    beside: float  # price of decoding beside them
    idle: float | Sequence[int]  # share of instances without prompts to compute, or (count, total)

    def in_words(self) -> tuple[str, ...]:
        queued, cost, stall, idle = self.queued, self.cost, self.stall, self.idle
        moved = "" if self.transfer is None else f", {self.transfer:,.0f} for the transfer"
        lost = "" if self.late is None else f": late after {self.late:,.0f}, which counts as {self.lost:,.0f}"
        share = f"{100 * idle:.0f} % of the pool" if isinstance(idle, float | int) else f"{idle[0]} of {idle[1]}"
        return (
            f"least price: {inf if self.price is None else self.price:,.0f} tokens of prefill",
            f"its own wait on {self.instance}: {queued:,} queued, {cost:,.0f} for {self.new:,} new{moved}{lost}",
            f"a prefill stalls {self.stalled:d} requests: {stall:.2f} · {self.stalled * cost:,.0f}",
            f"decoding beside {self.requests} requests and {self.context:,.0f} tokens of context: {self.beside:,.0f}",
            f"a stall weighs {stall:.2f}: {share} compute no prompt",
        )


def of_price(listed: Sequence[Any]) -> tuple[str, ...]:
    """Return the reasons that a receipt lists; empty if its list has none."""
    try:
        return LeastPrice(*listed[: len(LeastPrice.__struct_fields__)]).in_words()
    except (TypeError, ValueError, LookupError, ArithmeticError):
        return ()


class Reasons(Value, frozen=True):
    """A lazy tuple of texts, equal to any tuple of the same texts."""

    make: Callable[..., tuple[Any, ...]]  # returns the fields of a LeastPrice
    given: tuple[Any, ...]  # immutable values

    def in_words(self) -> tuple[str, ...]:
        """Return the texts. tuple() on this object would ask for its length first and build the texts twice."""
        return LeastPrice(*self.terms()).in_words()

    def terms(self) -> tuple[Any, ...]:
        return self.make(*self.given)

    def __iter__(self) -> Iterator[str]:
        return iter(self.in_words())

    def __len__(self) -> int:
        return len(self.in_words())

    @overload
    def __getitem__(self, position: int) -> str: ...
    @overload
    def __getitem__(self, position: slice) -> tuple[str, ...]: ...
    def __getitem__(self, position: int | slice) -> str | tuple[str, ...]:
        return self.in_words()[position]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, tuple | Reasons) and self.in_words() == tuple(other)

    def __hash__(self) -> int:
        return hash(self.in_words())

    def __repr__(self) -> str:
        return repr(self.in_words())


InWords = tuple[str, ...] | Reasons


def in_words(reasons: InWords) -> tuple[str, ...]:
    return reasons if isinstance(reasons, tuple) else reasons.in_words()
