"""The requests of one API key over time, from the kept receipts. Pure."""

from collections.abc import Iterable
from typing import TypedDict

from controlplane.pages.receipts.query import end_of
from router.contract.redis.receipt import Receipt

BINS = 60
LINES = ("served", "refused", "client_errors", "failed", "prompt", "output")
_CALLED = {"client_error": "client_errors", "error": "failed"}  # other requests were served, whole or in part


class KeySeries(TypedDict):
    until: float
    bin_s: float
    at: list[float]  # end of each bin
    load: dict[str, list[float | None]]  # by LINES: requests and tokens a minute; None before the oldest receipt
    limits: dict[str, float | None]  # limit per minute, by chart


def series(
    receipts: Iterable[Receipt], key: str, until: float, seconds: int, limits: dict[str, float | None]
) -> KeySeries:
    """Return the series. `receipts`: those of all keys, newest end first, to tell a time without requests from one no
    longer kept."""
    bin_s = seconds / BINS
    begin = until - seconds
    sums = {line: [0.0] * BINS for line in LINES}
    oldest = until
    for receipt in receipts:
        oldest = min(oldest, receipt.at)
        if end_of(receipt) < begin:
            break  # The others ended earlier still.
        if receipt.key == key and begin <= receipt.at < until:
            place = min(BINS - 1, int((receipt.at - begin) / bin_s))
            for line, amount in _amounts(receipt):
                sums[line][place] += amount
    kept = [begin + (i + 1) * bin_s > oldest for i in range(BINS)]
    return {
        "until": until,
        "bin_s": bin_s,
        "at": [begin + (i + 1) * bin_s for i in range(BINS)],
        "load": {
            line: [amount * 60 / bin_s if is_kept else None for amount, is_kept in zip(amounts, kept, strict=True)]
            for line, amounts in sums.items()
        },
        "limits": limits,
    }


def _amounts(receipt: Receipt) -> list[tuple[str, float]]:
    if receipt.outcome == "refused":
        return [("refused", 1)]
    prompt = receipt.actual_prompt_tokens or receipt.prompt_tokens or 0
    return [
        (_CALLED.get(receipt.outcome or "", "served"), 1),
        ("prompt", prompt),
        ("output", receipt.output_tokens or 0),
    ]
