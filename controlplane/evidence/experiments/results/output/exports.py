"""Exports an experiment as a file: Markdown, JUnit, CSV, Parquet."""

import io
import math
import zipfile
from base64 import b64encode

from controlplane.common import computing
from controlplane.common.csv_cell import csv_text
from controlplane.evidence.experiments.models import Experiment
from controlplane.evidence.experiments.modes import MODES
from controlplane.evidence.experiments.results.assemble import LARGE, results_of
from controlplane.evidence.experiments.results.metrics import METRICS
from controlplane.evidence.experiments.results.output import forest, near, report
from controlplane.evidence.experiments.results.output.effects import arm_title
from controlplane.evidence.experiments.results.output.near import FORMS
from controlplane.evidence.experiments.results.summarize import levels
from controlplane.evidence.experiments.results.types import ExperimentResults


def about(experiment: Experiment) -> dict[str, str]:
    """Return the lines at the top of the report."""
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
    """Return the report with embedded pictures."""
    results = results_of(experiment)
    links = [
        f"![{title}](data:image/svg+xml;base64,{b64encode(svg.encode()).decode()})"
        for _, title, svg in _pictures(results, baseline)
    ]
    return report.markdown(results, about(experiment), baseline, links)


def report_files_of(experiment: Experiment, baseline: str) -> bytes:
    """Return the report as a ZIP with its pictures as files, because sites such as GitHub do not show embedded ones."""
    results = results_of(experiment)
    pictures = _pictures(results, baseline)
    links = [f"![{title}]({name})" for name, title, _ in pictures]
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("report.md", report.markdown(results, about(experiment), baseline, links))
        for name, _, svg in pictures:
            files.writestr(name, svg)
    return packed.getvalue()


def _pictures(results: ExperimentResults, baseline: str) -> list[tuple[str, str, str]]:
    """Return (file name, title, SVG) of each class with differences."""
    found = []
    for request_class in results["classes"]:
        title = f"Difference from {arm_title(baseline)}, class {request_class}"
        svg = forest.svg(forest.lines_of(results, request_class, baseline), title, alone=True)
        if svg:
            found.append((f"forest-{request_class}.svg", title.translate(UNLINKED), svg))
    return found


UNLINKED = str.maketrans("[]\n", "() ")  # removes brackets and line ends from a link's text


def comparison_csv_of(experiment: Experiment, request_class: str, baseline: str) -> str:
    """Return the comparison shown on the page: a row for each metric and arm."""
    results = results_of(experiment)
    against = {
        (row["arm"], row["metric"]): row
        for row in results["differences"]
        if (row["class"], row["baseline"]) == (request_class, baseline)
    }
    tied, found = results["best_or_tied"].get(request_class, {}), levels(results, request_class)
    rows = []
    for metric in METRICS.values():
        for arm in results["arms"] if metric.per_class or request_class == "all" else ():
            row = against.get((arm["name"], metric.key))
            compared = (row.get(name) for name in COMPARED) if row else (None,) * len(COMPARED)
            level, is_best = found[arm["name"], metric.key], arm["name"] in tied.get(metric.key, ())
            value = None if level is None or math.isinf(level) else level
            rows.append((metric.key, metric.unit, request_class, baseline, arm["name"], value, *compared, is_best))
    columns = ("metric", "unit", "class", "baseline", "arm", "value", *COMPARED, "best_or_tied")
    return csv_text(columns, rows, exact=True)


COMPARED = ("difference", "relative", "low", "high", "n", "verdict", "left_out")


def requests_of(experiment: Experiment, form: str) -> bytes:
    """Return a file with a row for each request; `form` is one of FORMS. Raise Busy."""
    runs = [(run.arm, run.seed, run.records_path) for run in experiment.runs.all()]
    size = sum(path.stat().st_size for _, _, path in runs if path.exists())
    if size > LARGE:
        return computing.computed_once(FORMS[form], experiment.mode, runs)
    return FORMS[form](experiment.mode, runs)


def requests_near(experiment: Experiment, arm: str, point: near.LatencyPoint) -> list[near.NearRequest]:
    """Return the requests of an arm that are nearest to a point of its chart. Raise Busy."""
    runs = [(run.seed, run.records_path) for run in experiment.runs.all() if run.arm == arm]
    size = sum(path.stat().st_size for _, path in runs if path.exists())
    return computing.computed_once(near.nearest, runs, point) if size > LARGE else near.nearest(runs, point)


def junit_of(experiment: Experiment) -> str:
    return report.junit(results_of(experiment))
