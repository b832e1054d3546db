"""The causes of waits on the instances of a fixed split: KV usage of the fullest ones, and the parts of the TTFT."""

from collections.abc import Callable, Iterator
from statistics import fmean

from bench.played import METRICS, Played, Runs
from fleet.counted import percent

WALL: tuple[tuple[str, Callable[[Played], float]], ...] = (  # KV of the fullest quarter; shares of TTFT
    ("KV, mean", lambda one: one.fullest_kv),
    ("KV, middle half", lambda one: one.middle_kv),
    ("KV, peak", lambda one: one.peak_kv),
    ("TTFT that waits for KV", lambda one: one.waits_for_kv),
    ("in queues", lambda one: one.waits - one.waits_for_kv),
)


def head() -> tuple[str, ...]:
    titles = " | ".join(title for title, _ in WALL)
    return ("", f"| | {titles} | TTFT p90, s |", "|---" * (len(WALL) + 2) + "|")


def rows(before: str, runs: Runs) -> Iterator[str]:
    """Yield one row per arm, with `before` in front of its name."""
    for arm, played in runs.items():
        cells = (percent(fmean(map(of, played)), ".1f") for _, of in WALL)
        ttft = fmean(METRICS["ttft_p90"](one) for one in played)
        yield f"| {before}{arm} | {' | '.join(cells)} | {ttft:,.2f} |"
