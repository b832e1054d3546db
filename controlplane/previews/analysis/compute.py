"""The computation of a preview: live version and draft in the twin, for each seed, and their differences. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.previews.analysis.deviation import Version, compared
from controlplane.previews.analysis.effect import effect_of
from controlplane.traces.types import LoadedTrace
from controlplane.twin.simulation.simulate import simulate
from controlplane.twin.simulation.types import TwinFleet, TwinOutcome
from router.policy.types import Policy


@dataclass(frozen=True, slots=True)
class PreviewInputs:
    fleet: TwinFleet
    pool: str
    live: Policy
    version: Version  # of the live policy
    draft: Policy
    traces: tuple[tuple[int, LoadedTrace], ...]  # by seed


@dataclass(frozen=True, slots=True)
class Computed:
    effect: dict[str, Any]
    deviation: dict[str, Any] | None
    versions: tuple[Version, ...]  # see deviation.Compared
    not_modelled: tuple[str, ...]  # features that the twin leaves out


def compute(job: PreviewInputs, on_progress: Callable[[int], None]) -> Computed:
    """`on_progress` gets the number of requests done, over both policies and all seeds; its exceptions propagate."""
    done = 0
    live: list[TwinOutcome] = []
    draft: list[TwinOutcome] = []
    for seed, trace in job.traces:
        for policy, shadow, found in ((job.live, job.draft, live), (job.draft, None, draft)):
            before = done

            def tell(now: int, _: int, before: int = before) -> None:
                on_progress(before + now)

            found.append(
                simulate(
                    job.fleet, policy, trace.requests, pacing=trace.pacing, seed=seed, shadow=shadow, on_progress=tell
                )
            )
            done += len(trace.requests)
            on_progress(done)
    return _computed(job, live, draft)


def _computed(job: PreviewInputs, live: Sequence[TwinOutcome], draft: Sequence[TwinOutcome]) -> Computed:
    measured = compared(job.traces[0][1].requests, live[0].requests, job.pool, job.version)
    return Computed(
        effect=effect_of(live, draft, list(job.fleet.instances)),
        deviation=measured.deviation,
        versions=measured.versions,
        not_modelled=tuple(dict.fromkeys(text for outcome in (*live, *draft) for text in outcome.not_modelled)),
    )
