"""Computes a preview: simulates live version and draft with each seed and compares them. Pure.

The first seed's two simulations pause when the first requests have ended, for a first answer within seconds. A second
one covers every request; then a canary of the draft is simulated with the first seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from controlplane.previews.analysis import canary
from controlplane.previews.analysis.deviation import Version, compared
from controlplane.previews.analysis.effect import effect_of, paired
from controlplane.previews.analysis.types import Deviation, Effect
from controlplane.traces.types import LoadedTrace, TraceRequest
from controlplane.twin.simulation.chains import Prompts, prompts_of
from controlplane.twin.simulation.simulate import Play
from controlplane.twin.simulation.types import Arms, TwinFleet, TwinOutcome
from router.policy.types import ParsedPolicy

FIRST = 400
Traced = tuple[int, LoadedTrace, Prompts]  # with its seed


@dataclass(frozen=True, slots=True)
class PreviewInputs:
    fleet: TwinFleet
    pool: str
    live: ParsedPolicy
    version: Version  # of the live policy
    draft: ParsedPolicy
    traces: tuple[tuple[int, LoadedTrace], ...]  # with their seeds
    first: int = FIRST  # requests of the first answer


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    effect: Effect


@dataclass(frozen=True, slots=True)
class Computed:
    effect: Effect
    deviation: Deviation | None
    versions: tuple[Version, ...]  # see deviation.Compared
    not_modelled: tuple[str, ...]  # features that the twin lacks, and load beyond its calibration


def compute(job: PreviewInputs, send: Callable[[int | FirstAnswer], None]) -> Computed:
    """`send` gets the number of requests done, over all plays and seeds, and the first answer; its exceptions
    propagate."""
    over: list[int] = []  # requests that have ended, by play

    def begin(
        traced: Traced, policy: ParsedPolicy, shadow: ParsedPolicy | None = None, arms: Arms | None = None
    ) -> Play:
        number, (seed, trace, prompts) = len(over), traced
        over.append(0)

        def tell(ended: int, _: int) -> None:
            over[number] = ended
            send(sum(over))

        return Play(job.fleet, policy, trace.requests, prompts, trace.pacing, seed, shadow, arms, on_progress=tell)

    def both(traced: Traced) -> tuple[Play, Play]:
        return begin(traced, job.live, shadow=job.draft), begin(traced, job.draft)

    names = list(job.fleet.instances)
    traced = _traced(*job.traces[0])
    first = both(traced)
    if len(traced[1].requests) > job.first:
        ours, theirs = (play.first(job.first) for play in first)
        send(FirstAnswer(effect_of([ours], [theirs], names)))
    others = (both(_traced(*each)) for each in job.traces[1:])
    outcomes = [(ours.outcome(), theirs.outcome()) for ours, theirs in chain((first,), others)]
    live, draft = zip(*outcomes, strict=True)
    effect = effect_of(live, draft, names)
    send(FirstAnswer(effect))
    split = begin(traced, job.live, arms=canary.arms(job.draft)).outcome()
    return _computed(job, effect, live, draft, split)


def _traced(seed: int, trace: LoadedTrace) -> Traced:
    return seed, trace, prompts_of(trace.requests)


def simulated(seeds: int, requests: int) -> int:
    """The number of simulated requests: live and draft with every seed, and a canary."""
    return (2 * seeds + 1) * requests


def part(trace: LoadedTrace, count: int) -> LoadedTrace:
    """At most `count` requests: the newest of a recording, the first of any other trace."""
    requests = trace.requests[-count:] if trace.format == "recorded" else trace.requests[:count]
    return replace(trace, requests=from_the_start(requests))


def from_the_start(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """The requests renumbered as a trace that starts at 0 s."""
    start = requests[0].at_s
    return tuple(replace(each, index=i, at_s=each.at_s - start) for i, each in enumerate(requests))


def _computed(
    job: PreviewInputs, effect: Effect, live: Sequence[TwinOutcome], draft: Sequence[TwinOutcome], split: TwinOutcome
) -> Computed:
    measured = compared(job.traces[0][1].requests, live[0].requests, job.pool, job.version)
    return Computed(
        effect={**effect, "canary": canary.seen(split.requests, paired(live[:1], draft[:1]))},
        deviation=measured.deviation,
        versions=measured.versions,
        not_modelled=tuple(dict.fromkeys(text for outcome in (*live, *draft) for text in outcome.doubts)),
    )
