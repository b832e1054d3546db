"""The computation of a preview: live version and draft in the twin, for each seed, and their differences. Pure.

The first seed also plays a canary of the draft.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.previews.analysis import canary
from controlplane.previews.analysis.deviation import Version, compared
from controlplane.previews.analysis.effect import effect_of, paired
from controlplane.traces.types import LoadedTrace
from controlplane.twin.simulation.simulate import simulate
from controlplane.twin.simulation.types import Arms, TwinFleet, TwinOutcome
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
    """`on_progress` gets the number of requests done, over all plays and seeds; its exceptions propagate."""
    done = 0

    def play(
        traced: tuple[int, LoadedTrace], policy: Policy, shadow: Policy | None = None, arms: Arms | None = None
    ) -> TwinOutcome:
        nonlocal done
        (seed, trace), before = traced, done
        outcome = simulate(
            job.fleet,
            policy,
            trace.requests,
            pacing=trace.pacing,
            seed=seed,
            shadow=shadow,
            arms=arms,
            on_progress=lambda now, _: on_progress(before + now),
        )
        done += len(trace.requests)
        on_progress(done)
        return outcome

    live, draft = [], []
    for traced in job.traces:
        live.append(play(traced, job.live, shadow=job.draft))
        draft.append(play(traced, job.draft))
    split = play(job.traces[0], job.live, arms=canary.arms(job.draft))
    return _computed(job, live, draft, split)


def plays(seeds: int) -> int:
    """How often a preview plays its requests."""
    return 2 * seeds + 1


def _computed(
    job: PreviewInputs, live: Sequence[TwinOutcome], draft: Sequence[TwinOutcome], split: TwinOutcome
) -> Computed:
    measured = compared(job.traces[0][1].requests, live[0].requests, job.pool, job.version)
    return Computed(
        effect={
            **effect_of(live, draft, list(job.fleet.instances)),
            "canary": canary.seen(split.requests, paired(live[:1], draft[:1])),
        },
        deviation=measured.deviation,
        versions=measured.versions,
        not_modelled=tuple(dict.fromkeys(text for outcome in (*live, *draft) for text in outcome.not_modelled)),
    )
