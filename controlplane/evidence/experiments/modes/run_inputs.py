"""The parts of a run shared by all modes: its inputs, and the mark that it was performed."""

from typing import Any

import msgspec

from controlplane.evidence.experiments import provenance
from controlplane.evidence.experiments.models import Experiment, Run
from controlplane.evidence.experiments.record import RunFacts
from controlplane.evidence.traces import library
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import LoadedTrace, TraceRequest
from fleet.jobs import RUNNING

CONTEXT_TOKENS = 131_072  # default for an engine that does not report its context window

NO_RECORD = "the experiment has no record of its fleet, because an older version queued it: start it again"


class RunFailed(Exception):
    """A failed run: the cause, with the log lines that show it."""

    def __init__(self, cause: str, log: str = "") -> None:
        super().__init__(cause)
        self.log = log


def load_trace(experiment: Experiment, seed: int) -> LoadedTrace:
    """Load the trace as it was when the experiment started. Raise RunFailed, TraceError, BadTrace."""
    record = provenance.record_of(experiment)
    if record is None:
        raise RunFailed(NO_RECORD)
    problem = provenance.changed_trace(record.trace)
    if problem:
        raise RunFailed(problem)
    return library.load(experiment.trace, seed)


def requests_of(experiment: Experiment, requests: tuple[TraceRequest, ...], context: int) -> list[TraceRequest]:
    """Return the requests in the window, at the load factor. At a higher load, the same window takes less time."""
    within = registry.window(requests, experiment.duration_s, context)
    if not within:
        raise RunFailed(f"no request of {experiment.trace} begins in its first {experiment.duration_s:g} s and fits")
    return registry.faster(within, experiment.load_factor)


def begin(run: Run, total: int, facts: RunFacts) -> None:
    """Store the total and the facts, and delete the records of an earlier attempt."""
    run.total, run.facts = total, msgspec.to_builtins(facts)
    Run.objects.filter(pk=run.pk).update(facts=run.facts, total=total)
    run.records_path.unlink(missing_ok=True)


def performed(run: Run) -> None:
    """Mark the run as performed, with its facts. By then, every request has its record, so a worker that is lost later
    loses no data."""
    run.facts["records_sha256"] = provenance.records_sha256(run)
    of_this_start(run).update(facts=run.facts)


def was_performed(run: Run) -> bool:
    """Return whether the run was marked as performed and its records are unchanged."""
    kept = run.facts.get("records_sha256")
    return bool(kept) and kept == provenance.records_sha256(run)


def of_this_start(run: Run) -> Any:
    """Return the run's row, unless the run has ended."""
    return Run.objects.filter(pk=run.pk, status=RUNNING, started_at=run.started_at)
