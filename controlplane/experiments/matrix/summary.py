"""What a matrix shows of its cells: values of every metric by class and arm, and which arms are best or tied. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.experiments.models import Experiment
from controlplane.experiments.results.metrics import METRICS
from controlplane.experiments.results.summarize import CLASSES, value_of
from controlplane.experiments.results.types import Results
from fleet.jobs import CANCELLED, DONE, ENDED, FAILED, QUEUED, RUNNING


def of_results(results: Results) -> dict[str, Any]:
    """Of a cell: {values: class → metric → arm → value, best_or_tied: class → metric → [arm]}."""
    return {
        "values": {
            request_class: {
                metric.key: {arm["name"]: value_of(arm, request_class, metric.key) for arm in results["arms"]}
                for metric in METRICS.values()
                if metric.per_class or request_class == "all"
            }
            for request_class in CLASSES
        },
        "best_or_tied": results["best_or_tied"],
    }


def status_of(cells: Sequence[Experiment]) -> str:
    """Of the whole: active with one that is, else the worst end."""
    found = {cell.status for cell in cells}
    if found <= set(ENDED):
        return next(status for status in (FAILED, CANCELLED, DONE) if status in found)
    return QUEUED if found == {QUEUED} else RUNNING


def counts_of(cells: Sequence[Experiment]) -> dict[str, int]:
    return dict(Counter(cell.status for cell in cells))


@dataclass(frozen=True, slots=True)
class HeatCell:
    number: int  # of the experiment
    trace: str
    load: float
    value: float | None
    mark: str  # "best", "tied" or ""
    shade: int  # 0 for the best value of the cell, to 4 for one that is twice as bad


@dataclass(frozen=True, slots=True)
class HeatRow:
    arm: str
    cells: tuple[HeatCell, ...]
    best_or_tied: int  # cells


def heat(cells: Sequence[Experiment], request_class: str, metric: str) -> list[HeatRow]:
    """A row for each arm, a column for each cell."""
    columns = [(cell, _column(cell, request_class, metric)) for cell in cells]
    rows = []
    for arm in cells[0].arms if cells else ():
        row = tuple(_heat_cell(cell, arm["name"], *column, metric) for cell, column in columns)
        rows.append(HeatRow(arm["name"], row, sum(cell.mark != "" for cell in row)))
    return rows


Column = tuple[Mapping[str, float | None], Sequence[str]]  # values by arm, and the arms that are best or tied


def _column(cell: Experiment, request_class: str, metric: str) -> Column:
    values = cell.summary.get("values", {}).get(request_class, {}).get(metric, {})
    return values, cell.summary.get("best_or_tied", {}).get(request_class, {}).get(metric, ())


def _heat_cell(
    cell: Experiment, arm: str, values: Mapping[str, float | None], tied: Sequence[str], metric: str
) -> HeatCell:
    value = values.get(arm)
    mark = ("best" if len(tied) == 1 else "tied") if arm in tied and value is not None else ""
    known = [each for each in values.values() if each is not None]
    return HeatCell(cell.pk, cell.trace, cell.load_factor, value, mark, _shade(value, known, METRICS[metric].better))


def _shade(value: float | None, known: Sequence[float], better: str) -> int:
    """By how much worse it is than the best of its cell: up to 5 %, 20 %, 50 %, 100 %, more."""
    if value is None or not better or len(known) < 2:
        return 0
    best = min(known) if better == "lower" else max(known)
    high, low = (value, best) if better == "lower" else (best, value)
    if high == low:
        return 0
    worse = high / low - 1 if low > 0 else 9.0
    return sum(worse > limit for limit in (0.05, 0.2, 0.5, 1.0))


def table_of(cells: Sequence[Experiment]) -> Iterator[tuple[Any, ...]]:
    """A row for each cell, arm, class and metric, for exports."""
    yield ("experiment", "trace", "load", "arm", "class", "metric", "value", "best_or_tied")
    for cell in cells:
        for request_class, metrics in cell.summary.get("values", {}).items():
            for metric, values in metrics.items():
                tied = cell.summary["best_or_tied"].get(request_class, {}).get(metric, ())
                for arm, value in values.items():
                    yield cell.pk, cell.trace, cell.load_factor, arm, request_class, metric, value, arm in tied
