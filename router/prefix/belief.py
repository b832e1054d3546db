"""Which index to believe of an instance: the exact one, the approximate one, or none (load only). Pure."""

from dataclasses import dataclass
from typing import Literal

from router.prefix.accuracy import Accuracy

Index = Literal["exact", "approximate", "none"]

EXACT_LIMIT = 0.15  # share of the prompts' tokens by which the exact index may be wrong
APPROXIMATE_LIMIT = 0.5  # the approximate one corrects itself, and a wrong guess is better than none


@dataclass(frozen=True, slots=True)
class Belief:
    index: Index
    why: str  # the better index is not believed; "" when it is


EXACT = Belief("exact", "")
GUESS = Belief("approximate", "it has not been looked at yet")


def believe(trouble: str | None, complete: bool, exact: Accuracy, approximate: Accuracy) -> Belief:
    """`trouble`: what keeps the exact index from being up to date, "" when it is, None when there is none at all;
    `complete`: it has seen everything that the engine holds."""
    why = _against_exact(trouble, complete, exact.recent_error(), approximate.recent_error())
    if not why:
        return EXACT
    error = approximate.recent_error()
    if error is not None and error > APPROXIMATE_LIMIT:
        return Belief("none", f"{why}; the approximate index is wrong by {error:.0%} of the tokens")
    return Belief("approximate", why)


def _against_exact(trouble: str | None, complete: bool, error: float | None, other: float | None) -> str:
    if trouble is None:
        return "it publishes no KV events that are followed"
    if trouble:
        return trouble
    if error is not None and error > EXACT_LIMIT:
        return f"its events predict cached tokens wrongly, by {error:.0%} of the tokens"
    if not complete and (error is None or other is None or error > other):
        return "its events were not heard from the beginning, and have not proved better than a guess yet"
    return ""
