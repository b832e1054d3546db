"""The newest requests in relation to class thresholds: their sizes, and the class of each by a document."""

from collections import Counter
from collections.abc import Iterable, Sequence

from fleet.counted import percent
from router.contract.redis.receipt import Receipt
from router.policy.rules.classify import classify
from router.policy.types import CLASSES, ParsedPolicy, RequestClass

Size = tuple[int, int]  # prompt tokens and, of these, predicted cached tokens


def sizes(requests: Iterable[Receipt]) -> list[Size]:
    return [
        (receipt.prompt_tokens, min(receipt.predicted_cached, receipt.prompt_tokens))
        for receipt in requests
        if receipt.prompt_tokens is not None and receipt.predicted_cached is not None
    ]


def classes_of(found: Sequence[Size], policy: ParsedPolicy) -> list[RequestClass]:
    return [classify(prompt, cached, policy) for prompt, cached in found]


def sentence(found: Sequence[Size], live: ParsedPolicy, draft: ParsedPolicy) -> str:
    """Describe the shares; static/js/thresholds.js writes the same sentence while a threshold is moved."""
    before, after = classes_of(found, live), classes_of(found, draft)
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    was, now = Counter(before), Counter(after)
    parts = [f"{name} {_change(was[name], now[name], len(found))}" for name in CLASSES]
    verb = "changes" if moved == 1 else "change"
    changes = f"{moved:,} of {len(found):,} requests {verb} class" if moved else "no request changes its class"
    return f"{', '.join(parts)}: {changes}."


def _change(was: int, now: int, of: int) -> str:
    old, new = (percent(count / of, ".1f") for count in (was, now))
    return new if old == new else f"{old} → {new}"
