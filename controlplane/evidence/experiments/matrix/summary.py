"""Summarizes a matrix's cells: the values of every metric by class and arm, and the arms that are best or tied."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.results import assemble
from controlplane.evidence.experiments.results.assemble import FIRST_JUDGED_JOINTLY
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output.effects import shown
from controlplane.evidence.experiments.results.statistics import comparison, verdicts
from controlplane.evidence.experiments.results.summarize import CLASSES, levels
from controlplane.evidence.experiments.results.types import ExperimentResults, Overall
from fleet.jobs import CANCELLED, DONE, ENDED, FAILED, QUEUED, RUNNING
from router.contract.values.reading import read_value


class CellSummary(msgspec.Struct, frozen=True):
    """The summary of an ended experiment, as in Experiment.summary."""

    values: dict[str, dict[str, dict[str, int | float | None]]] = {}  # class → metric → arm; counts are whole numbers
    best_or_tied: dict[str, dict[str, list[str]]] = {}  # class → metric → arms
    schema: int = 0  # schema of the results; 0 in rows of an older version


def of_results(results: ExperimentResults) -> CellSummary:
    values: dict[str, dict[str, dict[str, int | float | None]]] = {}
    for request_class in CLASSES:
        for (arm, metric), level in levels(results, request_class).items():
            of_arms = values.setdefault(request_class, {}).setdefault(metric, {})
            of_arms[arm] = None if level is None or math.isinf(level) else level
    return CellSummary(values, results["best_or_tied"], results["schema"])


def of_cell(cell: Experiment) -> CellSummary:
    """Return the cell's summary. For an older one, the marks that its page shows are recomputed from its stored
    results."""
    summary = read_value(cell.summary, CellSummary)
    if not cell.summary or summary.schema >= FIRST_JUDGED_JOINTLY:
        return summary
    path = assemble.path_of(cell)
    found = _judged_again(path, path.stat().st_mtime_ns) if path.exists() else None
    if found is None or found.values:
        return found or summary
    return msgspec.structs.replace(summary, best_or_tied=found.best_or_tied)


@lru_cache(maxsize=1024)
def _judged_again(path: Path, _changed_at: int) -> CellSummary | None:
    """Return the summary of stored results; it has no values if an older version stored them, and is None if they are
    unreadable."""
    kept = assemble.read(path)
    if kept is None:
        return None
    if kept.schema >= FIRST_JUDGED_JOINTLY:
        return of_results(kept.results)
    rows = comparison.jointly(kept.results["differences"])
    return CellSummary(best_or_tied=comparison.best(kept.results["arms"], rows)[1])


@dataclass(frozen=True)
class MatrixState:
    status: str
    verdict: Overall
    counts: Mapping[str, int]  # cells by status
    runs: int
    runs_done: int


def state_of(cells: Sequence[Experiment]) -> MatrixState:
    status = _status_of(cells)
    return MatrixState(
        status,
        verdicts.overall([cell.verdict for cell in cells]) if status == DONE else "none",
        counts=dict(Counter(cell.status for cell in cells)),
        runs=sum(cell.runs_total for cell in cells),
        runs_done=sum(cell.runs_done for cell in cells),
    )


def _status_of(cells: Sequence[Experiment]) -> str:
    """Return the matrix's status: active if a cell is active, otherwise the worst status of its cells."""
    found = {cell.status for cell in cells}
    if found <= set(ENDED):
        return next(status for status in (FAILED, CANCELLED, DONE) if status in found)
    return QUEUED if found == {QUEUED} else RUNNING


@dataclass(frozen=True, slots=True)
class HeatCell:
    number: int  # experiment's number
    trace: str
    load: float
    value: float | None
    text: str
    mark: str  # "best", "tied" or ""
    shade: int  # from 0 (best value of the cell) to 4 (twice as bad or worse)


@dataclass(frozen=True, slots=True)
class HeatRow:
    arm: str
    cells: tuple[HeatCell, ...]
    best_or_tied: int  # number of cells


def heat(cells: Sequence[Experiment], request_class: str, metric: str) -> list[HeatRow]:
    """Return a row for each arm, with a column for each cell."""
    columns = [(cell, _column(cell, request_class, metric)) for cell in cells]
    rows = []
    for arm in cells[0].arms if cells else ():
        row = tuple(_heat_cell(cell, arm["name"], *column, metric) for cell, column in columns)
        rows.append(HeatRow(arm["name"], row, sum(cell.mark != "" for cell in row)))
    return rows


Column = tuple[Mapping[str, float | None], Sequence[str]]  # (values by arm, arms that are best or tied)


def _column(cell: Experiment, request_class: str, metric: str) -> Column:
    summary = of_cell(cell)
    values = summary.values.get(request_class, {}).get(metric, {})
    return values, summary.best_or_tied.get(request_class, {}).get(metric, ())


def _heat_cell(
    cell: Experiment, arm: str, values: Mapping[str, float | None], tied: Sequence[str], metric: str
) -> HeatCell:
    value = values.get(arm)
    mark = ("best" if len(tied) == 1 else "tied") if arm in tied and value is not None else ""
    known = [each for each in values.values() if each is not None]
    shade, text = _shade(value, known, METRICS[metric].better), shown(value, METRICS[metric].unit)
    return HeatCell(cell.pk, cell.trace, cell.load_factor, value, text, mark, shade)


def _shade(value: float | None, known: Sequence[float], better: str) -> int:
    """Return the shade by how much worse the value is than the cell's best: up to 5 %, 20 %, 50 %, 100 %, more."""
    if value is None or not better or len(known) < 2:
        return 0
    best = min(known) if better == "lower" else max(known)
    high, low = (value, best) if better == "lower" else (best, value)
    if high == low:
        return 0
    worse = high / low - 1 if low > 0 else 9.0
    return sum(worse > limit for limit in (0.05, 0.2, 0.5, 1.0))


COLUMNS = ("experiment", "trace", "load", "arm", "class", "metric", "value", "best_or_tied")


def rows_of(cells: Sequence[Experiment]) -> Iterator[tuple[object, ...]]:
    """Yield a row for each cell, arm, class and metric, for exports."""
    for cell in cells:
        summary = of_cell(cell)
        for request_class, metrics in summary.values.items():
            for metric, values in metrics.items():
                tied = summary.best_or_tied.get(request_class, {}).get(metric, ())
                for arm, value in values.items():
                    yield cell.pk, cell.trace, cell.load_factor, arm, request_class, metric, value, arm in tied
