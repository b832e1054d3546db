"""Computes a tuning: searches on one part of the requests and checks the winners on the other. Pure."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import repeat
from typing import cast

from controlplane.evidence.traces.types import TraceRequest
from controlplane.evidence.tuning import goals
from controlplane.evidence.tuning.goals import Goals, GoodputLimits
from controlplane.evidence.tuning.search import Drawn, Search, search_of
from controlplane.evidence.tuning.space import Dimension
from controlplane.evidence.tuning.types import FoundByTuning, Reason
from controlplane.evidence.twin.plays import played
from controlplane.evidence.twin.simulation.simulate import simulate
from controlplane.evidence.twin.simulation.types import TwinFleet, TwinOutcome
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import InvalidInput
from router.policy.schema import document as documents
from router.policy.types import ParsedPolicy

TRIES = 5  # points drawn at most per trial, because some are not valid documents


@dataclass(frozen=True, slots=True)
class Tried:
    """A trial that has ended. Numbers start at 1."""

    number: int
    values: JsonObject  # values by path of the parameter
    goals: Goals


@dataclass(frozen=True, slots=True)
class TuningInputs:
    fleet: TwinFleet
    document: JsonObject  # document of the live version
    space: tuple[Dimension, ...]
    search: tuple[TraceRequest, ...]
    check: tuple[TraceRequest, ...]
    pacing: str
    seed: int
    trials: int
    workers: int
    ttft_limit_ms: float | None = None
    tpot_limit_ms: float | None = None
    objectives: tuple[str, ...] = goals.OBJECTIVES
    time_limit_s: float | None = None  # longest search, wall clock; None for no limit
    kept: tuple[Tried, ...] = ()  # trials of an earlier run with the same inputs


@dataclass(frozen=True, slots=True)
class Tuned:
    result: FoundByTuning
    not_modelled: tuple[str, ...]
    by_class: dict[str, int]  # held-out requests by class under the live version


def compute(job: TuningInputs, on_progress: Callable[[Tried], None]) -> Tuned:
    """Compute a tuning. `on_progress` is called with each new trial; its exceptions propagate."""
    before = _on_search(job, documents.parse(job.document))
    limits = goals.limits_of(before.requests, job.ttft_limit_ms, job.tpot_limit_ms)
    search = search_of(job.space, job.seed, job.trials, job.objectives)
    search.begin(documents.values_of(job.document), goals.goals_of(before.requests, limits))
    return _checked(job, limits, before, _searched(job, search, limits, on_progress))


def _on_search(job: TuningInputs, policy: ParsedPolicy) -> TwinOutcome:
    return simulate(job.fleet, policy, job.search, pacing=job.pacing, seed=job.seed)


def _on_check(job: TuningInputs, policy: ParsedPolicy) -> TwinOutcome:
    return simulate(job.fleet, policy, job.check, pacing=job.pacing, seed=job.seed + 1)  # another seed, for ties


def _searched(
    job: TuningInputs, search: Search, limits: GoodputLimits, on_progress: Callable[[Tried], None]
) -> dict[int, Tried]:
    """Search in batches of one point per worker. Results are reported in the order in which the points were drawn, so
    timing does not matter."""
    tried: dict[int, Tried] = {}
    tries, end = TRIES * job.trials, time.monotonic() + (job.time_limit_s or math.inf)
    while len(tried) < job.trials and tries > 0 and (not tried or time.monotonic() < end):
        batch = []
        for _ in repeat(None, min(job.workers, job.trials - len(tried))):
            tries -= 1
            drawn, policy = _drawn(job, search)
            if policy is not None:
                batch.append((drawn, policy))
        measured = _measured(job, dict(enumerate(batch, len(tried) + 1)), limits)
        for (drawn, _), found in zip(batch, measured, strict=True):
            search.tell(drawn, found.goals)
            tried[found.number] = found
            if found not in job.kept:
                on_progress(found)
    return tried


def _measured(
    job: TuningInputs, batch: dict[int, tuple[Drawn, ParsedPolicy]], limits: GoodputLimits
) -> Iterator[Tried]:
    """Yield the trials of a batch. Trials of an earlier run that the search draws again are not simulated again."""
    values = {number: drawn.values for number, (drawn, _) in batch.items()}
    kept = {each.number: each for each in job.kept if each.values == values.get(each.number)}
    missing = [policy for number, (_, policy) in batch.items() if number not in kept]
    measured = played(
        missing, lambda policy: goals.goals_of(_on_search(job, policy).requests, limits), at_once=job.workers
    )
    for number, (drawn, _) in batch.items():
        if number in kept:
            yield kept[number]
        else:
            yield Tried(number, drawn.values, next(measured))


def _drawn(job: TuningInputs, search: Search) -> tuple[Drawn, ParsedPolicy | None]:
    """Draw a point. If it is not a valid document, the policy is None, and the search is informed."""
    drawn = search.ask()
    try:
        return drawn, documents.parse(documents.apply_overrides(job.document, drawn.values))
    except InvalidInput:
        search.tell(drawn, None)
        return drawn, None


def _checked(job: TuningInputs, limits: GoodputLimits, before: TwinOutcome, tried: dict[int, Tried]) -> Tuned:
    points = {number: each.goals for number, each in tried.items()}
    chosen = goals.winners(points, job.objectives)
    tuned_by = (documents.apply_overrides(job.document, tried[n].values) for n in chosen)
    policies = [documents.parse(each) for each in (job.document, *tuned_by)]
    live, *outcomes = played(policies, lambda policy: _on_check(job, policy), at_once=job.workers)
    tuned = {number: outcome.requests for number, outcome in zip(chosen, outcomes, strict=True)}
    effects = goals.effects(live.requests, tuned, limits) if tuned else {}
    result: FoundByTuning = {
        "limits": {"ttft_ms": _finite(limits.ttft_ms), "tpot_ms": _finite(limits.tpot_ms)},
        "live": {
            "search": goals.goals_of(before.requests, limits).as_dict(),
            "check": goals.goals_of(live.requests, limits).as_dict(),
        },
        "front": goals.front(points, job.objectives),
        "winners": [
            {
                "trial": number,
                "reasons": cast(list[Reason], reasons),
                "values": tried[number].values,
                "search": points[number].as_dict(),
                "check": goals.goals_of(tuned[number], limits).as_dict(),
                "effect": effects[number],
            }
            for number, reasons in chosen.items()
        ],
    }
    left_out = dict.fromkeys(text for outcome in (live, *outcomes) for text in outcome.doubts)
    by_class: dict[str, int] = {"all": len(live.requests)}
    for request in live.requests:
        by_class[request.request_class] = by_class.get(request.request_class, 0) + 1
    return Tuned(result, tuple(left_out), by_class)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
