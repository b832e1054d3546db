"""The table of every comparison (previews, tunings, experiments): arms side by side, with their differences. Pure. The
template is templates/components/comparison.html.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from controlplane.common.figures import UNKNOWN, ms
from controlplane.evidence.experiments.results.metrics import Metric
from controlplane.evidence.experiments.results.types import DifferenceBounds
from fleet.counted import significant
from router.policy.strategies import STRATEGIES, title_of

SIGNS = {"better": "●", "worse": "■", "not distinguishable": "◇"}  # signs of a forest plot
NO_VERDICT = "◌"


def shown(value: float | int | str | None, unit: str = "", limit: float | None = None) -> str:
    """Format a value with three significant digits, or with as many as distinguish it from the limit beside it; a dash
    if it is unknown."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if math.isinf(value):
        return "unanswered"  # the quantile is among requests without an answer
    if unit.startswith("$"):  # for example "$8.21 / M output tokens"
        return f"{'−' * (value < 0)}${significant(abs(value), decimals=9)}{unit[1:]}"
    if unit == "ms":
        return f"{'−' * (value < 0)}{ms(abs(value), limit)}"
    scale = 100 if unit == "%" else 1
    text = significant(value * scale, decimals=9, limit=None if limit is None else limit * scale)
    return f"{text} {unit}".strip().replace("-", "−")


def signed(value: float | None, unit: str = "") -> str:
    """Format a difference, always with its sign; None means infinite."""
    if value is None:
        return "∞"
    text = shown(value, unit)
    return f"+{text}" if value > 0 else text


def duration(seconds: float | None) -> str:
    """Format a duration: 1 h 02 min, 3 min 20 s, 12 s."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


@dataclass(frozen=True, slots=True)
class EffectRow:
    """A metric before and after a change."""

    title: str
    before: str
    after: str
    difference: str
    interval: str
    n: int | str
    verdict: str

    @property
    def sign(self) -> str:
        return SIGNS.get(self.verdict, NO_VERDICT)


def effect_row(
    metric: Metric, values: tuple[float | None, float | None], row: DifferenceBounds, n: int | str
) -> EffectRow:
    """Return the row, with a difference such as −180 ms (−22 %), or +3.2 points for a share."""
    before, after = (shown(value, metric.unit) for value in values)
    verdict = row["verdict"] or "unknown"
    ends = row["difference"], row["low"], row["high"]
    if ends == (None, None, None) and not (n and row["verdict"]):  # with requests, an unknown difference is infinite
        return EffectRow(metric.title, before, after, UNKNOWN, UNKNOWN, n, verdict)
    unit, scale = ("points", 100) if metric.unit == "%" else (metric.unit, 1)
    middle, low, high = (signed(None if end is None else scale * end, unit) for end in ends)
    relative: object = row.get("relative")
    if row["difference"] is None:
        middle = "falls on unanswered requests"
    elif isinstance(relative, float | int):
        middle = f"{middle} ({signed(relative, '%')})"
    return EffectRow(metric.title, before, after, middle, f"{low} to {high}", n, verdict)


def arm_title(name: str) -> str:
    """Return the name with the title of the strategy that it was made from (`lpwl`, `12: lpwl`, `lpwl replicas=4`);
    a name that a person gave as it is."""
    number, _, bare = name.rpartition(":")
    if number.isdecimal():
        return f"{number}: {arm_title(bare.strip())}"
    strategy, _, changes = name.partition(" ")
    if not changes:
        return title_of(name)
    return f"{title_of(strategy)}, {changes}" if strategy in STRATEGIES and "=" in changes else name


@dataclass(frozen=True, slots=True)
class ComparedArm:
    """A column of the table."""

    name: str
    n: str = ""  # number of requests on which its differences are based, if equal for all rows
    note: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A metric of one arm, with its difference from the baseline."""

    arm: str
    raw: str  # value as in the JSON; empty if unknown
    text: str
    n: str = ""
    effect: EffectRow | None = None  # None for the baseline, and for metrics without an interval
    best: bool = False


@dataclass(frozen=True, slots=True)
class ResultRow:
    key: str
    title: str
    better: str
    cells: tuple[Cell, ...]
    is_main: bool = False  # True if the forest plot shows it, so that it is always visible


def cell(metric: Metric, arm: str, value: float | None, *, best: bool = False) -> Cell:
    """Return the cell of an arm without a difference."""
    known = value is not None and not math.isinf(value)
    return Cell(arm, repr(value) if known else "", shown(value, metric.unit), best=best)


def result_row(metric: Metric, cells: Sequence[Cell], *, is_main: bool = False) -> ResultRow:
    return ResultRow(metric.key, metric.title, metric.better, tuple(cells), is_main)


def common_n(rows: Sequence[ResultRow]) -> tuple[list[ResultRow], dict[str, str]]:
    """Return (the rows without their numbers of requests; by arm, the number that all rows of the arm share)."""
    numbers: dict[str, set[str]] = {}
    for one in (one for row in rows for one in row.cells if one.n):
        numbers.setdefault(one.arm, set()).add(one.n)
    common = {arm: found.pop() for arm, found in numbers.items() if len(found) == 1}
    cells = [tuple(replace(one, n="") if one.arm in common else one for one in row.cells) for row in rows]
    return [replace(row, cells=each) for row, each in zip(rows, cells, strict=True)], common
