"""Computes figures of an experiment from the records of its runs. No Django, because large experiments are computed in
another process than the web process."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.evidence.experiments.record import Expectation
from controlplane.evidence.experiments.results import records, summarize
from controlplane.evidence.experiments.results.records import LATENCIES, Record, Slo, seconds
from controlplane.evidence.experiments.results.statistics import comparison, verdicts
from controlplane.evidence.experiments.results.statistics.pairs import Estimator, Keyed
from controlplane.evidence.experiments.results.types import (
    ArmResults,
    DifferenceRow,
    Ecdf,
    ExpectationRow,
    WholeRunResults,
)


@dataclass(frozen=True, slots=True)
class RunFile:
    arm: str
    seed: int
    path: Path  # file with its records
    size: int  # bytes so far, part of the key of cached results
    instances: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ArmFigures:
    whole: WholeRunResults  # results over the requests of all seeds
    by_seed: Mapping[int, WholeRunResults]
    started: bool


@dataclass(frozen=True, slots=True)
class FiguresOfArms:
    arms: Mapping[str, ArmFigures]
    ecdf: dict[str, dict[str, dict[str, Ecdf]]]  # class → latency → arm


@dataclass(frozen=True, slots=True)
class ArmComparison:
    differences: Sequence[DifferenceRow]
    expectations: Sequence[ExpectationRow]


def figures(arms: Sequence[str], files: Sequence[RunFile], slo: Slo) -> FiguresOfArms:
    read = {name: [(each, records.read(each.path)) for each in files if each.arm == name] for name in arms}
    together = {name: [record for _, found in runs for record in found] for name, runs in read.items()}
    return FiguresOfArms(
        {name: _arm(runs, together[name], slo) for name, runs in read.items()},
        {name: _ecdf(name, together) for name in summarize.CLASSES},
    )


def _arm(runs: Sequence[tuple[RunFile, Sequence[Record]]], together: Sequence[Record], slo: Slo) -> ArmFigures:
    return ArmFigures(
        summarize.run_results(together, [], slo, [seconds(found) for _, found in runs]),
        {each.seed: summarize.run_results(found, each.instances, slo) for each, found in runs},
        bool(together),
    )


def _ecdf(request_class: str, together: Mapping[str, Sequence[Record]]) -> dict[str, dict[str, Ecdf]]:
    of_class = {name: summarize.of_class(found, request_class) for name, found in together.items()}
    return {
        latency: {name: summarize.ecdf_of(found, latency) for name, found in of_class.items()} for latency in LATENCIES
    }


def compared(
    arms: Sequence[ArmResults],
    files: Sequence[RunFile],
    slo: Slo,
    expected: Sequence[Expectation],
    beat: Callable[[], None] = lambda: None,
) -> ArmComparison:
    """Compare the arms by their requests. `beat` is called every second or two."""
    keyed = {arm["name"]: _keyed([each for each in files if each.arm == arm["name"]]) for arm in arms}
    differences = comparison.jointly(comparison.differences(keyed, slo, beat))
    return ArmComparison(differences, verdicts.judge(expected, arms, Estimator(keyed, slo), beat))


def _keyed(files: Sequence[RunFile]) -> Keyed:
    return {(each.seed, record.index): record for each in files for record in records.read(each.path)}
