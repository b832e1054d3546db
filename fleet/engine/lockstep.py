"""Steps engines together, like the data-parallel ranks of a mixture of experts. The ranks exchange tokens in every
layer: a step begins on all of them at the same time and lasts as long as on the slowest. A rank without work computes a
dummy batch, which delays no other rank; a request that arrives there waits for the next step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from fleet.engine.engine import Engine, StepResult
from fleet.engine.request import DecodeRun, run_s, steps_within


@dataclass(frozen=True, slots=True)
class _Coming:
    """Coming steps in which every rank decodes or idles."""

    runs: tuple[DecodeRun | None, ...]  # run of each engine; None: it is idle
    pace: DecodeRun  # run of the slowest engine
    steps: int


class Lockstep:
    """Several engines with the interface of `Engine`."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._clock_s = 0.0  # end of the last step
        self._end_s: float | None = None  # end of the step in progress

    def next_event_s(self) -> float | None:
        """Like `Engine.next_event_s`, over all engines."""
        if self._end_s is not None:
            return self._end_s
        coming = self._coming()
        return self._clock_s + coming.pace.first_s if coming is not None else self._next_start_s()

    def next_turn_s(self) -> float | None:
        """Return when to call `turn`, unless an event concerns one of the engines before that."""
        if self._end_s is not None:
            return self._end_s
        coming = self._coming()
        if coming is None:
            return self._next_start_s()
        return self._clock_s + run_s(coming.steps, coming.pace.first_s, coming.pace.growth_s)

    def turn(self, now_s: float) -> list[StepResult | None]:
        """Return the steps that end on each engine; empty if a step starts. If called before `next_turn_s`, return the
        steps that have ended by then."""
        if self._end_s is not None:
            return self._complete()
        coming = self._coming()
        if coming is not None:
            return self._run(coming, coming.steps)
        self._begin(now_s)
        return []

    def advance(self, until_s: float) -> list[list[StepResult]]:
        """Return all steps that end by the given time, for each engine."""
        results: list[list[StepResult]] = [[] for _ in self.engines]
        while (ended := self._next_within(until_s)) is not None:
            for found, result in zip(results, ended, strict=False):
                if result is not None:
                    found.append(result)
        return results

    def _next_within(self, until_s: float) -> list[StepResult | None] | None:
        """Like `turn`; None if nothing more happens by then."""
        if self._end_s is not None:
            return self._complete() if self._end_s <= until_s else None
        coming = self._coming()
        if coming is not None:
            steps = min(coming.steps, steps_within(until_s - self._clock_s, coming.pace.first_s, coming.pace.growth_s))
            return self._run(coming, steps) if steps else None
        start_s = self._next_start_s()
        return [] if start_s is not None and start_s <= until_s and self._begin(start_s) else None

    def _next_start_s(self) -> float | None:
        starts = [start_s for engine in self.engines if (start_s := engine.next_start_s()) is not None]
        return max(self._clock_s, min(starts)) if starts else None

    def _begin(self, at_s: float) -> bool:
        """Start a step on every engine that has work."""
        self._clock_s = max(self._clock_s, at_s)
        plans = []
        for engine in self.engines:
            engine.clock_s = max(engine.clock_s, self._clock_s)
            if (plan := engine.plan(self._clock_s)) is not None:
                plans.append((engine, plan))
        if plans:
            tokens = sum(plan.tokens for _, plan in plans) / len(self.engines)
            even = not any(plan.prefill for _, plan in plans)  # decode batches of all ranks are padded to the largest
            self._end_s = max(
                engine.start(plan, engine.law.plan_s(plan) if even else engine.law.rank_s(plan, tokens))
                for engine, plan in plans
            )
            for engine in self.engines:
                engine.hold_until(self._end_s)
        return bool(plans)

    def _complete(self) -> list[StepResult | None]:
        assert self._end_s is not None  # noqa: S101 - narrows the type: both callers have looked
        self._clock_s, self._end_s = self._end_s, None
        return [engine.complete() if engine.in_step else None for engine in self.engines]

    def _coming(self) -> _Coming | None:
        runs = tuple(engine.coming_run() for engine in self.engines)
        decoding = [run for run in runs if run is not None]
        if not decoding:
            return None
        pace = max(decoding, key=lambda run: (run.first_s, run.growth_s))
        steps = min(_slowest_for(pace, run) for run in decoding)
        for engine, run in zip(self.engines, runs, strict=True):
            if run is not None:
                at_pace = replace(run, first_s=pace.first_s, growth_s=pace.growth_s)
                steps = engine.count_equal(at_pace, min(steps, run.steps))
            elif (start_s := engine.next_start_s()) is not None:
                if start_s <= self._clock_s:
                    return None
                steps = min(steps, 1 + steps_within(start_s - self._clock_s, pace.first_s, pace.growth_s))
        return _Coming(runs, pace, steps)

    def _run(self, coming: _Coming, steps: int) -> list[StepResult | None]:
        results: list[StepResult | None] = []
        for engine, run in zip(self.engines, coming.runs, strict=True):
            results.append(engine.run(run, steps, coming.pace) if run is not None else None)
        self._clock_s += run_s(steps, coming.pace.first_s, coming.pace.growth_s)
        for engine in self.engines:
            engine.clock_s = max(engine.clock_s, self._clock_s)
        return results


def _slowest_for(pace: DecodeRun, run: DecodeRun) -> int:
    """Return the number of steps after which `run` is slower than `pace`, the slowest in the next step."""
    gains_s = run.growth_s - pace.growth_s
    return int((pace.first_s - run.first_s) / gains_s) + 1 if gains_s > 0 else run.steps


class RankSteps:
    """One engine of a group that the wall clock drives together with the others."""

    def __init__(self, group: Lockstep, place: int) -> None:
        self._group = group
        self._engine = group.engines[place]
        self._ended: list[StepResult] = []  # steps completed by a call for another rank
        self._all: Sequence[RankSteps] = ()

    def next_event_s(self) -> float | None:
        return self._group.next_event_s() if self._engine.next_event_s() is not None else None

    def advance(self, until_s: float) -> list[StepResult]:
        """Like `Engine.advance`."""
        for steps, ended in zip(self._all, self._group.advance(until_s), strict=True):
            steps._ended += ended
        mine, self._ended = self._ended, []
        return mine


def rank_steps(engines: Sequence[Engine]) -> list[RankSteps]:
    group = Lockstep(engines)
    found = [RankSteps(group, place) for place in range(len(engines))]
    for steps in found:
        steps._all = found
    return found
