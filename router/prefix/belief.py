"""Chooses the prefix index for an instance: exact, approximate, or none (load only). Pure."""

from dataclasses import dataclass
from typing import Literal

from router.prefix.accuracy import FEWEST, Accuracy

Index = Literal["exact", "approximate", "none"]
# Why an exact index is used only if it is more accurate than the approximate one
Doubt = Literal["", "from_start", "layers"]
# Reasons why a better index is not in use, for an instance and for a request
Reason = Literal[
    Doubt, "no_events", "events", "wrong", "unconfirmed", "tokenizer", "request", "index_process", "uncached"
]

EXACT_LIMIT = 0.15  # largest error at which the exact index is used, as a share of the prompts' tokens
APPROXIMATE_LIMIT = 0.5  # lenient, because the approximate index corrects itself and a rough estimate beats none


@dataclass(frozen=True, slots=True)
class Belief:
    index: Index
    why: str  # why the best index is not in use; empty if it is
    reason: Reason = ""
    but_for: str = ""  # kinds of request that the exact index does not cover


EXACT = Belief("exact", "")
UNCONFIRMED = (
    "its answers do not say what was cached (vLLM: --enable-prompt-tokens-details, SGLang: --enable-cache-report), so "
    "nothing would show that its KV events are misread"
)
_DOUBTS = {
    "from_start": "its KV events were not received from the start",
    "layers": "some layers of its model keep a window or a state, and its KV events do not say which",
}
UNCACHED = Belief("none", "its prefix caching is off", "uncached")
GUESS = Belief("approximate", "not checked yet", "no_events")


def believe(trouble: str | None, doubt: Doubt, exact: Accuracy, approximate: Accuracy, unconfirmed: int = 0) -> Belief:
    """Choose the index. `trouble` says why the exact index is out of date; it is "" if the index is up to date, None if
    there is none. `unconfirmed` counts predicted hits at an engine that reports none."""
    reason, why = _against_exact(trouble, doubt, exact.recent_error(), approximate.recent_error())
    if not why and unconfirmed >= FEWEST:
        reason, why = "unconfirmed", UNCONFIRMED
    if not why:
        return EXACT
    error = approximate.recent_error()
    if error is not None and error > APPROXIMATE_LIMIT:
        wrong = f"{why}; the approximate index is wrong by {100 * error:.0f} % of the prompt tokens"
        return Belief("none", wrong, reason)
    return Belief("approximate", why, reason)


def _against_exact(trouble: str | None, doubt: Doubt, error: float | None, other: float | None) -> tuple[Reason, str]:
    if trouble is None:
        return "no_events", "no KV events are received from it"
    if trouble:
        return "events", trouble
    if error is not None and error > EXACT_LIMIT:
        return "wrong", f"its KV events predict cached tokens wrongly, by {100 * error:.0f} % of the prompt tokens"
    if doubt and (error is None or other is None or error > other):
        return doubt, f"{_DOUBTS[doubt]}, and are not more accurate than the approximate index yet"
    return "", ""
