"""Assembles the results of an experiment, for the API and the page."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec
from django.conf import settings

from controlplane.common import computing
from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Arm, Experiment, Run
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.results import economics, kept, records, summarize, validity
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output import display
from controlplane.evidence.experiments.results.records import LATENCIES, Record
from controlplane.evidence.experiments.results.slo import Slo, seconds
from controlplane.evidence.experiments.results.statistics import comparison, verdicts
from controlplane.evidence.experiments.results.statistics.pairs import Estimator, Keyed
from controlplane.evidence.experiments.results.types import (
    ArmResults,
    DifferenceRow,
    DifferingSetting,
    Ecdf,
    EngineModelFacts,
    ExpectationRow,
    Overall,
    Results,
    RunResults,
    WholeRunResults,
)
from fleet import selectors
from fleet.jobs import DONE, ENDED

SCHEMA = 6


def results_of(experiment: Experiment, beat: Callable[[], None] = lambda: None) -> Results:
    """The results of every arm, with differences once the experiment has ended; cached until a run changes. `beat` is
    called every second or two, and may raise to stop."""
    runs = list(experiment.runs.all())
    signature = _signature(experiment, runs)
    path = Path(settings.DATA_DIR) / "experiments" / f"results-{experiment.pk}.json"
    before = kept.read(path)
    if before and before.signature == signature:
        return cast(Results, before.results)
    made = make(experiment, runs, beat)
    if before and before.signature[1:] == signature[1:]:
        made = kept.with_kept_numbers(made, before)
    if experiment.status in ENDED:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps({"signature": signature, "results": made}))
        part.replace(path)
    return made


def _signature(experiment: Experiment, runs: Sequence[Run]) -> list[Any]:
    sizes = [run.records_path.stat().st_size if run.records_path.exists() else 0 for run in runs]
    return [SCHEMA, experiment.status, [[run.pk, run.status] for run in runs], sizes]


def make(experiment: Experiment, runs: Sequence[Run], beat: Callable[[], None] = lambda: None) -> Results:
    read = {run.pk: records.read(run.records_path) for run in runs}
    slo = experiment.slo
    settled = experiment.settled_arms
    arms = [_arm(experiment, arm, [run for run in runs if run.arm == arm.name], read, slo) for arm in settled]
    keyed = {arm["name"]: _keyed(arm["name"], runs, read) for arm in arms}
    ended = experiment.status in ENDED
    differences = _differences(keyed, slo, beat) if ended else []
    best, tied = comparison.best(arms, differences)
    expectations = verdicts.judge(experiment.expectations, arms, Estimator(keyed, slo), beat) if ended else []
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
        "differing": {
            "policy": _differing(display.settings_of([arm.document for arm in settled]), settled),
            "fleet": _differing(
                display.fleet_settings_of([provenance.fleet_of(experiment, arm.name) for arm in settled]), settled
            ),
        },
        "slo": slo,
        "best": best,
        "best_or_tied": tied,
        "differences": differences,
        "ecdf": _ecdf(arms, keyed),
        "expectations": expectations,
        "verdict": _verdict(experiment, expectations),
        "warnings": _warnings(arms, runs),
    }


def _differences(keyed: Mapping[str, Keyed], slo: Slo, beat: Callable[[], None]) -> list[DifferenceRow]:
    """Those that a page asks for are resampled beside the web process. Busy."""
    if computing.ASKER.get() is None:
        return comparison.differences(keyed, slo, beat)
    return computing.computed(comparison.unwatched, keyed, slo)


def _verdict(experiment: Experiment, expectations: Sequence[ExpectationRow]) -> Overall:
    """The overall verdict; none before the experiment has ended well."""
    return verdicts.overall([row["verdict"] for row in expectations] if experiment.status == DONE else [])


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
    """The engine model of the runs; None for a replay, and until the first run has begun."""
    twin = next((twin for run in runs if (twin := run.measured.twin)), None)
    return cast(EngineModelFacts, msgspec.to_builtins(twin)) if twin else None


def _warnings(arms: Sequence[ArmResults], runs: Sequence[Run]) -> list[str]:
    loads = {run.seed: load for run in runs if (load := run.measured.load)}
    repeated = provenance.differences(runs[0].experiment) if runs else []
    return repeated + validity.seeds_alike(loads) + validity.merged({arm["name"]: arm["warnings"] for arm in arms})


def _arm(experiment: Experiment, arm: Arm, runs: Sequence[Run], read: dict[int, list[Record]], slo: Slo) -> ArmResults:
    """The results of one arm: quantiles over the requests of all its seeds, whole-run results as means over seeds."""
    together = [record for run in runs for record in read[run.pk]]
    each = {run.seed: summarize.run_results(read[run.pk], run.measured.instances or [], slo) for run in runs}
    whole = summarize.run_results(together, [], slo, [seconds(read[run.pk]) for run in runs])
    started = any(read[run.pk] for run in runs)
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
        "partial": started and any(run.status != DONE for run in runs),
        "warnings": [warning for run in runs for warning in run.warnings],
        "runs": [_run(run, each[run.seed]) for run in runs],
    }


def _cost(
    experiment: Experiment, arm: str, runs: Sequence[Run], output_tokens_per_s: float | None
) -> tuple[float | None, float | None]:
    """The cost by current prices."""
    endpoints = max((run.measured.instances or [] for run in runs), key=len, default=[])
    return economics.of_arm(provenance.fleet_of(experiment, arm), endpoints, output_tokens_per_s, selectors.prices())


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


def _keyed(arm: str, runs: Sequence[Run], read: dict[int, list[Record]]) -> dict[tuple[int, int], Record]:
    return {(run.seed, record.index): record for run in runs if run.arm == arm for record in read[run.pk]}


def _ecdf(
    arms: Sequence[ArmResults], keyed: dict[str, dict[tuple[int, int], Record]]
) -> dict[str, dict[str, dict[str, Ecdf]]]:
    return {
        request_class: {
            latency: {
                arm["name"]: summarize.ecdf_of(
                    summarize.of_class(list(keyed[arm["name"]].values()), request_class), latency
                )
                for arm in arms
            }
            for latency in LATENCIES
        }
        for request_class in summarize.CLASSES
    }
