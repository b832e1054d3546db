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
Moment = tuple[int, float]  # a step, and the share of it that has passed
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
class _FittedRequests:
    """The requests that the fit sees, and those after them that ran beside them: these are load, but do not count."""

    requests: Sequence[RecordedRequest]
    count: int

    @classmethod
    def of(cls, requests: Sequence[RecordedRequest], split: int) -> "_FittedRequests":
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
    capacity = limits.kv_blocks * limits.block_size
    requests = [one for one in requests if one.prompt_tokens + one.output_tokens <= capacity]
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
    best = min(_candidates(_FittedRequests.of(requests, split), limits, starts), key=lambda one: one.loss)
    held_out = replay(requests, best.constants, best.limits).pairs[split:]
    return TrafficFit(best.constants, best.limits, split - WARM_UP, errors_of(held_out))


def _candidates(seen: _FittedRequests, limits: EngineLimits, starts: Sequence[EngineConstants]) -> Iterator[_Candidate]:
    built_in = (EngineConstants(law_of(profile(*known)), API_S, API_S_PER_TOKEN) for known in FITS)
    scaled = [_scaled(start, seen, limits) for start in (*starts, *built_in)]
    ranked = sorted(scaled, key=lambda start: _loss(seen.replay(start, limits)))
    for is_async in (True, False):
        for start in ranked[:STARTS]:
            yield from _rounds(seen, replace(limits, async_scheduling=is_async), start)


def _scaled(start: EngineConstants, seen: _FittedRequests, limits: EngineLimits) -> EngineConstants:
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


def _rounds(seen: _FittedRequests, limits: EngineLimits, start: EngineConstants) -> Iterator[_Candidate]:
    constants = start
    for _ in range(ROUNDS):
        played = seen.replay(constants, limits)
        yield _Candidate(_loss(played), constants, limits)
        constants = _refitted(played, start)
    yield _Candidate(_loss(seen.replay(constants, limits)), constants, limits)


def _refitted(played: Replay, start: EngineConstants) -> EngineConstants:
    rows, prior = _Rows(played, start), _prior(start)
    importance = [1.0] * len(rows.spans) + [PRIOR] * len(prior)
    api_s, law = fit_rows(lambda knee: [*rows.at(knee), *prior], importance, importance)
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


@dataclass(frozen=True, slots=True)
class _Span:
    """The steps of one measured time."""

    begin: Moment
    end: Moment
    api: float  # 1.0: it begins in the API
    tokens: int  # that share the steps
    seconds: float  # measured, for one of them


class _Rows:
    """The rows of the fit: only one of their factors, that of the weights, depends on the knee."""

    def __init__(self, played: Replay, start: EngineConstants) -> None:
        self._law, self._steps = start.law, played.steps
        self._starts = [step.start_s for step in played.steps]
        self.spans = list(self._spans(played, start.api_s_per_token))
        columns = zip(*map(_factors, played.steps), strict=True)
        self._columns = [self._of_spans(column) for column in columns]

    def at(self, knee: float) -> list[Row]:
        fixed, pairs, context, tokens, decodes = self._columns
        weights = self._of_spans([self._weights(step, knee) for step in self._steps])
        columns = ([span.api for span in self.spans], fixed, weights, pairs, context, tokens, decodes)
        seconds = (span.seconds for span in self.spans)
        return [(list(values), measured) for values, measured in zip(zip(*columns, strict=True), seconds, strict=True)]

    def _spans(self, played: Replay, api_s_per_token: float) -> Iterator[_Span]:
        for one, ask in zip(played.pairs, played.asks, strict=True):
            measured, first, more = one.measured, self._moment(ask.first_token_s), ask.output_tokens - 1
            tokenizing_s = api_s_per_token * measured.prompt_tokens
            if measured.ttft_s and measured.ttft_s > tokenizing_s:
                yield _Span(self._moment(ask.ready_s), first, 1.0, 1, measured.ttft_s - tokenizing_s)
            if measured.tpot_s and more:
                yield _Span(first, self._moment(ask.finished_s), 0.0, more, measured.tpot_s)

    def _moment(self, at_s: float) -> Moment:
        number = max(0, bisect_right(self._starts, at_s) - 1)
        step = self._steps[number]
        share = (at_s - step.start_s) / step.duration_s if step.duration_s else 1.0
        return number, min(1.0, max(0.0, share))

    def _of_spans(self, values: Sequence[float]) -> list[float]:
        """The sum of a factor over the steps of each span; a step under way counts in part."""
        sums = list(accumulate(values, initial=0.0))

        def until(moment: Moment) -> float:
            number, share = moment
            return sums[number] + share * values[number]

        return [(until(span.end) - until(span.begin)) / span.tokens for span in self.spans]

    def _weights(self, step: StepResult, knee: float) -> float:
        read = 1 + _experts(self._law) * (1 - (1 - self._law.expert_share) ** step.scheduled)
        return step.steps * read * bend(step.scheduled, knee * read)


def _factors(step: StepResult) -> tuple[float, ...]:
    """Factors of (fixed, attention pair, KV token, allreduce token, decode)."""
    each = (1.0, step.pairs, step.context, float(step.scheduled), float(step.decodes))
    return tuple(step.steps * value for value in each)


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
