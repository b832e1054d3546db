"""Computes a preview: simulates the live version and the draft with each seed and compares them. Pure. The first seed's
two simulations pause when the first requests have ended, for a first result within seconds. The second result covers
every request; a canary of the draft is simulated with the first seed. If possible, the live version is simulated in a
second process.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from statistics import median

from controlplane.evidence.experiments.results.statistics.stats import LOW_N
from controlplane.evidence.previews.analysis import canary
from controlplane.evidence.previews.analysis.effect import effect_of, paired
from controlplane.evidence.previews.analysis.types import Deviation, DraftEffect
from controlplane.evidence.traces.formats import registry
from controlplane.evidence.traces.types import BadTrace, LoadedTrace, MeasuredLatency, TraceRequest
from controlplane.evidence.twin.plays import lanes
from controlplane.evidence.twin.simulation.chains import TracePrompts, prompts_of
from controlplane.evidence.twin.simulation.simulate import Simulation
from controlplane.evidence.twin.simulation.types import Arms, Simulated, TwinFleet, TwinOutcome
from router.policy.types import ParsedPolicy

FIRST = 400
Traced = tuple[int, LoadedTrace, TracePrompts]  # (seed, trace, prompts)
WARM_UP = 0.5  # share of requests left out, because the twin starts with empty caches, unlike the fleet

Version = tuple[str, int]  # (policy, number)


@dataclass(frozen=True, slots=True)
class Compared:
    deviation: Deviation | None  # None if there are too few measurements
    versions: tuple[Version, ...]  # versions of the measurements; empty if only the live one occurs


def compared(requests: Sequence[TraceRequest], simulated: Sequence[Simulated], pool: str, live: Version) -> Compared:
    """Compare the TTFT in the twin under the live version with the measured TTFT, over requests decided by this
    version. If there are fewer than LOW_N of those, all measured requests count, and their versions are named.
    """
    known = [
        (measured, one.ttft_s * 1000)
        for request, one in list(zip(requests, simulated, strict=True))[int(len(requests) * WARM_UP) :]
        if (measured := request.measured) is not None and one.ttft_s is not None
        if measured.pool == pool and measured.ttft_ms
    ]
    of_live = [(measured, ms) for measured, ms in known if (measured.policy, measured.version) == live]
    if len(of_live) >= LOW_N:
        return Compared(_deviation(of_live), ())
    if len(known) < LOW_N:
        return Compared(None, ())
    return Compared(_deviation(known), tuple(sorted({(measured.policy, measured.version) for measured, _ in known})))


def _deviation(pairs: Sequence[tuple[MeasuredLatency, float]]) -> Deviation:
    """Return the medians and the median ratio, which a few long waits hardly change."""
    return {
        "metric": "ttft_ms",
        "measured": round(median(measured.ttft_ms or 0.0 for measured, _ in pairs), 3),
        "twin": round(median(ms for _, ms in pairs), 3),
        "relative": round(median(ms / measured.ttft_ms for measured, ms in pairs if measured.ttft_ms) - 1, 4),
        "n": len(pairs),
        "since": min(measured.at for measured, _ in pairs),
        "until": max(measured.at for measured, _ in pairs),
    }


@dataclass(frozen=True, slots=True)
class PreviewInputs:
    fleet: TwinFleet
    pool: str
    live: ParsedPolicy
    version: Version  # version of the live policy
    draft: ParsedPolicy
    traces: tuple[tuple[int, LoadedTrace], ...]  # (seed, trace)
    first: int = FIRST  # requests of the first result


@dataclass(frozen=True, slots=True)
class FirstAnswer:
    effect: DraftEffect


@dataclass(frozen=True, slots=True)
class Computed:
    effect: DraftEffect
    deviation: Deviation | None
    versions: tuple[Version, ...]  # see deviation.Compared
    not_modelled: tuple[str, ...]  # features that the twin lacks, and load outside its calibration


def compute(job: PreviewInputs, send: Callable[[int | FirstAnswer], None]) -> Computed:
    """Compute the preview. `send` is called with the number of requests done, over all simulations and seeds, and the
    first result; its exceptions propagate."""
    plays, names = _Plays(job, send), list(job.fleet.instances)
    drafts, lives = lanes(plays.asked(), plays.outcomes, 2, plays.tell)
    if plays.have_first:
        draft_first = next(drafts)  # played in this process while another plays the live version
        send(FirstAnswer(effect_of([next(lives)], [draft_first], names)))
    draft, live = zip(*((next(drafts), next(lives)) for _ in job.traces), strict=True)
    effect = effect_of(live, draft, names)
    send(FirstAnswer(effect))
    split = next(drafts)
    plays.tell()
    return _computed(job, effect, live, draft, split)


@dataclass(frozen=True, slots=True)
class _PreviewPlay:
    number: int
    at: int  # index of its trace
    policy: ParsedPolicy
    shadow: ParsedPolicy | None = None
    arms: Arms | None = None
    pauses: bool = False  # True if it pauses when its first requests have ended


class _Plays:
    def __init__(self, job: PreviewInputs, send: Callable[[int | FirstAnswer], None]) -> None:
        self._job, self._send = job, send
        self._first = _traced(*job.traces[0])
        self.have_first = len(self._first[1].requests) > job.first
        # Number of ended requests by play; shared between the processes
        self._over = memoryview(mmap(-1, 8 * (2 * len(job.traces) + 1))).cast("Q")
        self._process = os.getpid()

    def asked(self) -> list[_PreviewPlay]:
        """Return the draft and the live version with each seed in turn, and a canary of the draft."""
        job, plays = self._job, list[_PreviewPlay]()
        for at in range(len(job.traces)):
            first = self.have_first and not at
            plays.append(_PreviewPlay(2 * at, at, job.draft, pauses=first))
            plays.append(_PreviewPlay(2 * at + 1, at, job.live, job.draft, pauses=first))
        return [*plays, _PreviewPlay(len(plays), 0, job.live, arms=canary.arms(job.draft))]

    def outcomes(self, play: _PreviewPlay) -> Iterator[TwinOutcome]:
        """Yield the outcome of the first requests if it pauses, then that of all requests."""

        def ended(count: int, _: int) -> None:
            self._over[play.number] = count
            self.tell()

        seed, trace, prompts = _traced(*self._job.traces[play.at]) if play.at else self._first
        simulation = Simulation(
            self._job.fleet, play.policy, trace.requests, prompts, trace.pacing, seed, play.shadow, play.arms,
            on_progress=ended,
        )  # fmt: skip
        if play.pauses:
            yield simulation.first(self._job.first)
        yield simulation.outcome()

    def tell(self) -> None:
        """Report progress. Only this process can do so, because the other has no connection to the caller."""
        if os.getpid() == self._process:
            self._send(sum(self._over))


def _traced(seed: int, trace: LoadedTrace) -> Traced:
    return seed, trace, prompts_of(trace.requests)


def simulated(seeds: int, requests: int) -> int:
    """Return the number of simulated requests: live and draft with every seed, and a canary."""
    return (2 * seeds + 1) * requests


def part(trace: LoadedTrace, count: int) -> LoadedTrace:
    """Return at most `count` requests: the newest of a recording, or the first of any other trace."""
    requests = trace.requests[-count:] if trace.format == "recorded" else trace.requests[:count]
    return replace(trace, requests=from_the_start(requests))


def read_part(data: bytes, count: int, seed: int) -> tuple[int, LoadedTrace] | BadTrace:
    """Return (number of requests in the file, at most `count` of them). For use in another process, an error is
    returned, not raised."""
    try:
        trace = registry.read(data, seed)
        return len(trace.requests), part(trace, count)
    except BadTrace as error:
        return error


def from_the_start(requests: Sequence[TraceRequest]) -> tuple[TraceRequest, ...]:
    """Renumber the requests as a trace that starts at 0 s."""
    start = requests[0].at_s
    return tuple(replace(each, index=i, at_s=each.at_s - start) for i, each in enumerate(requests))


def _computed(
    job: PreviewInputs,
    effect: DraftEffect,
    live: Sequence[TwinOutcome],
    draft: Sequence[TwinOutcome],
    split: TwinOutcome,
) -> Computed:
    measured = compared(job.traces[0][1].requests, live[0].requests, job.pool, job.version)
    return Computed(
        effect={**effect, "canary": canary.seen(split.requests, paired(live[:1], draft[:1]))},
        deviation=measured.deviation,
        versions=measured.versions,
        not_modelled=tuple(dict.fromkeys(text for outcome in (*live, *draft) for text in outcome.doubts)),
    )
