"""The adaptive-offload design on its author's fleet: changes that the author measured there, next to the twin's.

Published in agentic-kvc, commits d11d9f5cb9 and 42bcd31976, a report of 2026-05-22. Its traffic is another agentic
trace, and it does not say whether its TTFT is a mean or a median, so medians are shown as well.

`python -m bench.own_fleet --traces FOLDER` writes tpot.csv: why D changes the TPOT, also with transfers in no time.
"""

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from bench import sheets
from bench.played import DESIGN, Cell, Played, Runs, play, spread
from controlplane.evidence.experiments.matrix.presets import ON_FLEET_OF_DESIGN
from controlplane.evidence.experiments.results.statistics import stats

NOISE = 0.02  # share below which a measured change counts as none


def _quantile(name: str, q: float) -> Callable[[Played], float]:
    return lambda one: stats.quantile(sorted(getattr(one, name)), q)


TTFT, E2E, TPOT = _quantile("ttft", 0.5), _quantile("e2e", 0.5), _quantile("tpot", 0.9)


@dataclass(frozen=True)
class Measured:
    """A change against A."""

    name: str
    arm: str
    of: Callable[[Played], float]
    change: float  # 0.01: 1 % more
    values: str = ""  # values as the author gives them


MEASURED = (
    Measured("B, TTFT p50", "B", TTFT, 0.012),
    Measured("B, TPOT p90", "B", TPOT, -0.015),
    Measured("B, E2E p50", "B", E2E, -0.003),
    Measured("D at 9.7 GB/s, TTFT p50", "D at 9.7 GB-s", TTFT, 1.462 / 0.737 - 1, "0.737 → 1.462 s"),
    Measured("D at 3 GB/s, TTFT p50", "D at 3 GB-s", TTFT, 1.462 / 0.737 - 1, "0.737 → 1.462 s"),
    Measured("D at 9.7 GB/s, TPOT p90", "D at 9.7 GB-s", TPOT, 0.077 / 0.072 - 1, "72 → 77 ms"),
    Measured("4P+4D, TTFT p50", "static 4P4D", TTFT, 1.994 / 0.737 - 1, "0.737 → 1.994 s"),
)


def table(runs: Runs) -> Iterator[str]:
    """Yield one row per measured change."""
    yield "| against A | measured | values | here | verdict |"
    yield "|---" * 5 + "|"
    for one in MEASURED:
        before, now = ([one.of(each) for each in runs[arm]] for arm in ("A", one.arm))
        middle, half = change(before, now)
        here = f"{100 * middle:+.1f} ± {100 * half:.1f} %"
        found = verdict(one.change, middle, half)
        yield f"| {one.name} | {100 * one.change:+.1f} % | {one.values} | {here} | {found} |"


def change(before: Sequence[float], now: Sequence[float]) -> tuple[float, float]:
    """Return (mean change over the paired seeds, half of its interval), as shares of the mean before."""
    middle, half = spread([late - soon for soon, late in zip(before, now, strict=True)])
    return middle / fmean(before), half / fmean(before)


def verdict(measured: float, middle: float, half: float) -> str:
    """Tell whether the twin agrees with the measurement."""
    if abs(middle) <= half:
        return "no difference in either" if abs(measured) < NOISE else "no difference here"
    if abs(measured) < NOISE:
        return "a difference only here"
    return "the same direction" if (measured > 0) == (middle > 0) else "the other direction"


INSTANT = {"kv_setup_ms": 0.0, "kv_gb_per_s": 1_000.0, "kv_busy_gb_per_s": 1_000.0}
CAUSES: tuple[tuple[str, Callable[[Played], float]], ...] = (
    ("TPOT p90", TPOT),
    ("steps with another's prefill", lambda one: one.interruptions),
    ("answers beside each other", lambda one: one.beside),
)


def causes(cell: Cell, seeds: Sequence[int]) -> Iterator[tuple[str, ...]]:
    """Yield D's changes against A, with transfers and with transfers that take no time."""
    a, d = (next(arm for arm in ON_FLEET_OF_DESIGN if arm["name"] == name) for name in ("A", "D at 9.7 GB-s"))
    instant = {**d, "fleet": {**d["fleet"], "engine": {**d["fleet"]["engine"], **INSTANT}}}
    before = [play(cell, a, seed) for seed in seeds]
    for name, arm in (("D at 9.7 GB/s", d), ("D, transfers in no time", instant)):
        now = [play(cell, arm, seed) for seed in seeds]
        changes = (change([*map(of, before)], [*map(of, now)]) for _, of in CAUSES)
        yield cell.trace, name, *(f"{100 * middle:+.1f} ± {100 * half:.1f} %" for middle, half in changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--traces", default=os.environ.get("WEIR_TRACE_DIR", ""), metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    cells = [Cell(trace, 1.0, 600.0, options.traces) for trace in ("coding agent", DESIGN)]
    rows = [row for cell in cells for row in causes(cell, range(1, options.seeds + 1))]
    sheets.save("tpot", [("trace", "against A", *(title for title, _ in CAUSES)), *rows])


if __name__ == "__main__":
    main()
