"""Assembles the results of an experiment, for the API and the page."""

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from django.conf import settings

from controlplane.common import computing
from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Arm, Experiment, Run
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.record import Expectation, RecordedFleet
from controlplane.evidence.experiments.results import summarize, validity
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output import display
from controlplane.evidence.experiments.results.records import Slo
from controlplane.evidence.experiments.results.statistics import comparison, figures, verdicts
from controlplane.evidence.experiments.results.statistics.figures import (
    ArmComparison,
    ArmFigures,
    FiguresOfArms,
    RunFile,
)
from controlplane.evidence.experiments.results.types import (
    ArmResults,
    DifferingSetting,
    DifferingSettings,
    EngineModelFacts,
    ExpectationRow,
    ExperimentResults,
    Overall,
    RunResults,
    WholeRunResults,
)
from fleet import selectors
from fleet.jobs import DONE, ENDED
from fleet.kinds import KINDS
from fleet.kinds.kind import hardware_of_pool
from fleet.kinds.options.option import build
from fleet.systems.prices import Prices, per_million
from router.contract import ranks
from router.contract.values.reading import read_json

SCHEMA = 7
LARGE = 2**20  # bytes of records above which results are computed in another process than the web process
UNKNOWN = (None, None)


# The stored results of an experiment: numbers that have been shown do not change, unless they were wrong
FIRST_KEPT = 3  # first version kept; older results had other statistics
FIRST_PRICED_BY_INSTANCE = 6  # older results priced each data-parallel rank as a whole instance
FIRST_JUDGED_JOINTLY = 7  # older results judged each metric separately
JUDGED = ("differences", "best", "best_or_tied")
COSTS = ("tokens_per_gpu_s", "dollars_per_million")


class KeptResults(msgspec.Struct, frozen=True):
    signature: list[Any]
    results: Any

    @property
    def schema(self) -> int:
        return int(self.signature[0])


def read(path: Path) -> KeptResults | None:
    """Read the file; None if there is no readable one."""
    try:
        return read_json(path.read_bytes(), KeptResults)
    except (OSError, ValueError):
        return None


def path_of(experiment: Experiment) -> Path:
    return Path(settings.DATA_DIR) / "experiments" / f"results-{experiment.pk}.json"


def with_kept_numbers(made: Any, kept: KeptResults) -> Any:
    """Return the results as first shown, with additions of newer versions of Weir."""
    if kept.schema < FIRST_KEPT:
        return made
    first = kept.results if kept.schema >= FIRST_PRICED_BY_INSTANCE else _without_costs_of_ranks(kept.results)
    first = first if kept.schema >= FIRST_JUDGED_JOINTLY else _without(first, JUDGED)
    return with_first_numbers(made, first) | {"schema": made["schema"]}


def with_first_numbers(made: Any, kept: Any) -> Any:
    if isinstance(made, dict) and isinstance(kept, dict):
        return {**kept, **{key: with_first_numbers(part, kept.get(key, part)) for key, part in made.items()}}
    if isinstance(made, list) and isinstance(kept, list) and len(made) == len(kept):
        return [with_first_numbers(part, first) for part, first in zip(made, kept, strict=True)]
    return kept


def _without_costs_of_ranks(results: Any) -> Any:
    """Remove the costs of arms whose endpoints are ranks, and the judgements based on them."""
    wrong = {arm["name"] for arm in results["arms"] if _has_ranks(arm)}
    if not wrong:
        return results
    rows = results.get("expectations", [])
    judged = [_is_by_cost(row, wrong) for row in rows]
    kept = {name: part for name, part in results.items() if not (name == "verdict" and any(judged))}
    return kept | {
        "arms": [_without(arm, COSTS) if arm["name"] in wrong else arm for arm in results["arms"]],
        "expectations": [{} if is_wrong else row for row, is_wrong in zip(rows, judged, strict=True)],
    }


def _has_ranks(arm: Any) -> bool:
    return any(ranks.split(name)[1] for run in arm.get("runs", []) for name in run.get("prompt_tokens_by_instance", {}))


def _is_by_cost(row: Any, arms: set[str]) -> bool:
    """Return whether the row was judged by cost in one of these arms; a row without an arm covers every arm."""
    named = {row.get("arm"), row.get("relative_to")} - {"", None}
    return row.get("metric") in COSTS and not (row.get("arm") and arms.isdisjoint(named))


def _without(part: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in names}


def of_arm(
    fleet: RecordedFleet | None, endpoints: Collection[str], output_tokens_per_s: float | None, prices: Prices
) -> tuple[float | None, float | None]:
    """Return (tokens per GPU and second, dollars per million tokens); None without GPUs, and for options that no longer
    exist."""
    if fleet is None or not output_tokens_per_s:
        return UNKNOWN
    try:
        kind = KINDS[fleet.kind]
        found = hardware_of_pool(kind, build(kind.spec, fleet.engine), endpoints)
    except LookupError:
        return UNKNOWN
    if not found.gpus:
        return UNKNOWN
    dollars = per_million(prices.per_hour(found.gpus, found.dram_gb, found.ssd_gb), output_tokens_per_s)
    return round(output_tokens_per_s / found.gpus, 3), None if dollars is None else round(dollars, 4)


def results_of(experiment: Experiment, beat: Callable[[], None] = lambda: None) -> ExperimentResults:
    """Return the results of every arm, with differences once the experiment has ended; cached until a run changes.
    `beat` is called every second or two, and may raise an exception to stop the computation."""
    runs = list(experiment.runs.all())
    signature = [SCHEMA, experiment.status, [[run.pk, run.status] for run in runs], [_file(run).size for run in runs]]
    path = path_of(experiment)
    before = read(path)
    if before and before.signature == signature:
        return cast(ExperimentResults, before.results)
    made = make(experiment, runs, beat)
    if before and before.signature[1:] == signature[1:]:
        made = with_kept_numbers(made, before)
    if experiment.status in ENDED:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"signature": signature, "results": made}))
        part.replace(path)
    return made


def _file(run: Run) -> RunFile:
    path = run.records_path
    size = path.stat().st_size if path.exists() else 0
    return RunFile(run.arm, run.seed, path, size, tuple(run.measured.instances or ()))


def make(experiment: Experiment, runs: Sequence[Run], beat: Callable[[], None] = lambda: None) -> ExperimentResults:
    slo, settled = experiment.slo, experiment.settled_arms
    files = [_file(run) for run in runs]
    found = _figures([arm.name for arm in settled], files, slo)
    arms = [
        _arm(experiment, arm, [run for run in runs if run.arm == arm.name], found.arms[arm.name]) for arm in settled
    ]
    compared = ArmComparison([], [])
    if experiment.status in ENDED:
        compared = _compared(arms, files, slo, experiment.expectations, beat)
    best, tied = comparison.best(arms, compared.differences)
    return {
        "schema": SCHEMA,
        "experiment": {
            "id": experiment.pk,
            "name": experiment.name,
            "status": experiment.status,
            "cause": experiment.cause,
        },
        "mode": experiment.mode,
        "twin": engine_model_of(runs),
        "time_scale": experiment.time_scale,
        "time": MODES[experiment.mode].time(experiment),
        "partial": any(arm["partial"] for arm in arms),
        "classes": list(summarize.CLASSES),
        "metrics": [
            {"key": m.key, "title": m.title, "unit": m.unit, "better": m.better, "per_class": m.per_class}
            for m in METRICS.values()
        ],
        "arms": arms,
        "differing": _differing_of(experiment, settled),
        "slo": slo,
        "best": best,
        "best_or_tied": tied,
        "differences": list(compared.differences),
        "ecdf": found.ecdf,
        "expectations": list(compared.expectations),
        "verdict": _verdict(experiment, compared.expectations),
        "warnings": _warnings(arms, runs),
    }


def _figures(arms: Sequence[str], files: Sequence[RunFile], slo: Slo) -> FiguresOfArms:
    """Compute the figures; for a page with many records, in a process beside the web process. Raise Busy."""
    if sum(each.size for each in files) > LARGE:
        return computing.computed_once(figures.figures, arms, files, slo)
    return figures.figures(arms, files, slo)


def _compared(
    arms: Sequence[ArmResults],
    files: Sequence[RunFile],
    slo: Slo,
    expected: Sequence[Expectation],
    beat: Callable[[], None],
) -> ArmComparison:
    """Compare the arms; for a page, the resampling is done in a process beside the web process. Raise Busy."""
    if computing.ASKER.get() is None:
        return figures.compared(arms, files, slo, expected, beat)
    return computing.computed(figures.compared, arms, files, slo, expected)


def _verdict(experiment: Experiment, expectations: Sequence[ExpectationRow]) -> Overall:
    """Return the overall verdict; none until the experiment has ended successfully."""
    return verdicts.overall([row["verdict"] for row in expectations] if experiment.status == DONE else [])


def _differing_of(experiment: Experiment, arms: Sequence[Arm]) -> DifferingSettings:
    """Return the settings in which the arms' policies and fleets differ."""
    fleets = [provenance.fleet_of(experiment, arm.name) for arm in arms]
    policies = display.settings_of([arm.document for arm in arms])
    return {"policy": _differing(policies, arms), "fleet": _differing(display.fleet_settings_of(fleets), arms)}


def _differing(settings: Sequence[display.Setting], arms: Sequence[Arm]) -> list[DifferingSetting]:
    return [
        {
            "path": setting.path,
            "title": setting.title,
            "unit": setting.unit,
            "values": {arm.name: value for arm, value in zip(arms, setting.values, strict=True)},
        }
        for setting in settings
        if setting.differs
    ]


def engine_model_of(runs: Sequence[Run]) -> EngineModelFacts | None:
    """Return the engine model of the runs; None for a replay, and until the first run has begun."""
    twin = next((twin for run in runs if (twin := run.measured.twin)), None)
    return cast(EngineModelFacts, msgspec.to_builtins(twin)) if twin else None


def _warnings(arms: Sequence[ArmResults], runs: Sequence[Run]) -> list[str]:
    loads = {run.seed: load for run in runs if (load := run.measured.load)}
    repeated = provenance.differences(runs[0].experiment) if runs else []
    return repeated + validity.seeds_alike(loads) + validity.merged({arm["name"]: arm["warnings"] for arm in arms})


def _arm(experiment: Experiment, arm: Arm, runs: Sequence[Run], found: ArmFigures) -> ArmResults:
    """Return the results of one arm: quantiles over the requests of all its seeds, and whole-run results averaged
    over seeds."""
    whole, each = found.whole, found.by_seed
    tokens_per_s = summarize.mean(run["output_tokens_per_s"] for run in each.values())
    tokens_per_gpu_s, dollars_per_million = _cost(experiment, arm.name, runs, tokens_per_s)
    return {
        **whole,
        "name": arm.name,
        "policy": arm.policy,
        "version": arm.version,
        "strategy": arm.strategy,
        "overrides": arm.overrides,
        "sha256": arm.sha256,
        "fleet": msgspec.to_builtins(arm.fleet),
        "balance": summarize.mean(run["balance"] for run in each.values()),
        "output_tokens_per_s": tokens_per_s,
        "tokens_per_gpu_s": tokens_per_gpu_s,
        "dollars_per_million": dollars_per_million,
        "partial": found.started and any(run.status != DONE for run in runs),
        "warnings": [warning for run in runs for warning in run.warnings],
        "runs": [_run(run, each[run.seed]) for run in runs],
    }


def _cost(
    experiment: Experiment, arm: str, runs: Sequence[Run], output_tokens_per_s: float | None
) -> tuple[float | None, float | None]:
    """Return the cost by current prices."""
    endpoints = max((run.measured.instances or [] for run in runs), key=len, default=[])
    return of_arm(provenance.fleet_of(experiment, arm), endpoints, output_tokens_per_s, selectors.prices())


def _run(run: Run, results: WholeRunResults) -> RunResults:
    return {
        "id": run.pk,
        "seed": run.seed,
        "status": run.status,
        "cause": run.cause,
        "done": run.done,
        "total": run.total,
        "warnings": run.warnings,
        "facts": run.facts,
        "balance": results["balance"],
        "output_tokens_per_s": results["output_tokens_per_s"],
        "prompt_tokens_by_instance": results["prompt_tokens_by_instance"],
        "all": results["classes"]["all"],
    }
