"""An experiment as a file: Markdown, JUnit, CSV."""

from collections.abc import Iterator
from typing import Any

from controlplane.experiments.models import Experiment
from controlplane.experiments.modes import MODES
from controlplane.experiments.results import records, report
from controlplane.experiments.results.assemble import results_of


def about(experiment: Experiment) -> dict[str, Any]:
    """Lines at the top of the report."""
    return {
        "Question": experiment.question,
        "Status": experiment.status,
        "Cause": experiment.cause,
        "Trace": f"{experiment.trace}, first {experiment.duration_s:g} s, {experiment.pacing.replace('_', ' ')}",
        **MODES[experiment.mode].about(experiment),
        "Load factor": f"{experiment.load_factor:g}",
        "Seeds": ", ".join(map(str, experiment.seeds)),
        "Started by": experiment.actor,
        "Started": f"{experiment.created_at:%Y-%m-%d %H:%M:%S} UTC",
    }


def report_of(experiment: Experiment, baseline: str) -> str:
    return report.markdown(results_of(experiment), about(experiment), baseline)


def junit_of(experiment: Experiment) -> str:
    return report.junit(results_of(experiment))


def csv_of(experiment: Experiment) -> Iterator[str]:
    return report.csv_lines(
        experiment.mode, ((run.arm, run.seed, records.read(run.records_path)) for run in experiment.runs.all())
    )
