"""Reasons of rejected requests as text for the Live page. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

WORDS = {
    "": "by the engine",
    "saturated": "queue full",
    "queue_timeout": "queue timeout",
    "deadline_unmeetable": "deadline cannot be met",
    "deadline_exceeded": "deadline passed",
    "no_instance_ready": "no instance ready",
    "waking": "not awake in time",
    "displaced": "displaced in a full queue",
    "over_ttft_limit": "over the TTFT limit",
}


def words(windows: Iterable[Mapping[str, int]]) -> str:
    """Say the counts by code summed over routers, as "3 queue full, 1 deadline passed"; the most frequent first."""
    total: Counter[str] = Counter()
    for window in windows:
        total.update(window)
    return ", ".join(f"{n:,} {WORDS.get(code, code.replace('_', ' '))}" for code, n in total.most_common() if n)
