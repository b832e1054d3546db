"""Finds the cheapest fleets that hold an SLO: first by closed forms, then by simulating longer and longer windows.
Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice

from controlplane.evidence.experiments.results.twin_records import records_of
from controlplane.evidence.plan.figures import UNCLASSED, PlayFigures, errors_of, figures_of, predicted
from controlplane.evidence.plan.question import (
    FEW,
    PlanCandidate,
    PlanQuestion,
    Slo,
    fingerprint,
    judged,
    limits_of,
    space_of,
)
from controlplane.evidence.traces.formats.registry import faster
from controlplane.evidence.traces.summary import trace_classes
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.expected_error import ExpectedError
from controlplane.evidence.twin.plays import played
from controlplane.evidence.twin.simulation.chains import prompts_of
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Simulated, TwinOutcome

HEADROOM = (1.0, 1.1, 1.25, 1.5)  # factors on the load
SEEDS = 2  # simulations at the given load
FIRST, SECOND = 20, 4  # divisors of the trace's length for the first windows
LEAST = 150  # smallest number of requests in a window
SLACK = (0.15, 0.05)  # how far below the required share a fleet may be and still continue after the first windows
GO_ON = 24  # fleets that continue after the first window
FINAL = 6
LATENCIES = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class PlanScore:
    share: float  # share within the limits, 0–1, in the class with the lowest
    if_slower: float  # the same share if engines are slower by the twin's expected error
    weakest: str  # class and time that most often miss the limits
    doubts: tuple[str, ...]
    figures: PlayFigures | None = None  # by the router's classes; only in simulations used for predictions


@dataclass(frozen=True, slots=True)
class PlanRow:
    candidate: PlanCandidate
    low: float  # lowest over seeds
    high: float
    if_slower: float
    at_load: Mapping[float, float]  # share by factor on the load, up to the first that breaks the SLO
    breaks_first: str
    doubts: tuple[str, ...]
    predicted: Mapping[str, object] = field(default_factory=dict)  # figures.predicted


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    rows: tuple[PlanRow, ...]  # frontier, cheapest first
    holds: PlanRow | None  # cheapest row that holds the SLO even if engines are slower by the expected error
    undecided: PlanRow | None  # cheapest row that holds it as simulated, if it is cheaper than `holds`
    fleets: int  # number of fleets compared
    too_small: int  # number of fleets ruled out by closed forms
    left_out: tuple[str, ...]
    requests: int
    fingerprint: str


def plan(
    question: PlanQuestion,
    requests: Sequence[TraceRequest],
    pacing: str,
    on_play: Callable[[int, int], None] = lambda done, total: None,
) -> PlanAnswer:
    """Return the plan. `on_play(done, total)` may raise an exception to stop."""
    space = space_of(question, requests, pacing)
    halvings = sum(len(sizes).bit_length() for sizes in by_shape(space.candidates))
    total = halvings + GO_ON + FINAL * (SEEDS + len(HEADROOM) - 1)
    plays = _Scoring(question, requests, pacing, lambda done: on_play(min(done, total), total))
    first, second = (min(len(requests), max(LEAST, len(requests) // part, plays.fewest)) for part in (FIRST, SECOND))
    least, at_last = (question.share - slack for slack in SLACK)
    left = best(halved(space.candidates, least, lambda fleets: plays.shares(fleets, first)), least, GO_ON)
    left = best(cheapest(left, at_last, FINAL, lambda fleets: plays.shares(fleets, second)), at_last, FINAL)
    rows = frontier(sorted(plays.rows(left), key=lambda row: (row.candidate.per_hour, -row.low)))
    held = [row for row in rows if row.low >= question.share]
    holds = next((row for row in held if row.if_slower >= question.share), None)
    undecided = held[0] if held and held[0] is not holds else None
    mark = fingerprint(question, requests, pacing)
    counts = len(space.candidates), space.too_small
    return PlanAnswer(rows, holds, undecided, *counts, space.left_out, len(requests), mark)


def by_shape(candidates: Sequence[PlanCandidate]) -> list[list[int]]:
    """Return the places of the fleets of each shape, the smallest first."""
    places = defaultdict[tuple[str, str], list[int]](list)
    for at in sorted(range(len(candidates)), key=lambda at: candidates[at].gpus):
        places[candidates[at].shape].append(at)
    return [*places.values()]


def halved(
    candidates: Sequence[PlanCandidate], least: float, shares: Callable[[Sequence[PlanCandidate]], Sequence[float]]
) -> list[tuple[float, PlanCandidate]]:
    """Return, in order, the fleets that hold at least this share, and those that were played and do not. In each shape
    the smallest that holds it is found by halving: larger ones count as holding as much, smaller ones as holding less.
    """
    found = dict[int, float]()
    left = [(sizes, 0, len(sizes)) for sizes in by_shape(candidates)]  # the smallest that holds it is in this range
    smallest = list[tuple[list[int], int]]()
    while left:
        middles = [(start + stop) // 2 for _, start, stop in left]
        places = [sizes[middle] for (sizes, *_), middle in zip(left, middles, strict=True)]
        found |= zip(places, shares([candidates[at] for at in places]), strict=True)
        halves = [
            (sizes, start, middle) if found[sizes[middle]] >= least else (sizes, middle + 1, stop)
            for (sizes, start, stop), middle in zip(left, middles, strict=True)
        ]
        smallest += ((sizes, stop) for sizes, start, stop in halves if start == stop)
        left = [one for one in halves if one[1] < one[2]]
    for sizes, first in smallest:
        found |= {at: found[sizes[first]] for at in sizes[first:] if at not in found}
    return [(found[at], one) for at, one in enumerate(candidates) if at in found]


def cheapest(
    candidates: Iterable[PlanCandidate],
    least: float,
    most: int,
    shares: Callable[[Sequence[PlanCandidate]], Sequence[float]],
) -> list[tuple[float, PlanCandidate]]:
    """Play the candidates by price until `most` shapes hold at least this share: `best` would choose no dearer one."""
    scored: list[tuple[float, PlanCandidate]] = []
    batch: list[PlanCandidate] = []
    for _, equals in groupby(sorted(candidates, key=lambda one: one.per_hour), key=lambda one: one.per_hour):
        batch += equals
        if len(batch) >= most:
            scored += zip(shares(batch), batch, strict=True)
            batch = []
        if len({one.shape for share, one in scored if share >= least}) >= most:
            return scored
    return [*scored, *zip(shares(batch), batch, strict=True)]


def best(scored: Iterable[tuple[float, PlanCandidate]], least: float, most: int) -> list[PlanCandidate]:
    """Return the candidates with at least this share, the cheapest of each kind first; if there are none, the closest
    ones.
    """
    every = sorted(scored, key=lambda one: (one[1].per_hour, -one[0]))
    good = [one for one in every if one[0] >= least]
    if not good:
        return [one for _, one in sorted(every, key=lambda one: -one[0])[:most]]
    turns: dict[tuple[str, str], int] = defaultdict(int)
    ordered = []
    for share, one in good:
        turns[one.shape] += 1
        ordered.append((turns[one.shape], one.per_hour, -share, one))
    return [one for *_, one in sorted(ordered, key=lambda each: each[:3])[:most]]


def frontier(rows: Sequence[PlanRow]) -> tuple[PlanRow, ...]:
    """Return the rows, by cost, for which no other row is as cheap and holds as much at every load played, even with
    slower engines."""

    def beats(other: PlanRow, row: PlanRow) -> bool:
        cheap = other.candidate.per_hour <= row.candidate.per_hour
        holds = other.low >= row.low and other.if_slower >= row.if_slower
        return cheap and holds and all(other.at_load.get(at, 0.0) >= share for at, share in row.at_load.items())

    return tuple(
        row
        for at, row in enumerate(rows)
        if not any(
            beats(other, row) and (not beats(row, other) or before < at)
            for before, other in enumerate(rows)
            if before != at
        )
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    """A simulation of the first `count` requests."""

    candidate: PlanCandidate
    count: int
    seed: int
    load: float = 1.0
    predicts: bool = False


class _Scoring:
    """Simulates the fleets of one question."""

    def __init__(
        self, question: PlanQuestion, requests: Sequence[TraceRequest], pacing: str, on_play: Callable[[int], None]
    ) -> None:
        self._question, self._requests, self._pacing, self._on_play = question, requests, pacing, on_play
        self._classes, self._prompts = trace_classes(requests), prompts_of(requests)
        limited = (at for at, name in enumerate(self._classes.values(), start=1) if limits_of(question.slo, name))
        self.fewest = next(islice(limited, FEW - 1, None), len(requests))  # a window with fewer requests proves nothing
        self._done = 0

    def shares(self, candidates: Sequence[PlanCandidate], count: int) -> list[float]:
        return [score.share for score in self._scores([_Asked(one, count, self._question.seed) for one in candidates])]

    def rows(self, candidates: Sequence[PlanCandidate]) -> list[PlanRow]:
        """Play the whole trace with every seed, then at greater loads while the fleet holds the SLO."""
        count, seed = len(self._requests), self._question.seed
        asked = [_Asked(one, count, seed + more, predicts=True) for one in candidates for more in range(SEEDS)]
        scores = iter(self._scores(asked))
        by_seed = [list(islice(scores, SEEDS)) for _ in candidates]
        by_load = [{HEADROOM[0]: score} for score, *_ in by_seed]
        for load in HEADROOM[1:]:
            left = [at for at, each in enumerate(by_load) if self._broken(each) is None]
            more = self._scores([_Asked(candidates[at], count, seed, load) for at in left])
            for at, score in zip(left, more, strict=True):
                by_load[at][load] = score
        return [self._row(*each) for each in zip(candidates, by_seed, by_load, strict=True)]

    def _broken(self, by_load: Mapping[float, PlanScore]) -> float | None:
        """Return the load at which the SLO is not held."""
        return next((load for load, score in by_load.items() if score.share < self._question.share), None)

    def _scores(self, asked: Sequence[_Asked]) -> list[PlanScore]:
        found = []
        for score in played(asked, self._score, at_once=2):
            found.append(score)
            self._done += 1
            self._on_play(self._done)
        return found

    def _score(self, asked: _Asked) -> PlanScore:
        one, part = asked.candidate, faster(self._requests[: asked.count], asked.load)
        outcome = simulate(
            one.fleet.twin, one.policy, part, pacing=self._pacing, seed=asked.seed, prompts=self._prompts
        )
        score = score_of(outcome, self._question.slo, self._classes, one.fleet.expected)
        if not asked.predicts:
            return score
        routed = {request.index: request.request_class or UNCLASSED for request in outcome.requests}
        records = records_of(outcome, trace_classes=routed, policy_version=0)
        return replace(score, figures=figures_of(records, self._question.slo, one.fleet.expected))

    def _row(self, one: PlanCandidate, seeds: Sequence[PlanScore], by_load: Mapping[float, PlanScore]) -> PlanRow:
        broken = self._broken(by_load)
        breaks = f"nothing up to ×{HEADROOM[-1]:g}" if broken is None else f"{by_load[broken].weakest} at ×{broken:g}"
        shares = [score.share for score in seeds]
        doubts = tuple(dict.fromkeys(text for score in (*seeds, *by_load.values()) for text in score.doubts))
        at_load = {load: score.share for load, score in by_load.items()}
        slower = min(score.if_slower for score in seeds)
        foretold = predicted([score.figures for score in seeds if score.figures is not None], one.fleet.expected)
        return PlanRow(one, min(shares), max(shares), slower, at_load, breaks, doubts, foretold)


def score_of(outcome: TwinOutcome, slo: Slo, classes: Mapping[int, str], expected: ExpectedError) -> PlanScore:
    limits = judged(slo, (classes[one.index] for one in outcome.requests))
    groups: dict[str, list[Simulated]] = {name: [] for name in limits}
    for one in outcome.requests:
        if classes[one.index] in groups:
            groups[classes[one.index]].append(one)
    errors = errors_of(expected)
    nothing = dict.fromkeys(LATENCIES, 0.0)
    missed = {
        f"{name} {latency.upper()}": sum(not _holds(one, limits[name], latency, 0.0) for one in found) / len(found)
        for name, found in groups.items()
        for latency in LATENCIES
    }
    return PlanScore(
        min((_share(found, limits[name], nothing) for name, found in groups.items()), default=0.0),
        min((_share(found, limits[name], errors) for name, found in groups.items()), default=0.0),
        max(missed, key=lambda name: missed[name], default=""),
        outcome.doubts,
    )


def _share(requests: Sequence[Simulated], limits: Mapping[str, float], errors: Mapping[str, float]) -> float:
    held = sum(all(_holds(one, limits, name, errors[name]) for name in LATENCIES) for one in requests)
    return held / len(requests)


def _holds(one: Simulated, limits: Mapping[str, float], latency: str, slower: float) -> bool:
    """Return whether a request stays within the limits. An unknown TPOT (of a single token) violates none; a request
    without an answer violates every limit."""
    limit = limits.get(f"{latency}_ms")
    if limit is None:
        return True
    if one.outcome != "ok":
        return False
    value: float | None = getattr(one, f"{latency}_s")
    return value is None or value * 1000 * (1 + slower) <= limit
