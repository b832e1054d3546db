"""What class thresholds make of the newest requests: their sizes, and the class of each under a document."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import redis

from controlplane.receipts.reader import newest_receipts
from router.policy.rules.classify import classify
from router.policy.schema import document as documents
from router.policy.types import RequestClass

MOST = 2_000  # requests
CLASSES: tuple[RequestClass, ...] = ("warm", "medium", "heavy")

Size = tuple[int, int]  # prompt tokens and, of them, cached ones, as predicted


def sizes(client: redis.Redis, pools: Collection[str], most: int = MOST) -> tuple[list[Size], float]:
    """(sizes of the newest requests of the pools, newest first; when the oldest of them arrived, Unix s)."""
    found, since = list[Size](), 0.0
    for receipt in newest_receipts(client):
        if receipt.pool not in pools or receipt.prompt_tokens is None or receipt.predicted_cached is None:
            continue
        found.append((receipt.prompt_tokens, min(receipt.predicted_cached, receipt.prompt_tokens)))
        since = receipt.at
        if len(found) == most:
            break
    return found, since


def classes_of(found: Sequence[Size], document: Mapping[str, Any]) -> list[RequestClass]:
    """By the document's thresholds."""
    policy = documents.parse(document)
    return [classify(prompt, cached, policy) for prompt, cached in found]


def sentence(found: Sequence[Size], live: Mapping[str, Any], draft: Mapping[str, Any]) -> str:
    """static/js/thresholds.js writes the same while a threshold moves."""
    before, after = classes_of(found, live), classes_of(found, draft)
    moved = sum(old != new for old, new in zip(before, after, strict=True))
    was, now = Counter(before), Counter(after)
    parts = [f"{name} {_change(was[name], now[name], len(found))}" for name in CLASSES]
    changes = "no request changes its class" if not moved else f"{_requests(moved)} of {len(found):,} change class"
    return f"{', '.join(parts)}: {changes}."


def _change(was: int, now: int, of: int) -> str:
    old, new = (f"{share * 100 / of:.1f} %" for share in (was, now))
    return new if old == new else f"{old} → {new}"


def _requests(number: int) -> str:
    return f"{number:,} request{'' if number == 1 else 's'}"
