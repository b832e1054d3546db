"""An experiment as a file: what `report` makes of its results and records."""

from collections.abc import Iterator
from typing import Any

from controlplane.experiments.models import Experiment
from controlplane.experiments.results import records, report
from controlplane.experiments.results.assemble import results_of, twin_of_runs


def about(experiment: Experiment) -> dict[str, Any]:
    """The facts of an experiment in words."""
    return {
        "Question": experiment.question,
        "Status": experiment.status,
        "Cause": experiment.cause,
        "Trace": f"{experiment.trace}, first {experiment.duration_s:g} s, {experiment.pacing.replace('_', ' ')}",
        "Pool": experiment.pool if experiment.mode == "twin" else f"like {experiment.pool}",
        "Simulated": simulated(experiment),
        "Load factor": f"{experiment.load_factor:g}",
        "Seeds": ", ".join(map(str, experiment.seeds)),
        "Started by": experiment.actor,
        "Started": f"{experiment.created_at:%Y-%m-%d %H:%M:%S} UTC",
    }


def simulated(experiment: Experiment) -> str:
    """What every page and file of a simulation says; empty for a replay."""
    if experiment.mode != "twin":
        return ""
    twin = twin_of_runs(list(experiment.runs.all()))
    return f"in the twin, {twin['about']}; no engine was started" if twin else "in the twin; no engine is started"


def report_of(experiment: Experiment, baseline: str) -> str:
    return report.markdown(results_of(experiment), about(experiment), baseline)


def junit_of(experiment: Experiment) -> str:
    return report.junit(results_of(experiment))


def csv_of(experiment: Experiment) -> Iterator[str]:
    return report.csv_lines(
        experiment.mode, ((run.arm, run.seed, records.read(run.records_path)) for run in experiment.runs.all())
    )
