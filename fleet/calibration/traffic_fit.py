"""Fits the constants of the law to recorded requests, through the engine model. Pure.

The law is linear in its constants but for the knee of the matrix products (fit.py), and the engine model tells which
steps passed while a request waited for its first token, and while it decoded. So each TTFT and each TPOT is a row of a
non-negative least-squares fit. Other constants move requests to other steps: replay and fit alternate, and the
constants whose replay is nearest to the measured times count.

The start is a calibration made before, or the built-in profile that is nearest after scaling it to the measured TPOT.
What the requests say nothing about stays near it. The fit sees the first requests only; its errors are those of the
requests after them.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate

from fleet.calibration.fit import Row, bend, fit_rows
from fleet.calibration.limits import EngineLimits
from fleet.calibration.recorded import RecordedRequest
from fleet.calibration.replayed import EngineConstants, Replay, ReplayErrors, errors_of, replay
from fleet.engine.engine import StepResult
from fleet.engine.law import API_S, API_S_PER_TOKEN, Law, law_of
from fleet.engine.profiles import FITS, profile

FITTED = 100  # requests that the fit sees
HELD_OUT = 200  # of those after them, at most
LEAST = 150  # measured requests in all
WARM_UP = 10  # of the first ones, not counted: what ran before them is unknown
BESIDE = 50  # requests at most
ROUNDS = 6
Factors = tuple[float, ...]
NOTHING: Factors = (0.0,) * 6
STARTS = 2  # that are fitted
PRIOR = 0.05  # importance of a constant's start, beside 1 of a measured time


class TooFewRequests(Exception):
    """Not enough recorded requests with measured times."""


@dataclass(frozen=True, slots=True)
class TrafficFit:
    constants: EngineConstants
    limits: EngineLimits
    fitted: int  # requests that the fit saw
    held_out: ReplayErrors


@dataclass(frozen=True, slots=True)
class _Seen:
    """The requests that the fit sees, and those after them that ran beside them: these are load, but do not count."""

    requests: Sequence[RecordedRequest]
    count: int

    @classmethod
    def of(cls, requests: Sequence[RecordedRequest], split: int) -> "_Seen":
        until_s = max(one.sent_s + (one.e2e_s or 0.0) for one in requests[:split])
        beside = sum(one.sent_s < until_s for one in requests[split : split + BESIDE])
        return cls(requests[: split + beside], split)

    def replay(self, constants: EngineConstants, limits: EngineLimits) -> Replay:
        played = replay(self.requests, constants, limits)
        return Replay(played.pairs[WARM_UP : self.count], played.asks[WARM_UP : self.count], played.steps)


@dataclass(frozen=True, slots=True)
class _Candidate:
    loss: float
    constants: EngineConstants
    limits: EngineLimits


def fit_traffic(
    requests: Sequence[RecordedRequest],
    limits: EngineLimits,
    starts: Sequence[EngineConstants] = (),
    report: Callable[[str], None] = lambda text: None,
) -> TrafficFit:
    """`requests`: all of the engine in that time; `starts`: calibrations made before. TooFewRequests."""
    measured = [number for number, one in enumerate(requests) if one.ttft_s is not None]
    if len(measured) < LEAST:
        raise TooFewRequests(
            f"{len(measured)} recorded requests with a TTFT, the fit and its test need {LEAST}: "
            "send streamed requests through the routers, or measure with a sweep"
        )
    measured = measured[-(WARM_UP + FITTED + HELD_OUT) :]
    requests = requests[measured[0] : measured[-1] + 1]
    split = measured[WARM_UP + min(FITTED, len(measured) * 2 // 5)] - measured[0]
    report(f"fitting {split - WARM_UP} recorded requests, testing {len(requests) - split}")
    best = min(_candidates(_Seen.of(requests, split), limits, starts), key=lambda one: one.loss)
    held_out = replay(requests, best.constants, best.limits).pairs[split:]
    return TrafficFit(best.constants, best.limits, split - WARM_UP, errors_of(held_out))


def _candidates(seen: _Seen, limits: EngineLimits, starts: Sequence[EngineConstants]) -> Iterator[_Candidate]:
    built_in = (EngineConstants(law_of(profile(*known)), API_S, API_S_PER_TOKEN) for known in FITS)
    scaled = [_scaled(start, seen, limits) for start in (*starts, *built_in)]
    ranked = sorted(scaled, key=lambda start: _loss(seen.replay(start, limits)))
    for ahead in (True, False):
        for start in ranked[:STARTS]:
            yield from _rounds(seen, replace(limits, async_scheduling=ahead), start)


def _scaled(start: EngineConstants, seen: _Seen, limits: EngineLimits) -> EngineConstants:
    """With its steps as much slower or faster as the measured TPOT is, in the middle."""
    ratios = [
        one.measured.tpot_s / one.modelled.tpot_s
        for one in seen.replay(start, limits).pairs
        if one.modelled.tpot_s and one.measured.tpot_s
    ]
    slower = statistics.median(ratios) if ratios else 1.0
    unscaled = {"expert_share": start.law.expert_share}
    law = {each.name: getattr(start.law, each.name) * slower for each in fields(Law)}
    return replace(start, law=Law(**law | unscaled))


def _rounds(seen: _Seen, limits: EngineLimits, start: EngineConstants) -> Iterator[_Candidate]:
    constants = start
    for _ in range(ROUNDS):
        played = seen.replay(constants, limits)
        yield _Candidate(_loss(played), constants, limits)
        constants = _refitted(played, start)
    yield _Candidate(_loss(seen.replay(constants, limits)), constants, limits)


def _refitted(played: Replay, start: EngineConstants) -> EngineConstants:
    prior = _prior(start)
    measured = len(_rows(played, start, 1.0))
    importance = [1.0] * measured + [PRIOR] * len(prior)
    api_s, law = fit_rows(lambda knee: [*_rows(played, start, knee), *prior], importance, importance)
    experts_s = law.weights_s * _experts(start.law)
    return replace(start, law=replace(law, experts_s=experts_s, expert_share=start.law.expert_share), api_s=api_s)


def _experts(law: Law) -> float:
    """Experts beside the shared weights. Their ratio is the model's, and is not fitted."""
    return law.experts_s / law.weights_s if law.weights_s else 0.0


def _prior(start: EngineConstants) -> list[Row]:
    law = start.law
    values = (
        start.api_s,
        law.fixed_s,
        law.weights_s,
        law.attention_s_per_pair,
        law.kv_s_per_token,
        law.allreduce_s_per_token,
        law.decode_s,
    )
    return [([float(at == other) for other in range(len(values))], value) for at, value in enumerate(values) if value]


def _rows(played: Replay, start: EngineConstants, knee: float) -> list[Row]:
    passed = _Passed(played.steps, start.law, knee)
    rows: list[Row] = []
    for one, ask in zip(played.pairs, played.asks, strict=True):
        tokenizing_s = start.api_s_per_token * one.measured.prompt_tokens
        if one.measured.ttft_s and one.measured.ttft_s > tokenizing_s:
            rows.append(([1.0, *passed.between(ask.ready_s, ask.first_token_s)], one.measured.ttft_s - tokenizing_s))
        if one.measured.tpot_s and (more := ask.output_tokens - 1):
            steps = passed.between(ask.first_token_s, ask.finished_s)
            rows.append(([0.0, *(value / more for value in steps)], one.measured.tpot_s))
    return rows


class _Passed:
    """Sums of the factors of the law over the steps until a moment; a step under way counts in part."""

    def __init__(self, steps: Sequence[StepResult], law: Law, knee: float) -> None:
        self._starts = [step.start_s for step in steps]
        self._steps = steps
        self._each = [_factors(step, law, knee) for step in steps]
        self._sums = list(accumulate(self._each, _plus, initial=NOTHING))

    def between(self, begin_s: float, end_s: float) -> list[float]:
        return [end - begin for begin, end in zip(self._until(begin_s), self._until(end_s), strict=True)]

    def _until(self, at_s: float) -> list[float]:
        number = bisect_right(self._starts, at_s) - 1
        if number < 0:
            return list(NOTHING)
        step = self._steps[number]
        share = min(1.0, (at_s - step.start_s) / step.duration_s) if step.duration_s else 1.0
        return [whole + share * part for whole, part in zip(self._sums[number], self._each[number], strict=True)]


def _factors(step: StepResult, law: Law, knee: float) -> Factors:
    """Of (fixed, weights, attention pair, KV token, allreduce token, decode)."""
    tokens = step.scheduled
    read = 1 + _experts(law) * (1 - (1 - law.expert_share) ** tokens)
    linear = read * bend(tokens, knee * read)
    each = (1.0, linear, step.pairs, step.context, float(tokens), float(step.decodes))
    return tuple(step.steps * value for value in each)


def _plus(one: Factors, other: Factors) -> Factors:
    return tuple(map(float.__add__, one, other))


def _loss(played: Replay) -> float:
    """The mean of |log(modelled / measured)| over all times."""
    found = []
    for one in played.pairs:
        for measured, modelled in (
            (one.measured.ttft_s, one.modelled.ttft_s),
            (one.measured.tpot_s, one.modelled.tpot_s),
        ):
            if measured and modelled:
                found.append(abs(math.log(modelled / measured)))
    return statistics.fmean(found) if found else math.inf
