"""What every run has, however it is played: its requests, its policy's version, what is known as it begins, why it
fails."""

from typing import Any

from controlplane.experiments.models import Experiment, Run
from controlplane.traces.formats import registry
from controlplane.traces.types import TraceRequest

CONTEXT_TOKENS = 131_072  # when nobody says what the model takes


class RunFailed(Exception):
    """Why a run cannot go on, in words, with the log lines that show it."""

    def __init__(self, cause: str, log: str = "") -> None:
        super().__init__(cause)
        self.log = log


def requests_of(experiment: Experiment, requests: tuple[TraceRequest, ...], context: int) -> list[TraceRequest]:
    """The window, at the load asked for. A window is one of the trace: a higher load plays it in less time."""
    within = registry.window(requests, experiment.duration_s, context)
    if not within:
        raise RunFailed(f"no request of {experiment.trace} begins in its first {experiment.duration_s:g} s and fits")
    return registry.faster(within, experiment.load_factor)


def begin(run: Run, total: int, facts: dict[str, Any]) -> None:
    """So many requests are about to be played; what an earlier attempt left is gone."""
    run.total, run.facts = total, facts
    Run.objects.filter(pk=run.pk).update(facts=facts, total=total)
    run.records_path.unlink(missing_ok=True)
