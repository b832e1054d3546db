"""Finds the cheapest fleets that hold an SLO: closed forms first, then plays of longer and longer windows. Pure."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.evidence.plan.question import PlanCandidate, PlanQuestion, Slo, fingerprint, judged, space_of
from controlplane.evidence.traces.formats.registry import faster
from controlplane.evidence.traces.summary import trace_classes
from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.twin.expected_error import ExpectedError
from controlplane.evidence.twin.simulation.chains import prompts_of
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import Simulated, TwinOutcome

HEADROOM = (1.0, 1.1, 1.25, 1.5)  # factors on the load
SEEDS = 2  # plays at the load itself
FIRST, SECOND = 20, 4  # divisors of the trace's length for the first windows
LEAST = 150  # least requests of a window
SLACK = (0.15, 0.05)  # shortfall of the requested share up to which a fleet continues after the first windows
GO_ON = 24  # fleets that continue after the first window
FINAL = 6
LATENCIES = ("ttft", "tpot", "e2e")
ERRORS = {"ttft": "ttft_mean", "tpot": "tpot", "e2e": "e2e"}  # field of the expected error


@dataclass(frozen=True, slots=True)
class PlanScore:
    share: float  # share within the limits, 0–1, of the class with the least
    if_slower: float  # the same share if engines are slower by the twin's expected error
    weakest: str  # class and time that fail most often
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanRow:
    candidate: PlanCandidate
    low: float  # lowest over seeds
    high: float
    if_slower: float
    at_load: Mapping[float, float]  # share by factor on the load
    breaks_first: str
    doubts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanAnswer:
    rows: tuple[PlanRow, ...]  # frontier, cheapest first
    holds: PlanRow | None  # cheapest row that holds the SLO, also if the engines are slower by the expected error
    fleets: int  # number of fleets played
    too_small: int  # number left out by closed forms
    left_out: tuple[str, ...]
    requests: int
    fingerprint: str


def plan(
    question: PlanQuestion,
    requests: Sequence[TraceRequest],
    pacing: str,
    on_play: Callable[[int, int], None] = lambda done, total: None,
) -> PlanAnswer:
    """Return the plan. `on_play(done, total)` may raise to stop."""
    space = space_of(question, requests, pacing)
    total = len(space.candidates) + GO_ON + FINAL * (SEEDS + len(HEADROOM) - 1)
    plays = _Scoring(question, requests, pacing, lambda done: on_play(min(done, total), total))
    left: Sequence[PlanCandidate] = space.candidates
    for part, slack, most in ((FIRST, SLACK[0], GO_ON), (SECOND, SLACK[1], FINAL)):
        count = min(len(requests), max(LEAST, len(requests) // part))
        scored = [(plays.score(one, count).share, one) for one in left]
        left = best(scored, question.share - slack, most)
    rows = sorted((plays.row(one) for one in left), key=lambda row: (row.candidate.per_hour, -row.low))
    holds = next((row for row in rows if row.low >= question.share and row.if_slower >= question.share), None)
    mark = fingerprint(question, requests, pacing)
    counts = len(space.candidates), space.too_small
    return PlanAnswer(frontier(rows), holds, *counts, space.left_out, len(requests), mark)


def best(scored: Iterable[tuple[float, PlanCandidate]], least: float, most: int) -> list[PlanCandidate]:
    """Return the candidates with at least this share, the cheapest of each shape first; without any, those that come
    nearest."""
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
    """Return the rows, by cost, for which no other is as cheap and holds more at every load."""

    def beats(other: PlanRow, row: PlanRow) -> bool:
        cheap = other.candidate.per_hour <= row.candidate.per_hour
        return cheap and all(other.at_load[at] >= share for at, share in row.at_load.items())

    return tuple(
        row
        for at, row in enumerate(rows)
        if not any(
            beats(other, row) and (not beats(row, other) or before < at)
            for before, other in enumerate(rows)
            if before != at
        )
    )


class _Scoring:
    """Plays the fleets of one question."""

    def __init__(
        self, question: PlanQuestion, requests: Sequence[TraceRequest], pacing: str, on_play: Callable[[int], None]
    ) -> None:
        self._question, self._requests, self._pacing, self._on_play = question, requests, pacing, on_play
        self._classes, self._prompts = trace_classes(requests), prompts_of(requests)
        self._done = 0

    def score(self, one: PlanCandidate, count: int, seed: int | None = None, load: float = 1.0) -> PlanScore:
        part = faster(self._requests[:count], load)
        seed = self._question.seed if seed is None else seed
        outcome = simulate(one.fleet.twin, one.policy, part, pacing=self._pacing, seed=seed, prompts=self._prompts)
        self._done += 1
        self._on_play(self._done)
        return score_of(outcome, self._question.slo, self._classes, one.fleet.expected)

    def row(self, one: PlanCandidate) -> PlanRow:
        count, first = len(self._requests), self._question.seed
        seeds = [self.score(one, count, first + more) for more in range(SEEDS)]
        loads = {load: self.score(one, count, load=load) for load in HEADROOM[1:]}
        at_load = {1.0: seeds[0].share} | {load: score.share for load, score in loads.items()}
        broken = next((load for load, share in at_load.items() if share < self._question.share), None)
        breaks = f"nothing up to ×{HEADROOM[-1]:g}"
        if broken is not None:
            breaks = f"{(loads.get(broken) or seeds[0]).weakest} at ×{broken:g}"
        shares = [score.share for score in seeds]
        doubts = tuple(dict.fromkeys(text for score in (*seeds, *loads.values()) for text in score.doubts))
        slower = min(score.if_slower for score in seeds)
        return PlanRow(one, min(shares), max(shares), slower, at_load, breaks, doubts)


def score_of(outcome: TwinOutcome, slo: Slo, classes: Mapping[int, str], expected: ExpectedError) -> PlanScore:
    limits = judged(slo, (classes[one.index] for one in outcome.requests))
    groups: dict[str, list[Simulated]] = {name: [] for name in limits}
    for one in outcome.requests:
        if classes[one.index] in groups:
            groups[classes[one.index]].append(one)
    errors = {name: expected[field] or 0.0 for name, field in ERRORS.items()}  # type: ignore[literal-required]
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
    """Tell whether a request holds the limits. An unknown TPOT (of a single token) breaks none; a request without an
    answer breaks every limit."""
    limit = limits.get(f"{latency}_ms")
    if limit is None:
        return True
    if one.outcome != "ok":
        return False
    value: float | None = getattr(one, f"{latency}_s")
    return value is None or value * 1000 * (1 + slower) <= limit
