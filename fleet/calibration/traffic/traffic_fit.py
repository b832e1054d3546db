"""Fits the constants of the law to recorded requests, through the engine model. Pure. The unknowns are the logarithms
of factors on a start, which is a built-in profile (of the engine's model if known) or an earlier calibration. Each has
a prior around the start, so that constants which the requests do not determine stay physical: no constant becomes zero,
and a constant that is zero (reductions on one GPU) stays zero. The engine model shows which steps passed while a
request waited for its first token and while it decoded; the law shows how much each constant contributed to them. The
derivatives of each TTFT and TPOT are therefore known, and Gauss-Newton steps find the factors. As other constants move
requests to other steps, each Gauss-Newton step replays the requests again. The requests are fitted in blocks of time
across the recorded loads. The error is that of the worst block, where each block is replayed with constants that were
fitted to the others.
"""

import math
import statistics
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import NamedTuple

from fleet.calibration.limits import EngineLimits
from fleet.calibration.nnls import eliminate
from fleet.calibration.traffic.blocks import RequestBlock, blocks_of, joined
from fleet.calibration.traffic.recorded import RecordedRequest, served
from fleet.calibration.traffic.replayed import (
    ComparedRequest,
    EngineConstants,
    ReplayErrors,
    errors_of,
    replay,
    worst_of,
)
from fleet.engine.engine import StepResult
from fleet.engine.engine_model import LoadRange, RequestLoad
from fleet.engine.law import Law
from fleet.engine.power import Draws
from fleet.engine.request import EngineRequest

LEAST = 150  # fewest measured requests
RECORDED = 4_000  # newest requests that are used; older ones are left out
STARTS = 2  # starts to be fitted: the nearest ones after adjusting their common factor
SCALED = (1.0, 0.5, 0.25)  # shares of the distance between the start's TPOTs and the measured ones
ROUNDS = 8  # most Gauss-Newton steps
AGAIN = 2  # Gauss-Newton steps of a fit without one of the blocks
ENOUGH = 1e-3  # share by which a step must improve the sum
# Spread of each factor, as the standard deviation of its logarithm: how far engines deviate from their profile.
API = "api_s"
SPREAD = {
    API: 1.0,
    "fixed_s": 0.5,
    "compute_s_per_token": 0.25,
    "weights_s": 0.2,
    "attention_s_per_pair": 0.5,
    "kv_s_per_token": 0.3,
    "allreduce_s_per_token": 0.5,
    "decode_s": 0.7,
}
NAMES = tuple(SPREAD)
UNKNOWNS = len(NAMES) + 1  # the named constants, and one factor common to all steps
SIGMA = 0.1  # spread of the log of a measured time
SIGMA_OF_MEAN = 0.05  # spread of the log of a block's mean
TOGETHER = 10  # this many concurrent requests contribute about as much information as one
LIMIT = 1.345 * SIGMA  # keeps 95 % of the efficiency


class TooFewRequests(Exception):
    """Too few recorded requests have measured times."""


@dataclass(frozen=True, slots=True)
class FitStart:
    constants: EngineConstants
    spread: float  # standard deviation of the logarithm of the factor common to its steps
    widened: float = 1.0  # factor on SPREAD for the individual constants

    def drawing(self, draws: Draws) -> "FitStart":
        """Return the start on a GPU with this power."""
        return replace(self, constants=replace(self.constants, law=self.constants.law.drawing(draws)))


@dataclass(frozen=True, slots=True)
class TrafficFit:
    constants: EngineConstants
    limits: EngineLimits
    fitted: int  # number of fitted requests
    held_out: ReplayErrors  # errors of the worst block
    load_range: LoadRange


Factors = list[float]  # logarithms of the factors: by name, then the common one


class _Time:
    """A time as measured and as modelled."""

    __slots__ = ("_find", "_found", "measured_s", "modelled_s")

    def __init__(self, find: Callable[[], list[float]], measured_s: float, modelled_s: float) -> None:
        self._find, self.measured_s, self.modelled_s = find, measured_s, modelled_s
        self._found: list[float] | None = None

    @property
    def parts(self) -> list[float]:
        """Return the share of each unknown in the modelled time, in s. It is computed on first use, because an
        abandoned fit does not need it."""
        if self._found is None:
            self._found = self._find()
        return self._found


class FitRow(NamedTuple):
    """A row of the fit: the mean of some times."""

    times: Sequence[_Time]
    decodes_only: bool  # True for TPOT, False for TTFT or E2E
    modelled_s: float  # sum of the modelled times
    off: float  # log of measured / modelled
    weight: float

    @property
    def shares(self) -> list[float]:
        """Return the contribution of each unknown to the modelled time, 0–1: the derivatives of its logarithm."""
        return [sum(values) / self.modelled_s for values in zip(*(time.parts for time in self.times), strict=True)]


def fit_traffic(
    requests: Sequence[RecordedRequest],
    limits: EngineLimits,
    starts: Sequence[FitStart],
    report: Callable[[str], None] = lambda text: None,
    either: Sequence[bool] = (True, False),
) -> TrafficFit:
    """Fit the constants. `requests` are all of the engine's requests during that time; `either` has the values of async
    scheduling to try. Raise TooFewRequests."""
    capacity = limits.kv_blocks * limits.block_size
    requests = [one for one in requests if one.prompt_tokens + one.output_tokens <= capacity][-RECORDED:]
    measured = sum(one.ttft_s is not None for one in requests)
    if measured < LEAST:
        raise TooFewRequests(
            f"{measured} recorded requests with a TTFT, the fit and its test need {LEAST}: "
            "send streamed requests through the routers, or measure with a sweep"
        )
    found = blocks_of(requests)
    report(f"fitting {sum(len(one.counted) for one in found)} recorded requests in {len(found)} blocks")
    best = _best(found, limits, starts, either)
    report(f"testing {len(found)} blocks")
    held_out = [_held_out(best, found, at) for at in range(len(found))]
    counted = [one for block in found for one in block.counted]
    return TrafficFit(
        best.constants, best.limits, len(counted), worst_of(held_out), RequestLoad.of([served(requests)]).range
    )


def _best(
    found: Sequence[RequestBlock], limits: EngineLimits, starts: Sequence[FitStart], either: Sequence[bool]
) -> "_Fit":
    sample, found = [found[len(found) // 2]], joined(found)
    ranked = sorted((_Fit(start, limits, sample).scaled() for start in starts), key=lambda one: one.loss)
    fits = [
        _Fit(near.start, replace(limits, async_scheduling=is_async), found, near.factors).improved(ROUNDS)
        for is_async in either
        for near in ranked[:STARTS]
    ]
    return min(fits, key=lambda one: one.loss)


def _held_out(best: "_Fit", found: Sequence[RequestBlock], at: int) -> ReplayErrors:
    """Return the errors in one block after a fit to all other blocks."""
    others = joined([one for place, one in enumerate(found) if place != at])
    fitted = _Fit(best.start, best.limits, others, best.factors).improved(AGAIN)
    (block,) = _played([found[at]], fitted.constants, best.limits)
    return errors_of(block.pairs)


@dataclass(frozen=True, slots=True)
class _Played:
    """A block that is replayed through the engine model: its requests that count."""

    pairs: Sequence[ComparedRequest]
    asks: Sequence[EngineRequest]
    parts: "_Parts"


def _played(blocks: Sequence[RequestBlock], constants: EngineConstants, limits: EngineLimits) -> Iterator[_Played]:
    """Replay the blocks; blocks of one span share a replay."""
    for (first, _), group in groupby(blocks, key=lambda block: block.span):
        together = [*group]
        played = replay(together[0].requests, constants, limits)
        parts = _Parts(played.steps, constants)
        for one in together:
            counts = slice(one.begin - first, one.end - first)
            yield _Played(played.pairs[counts], played.asks[counts], parts)


class _Fit:
    """Factors on a start, and the distance between the replayed and the measured blocks."""

    def __init__(
        self, start: FitStart, limits: EngineLimits, found: Sequence[RequestBlock], factors: Factors | None = None
    ) -> None:
        self.start, self.limits, self._blocks = start, limits, found
        self.factors = factors or [0.0] * UNKNOWNS
        self.constants = _multiplied(start.constants, self.factors)
        self._rows = [row for played in _played(found, self.constants, limits) for row in _rows(played)]
        spreads = (*(start.widened * spread for spread in SPREAD.values()), start.spread)
        self._precision = [1 / spread**2 for spread in spreads]

    @property
    def loss(self) -> float:
        """Return Huber's loss of the times plus the priors."""
        priors = sum(precise * value**2 for precise, value in zip(self._precision, self.factors, strict=True))
        return priors + sum(row.weight * _huber(row.off) for row in self._rows)

    def scaled(self) -> "_Fit":
        """Return the best fit with all steps slower or faster by the median error of the TPOTs, or by a part of it: if
        requests queue, a small part suffices."""
        offs = [row.off for row in self._rows if row.decodes_only]
        common = statistics.median(offs) if offs else 0.0
        factors = ([*self.factors[:-1], common * share] for share in SCALED)
        tried = (_Fit(self.start, self.limits, self._blocks, each) for each in factors)
        return min((*tried, self), key=lambda one: one.loss)

    def improved(self, rounds: int) -> "_Fit":
        best = self
        for _ in range(rounds):
            following = best._next()
            if following is None:
                break
            gained, best = 1 - following.loss / best.loss, following
            if gained < ENOUGH:
                break
        return best

    def _next(self) -> "_Fit | None":
        """Return the fit after a Gauss-Newton step, or after a shorter one if that step makes it worse; None if no step
        improves it."""
        step = self._step()
        for share in (1.0, 0.5, 0.25, 0.1):
            factors = [have + share * more for have, more in zip(self.factors, step, strict=True)]
            following = _Fit(self.start, self.limits, self._blocks, factors)
            if following.loss < self.loss:
                return following
        return None

    def _step(self) -> list[float]:
        matrix = [[0.0] * UNKNOWNS for _ in range(UNKNOWNS)]
        right = [-precise * have for precise, have in zip(self._precision, self.factors, strict=True)]
        for row in self._rows:
            off, shares = row.off, row.shares
            counts = row.weight * min(1.0, LIMIT / max(abs(off), LIMIT))
            for at, value in enumerate(shares):
                right[at] += counts * value * off
                line = matrix[at]
                for other, beside in enumerate(shares):
                    line[other] += counts * value * beside
        for at, precise in enumerate(self._precision):
            matrix[at][at] += precise
        return eliminate(matrix, right)


def _huber(off: float) -> float:
    """Return Huber's loss, which discounts errors beyond LIMIT (Huber 1981)."""
    return off**2 if abs(off) <= LIMIT else LIMIT * (2 * abs(off) - LIMIT)


def _multiplied(start: EngineConstants, factors: Factors) -> EngineConstants:
    by_name = dict(zip(NAMES, factors, strict=False))
    common, law = factors[-1], start.law
    by_name["experts_s"] = by_name["weights_s"]  # their ratio is the model's and is not fitted
    values = {
        each.name: getattr(law, each.name) * (math.exp(by_name[each.name] + common) if each.name in by_name else 1.0)
        for each in fields(Law)
    }
    return replace(start, law=Law(**values), api_s=start.api_s * math.exp(by_name[API]))


def _rows(played: _Played) -> Iterator[FitRow]:
    """Yield one row per measured time, and one per mean of the block."""
    found = [_times(one, ask, played.parts) for one, ask in zip(played.pairs, played.asks, strict=True)]
    first, then, whole = ([time for time in times if time is not None] for times in zip(*found, strict=True))
    for times in (first, then):
        yield from (_row([time], times is then, 1 / (TOGETHER * SIGMA**2)) for time in times)
    for times in (first, then, whole):
        if times:
            yield _row(times, times is then, 1 / SIGMA_OF_MEAN**2)


def _times(one: ComparedRequest, ask: EngineRequest, parts: "_Parts") -> tuple[_Time | None, ...]:
    """Return TTFT, TPOT and E2E, as far as they were measured."""
    measured, modelled, more = one.measured, one.modelled, ask.output_tokens - 1
    first = then = whole = None
    if measured.ttft_s and modelled.ttft_s:
        first = _Time(lambda: parts.until_first_token(ask), measured.ttft_s, modelled.ttft_s)
    if measured.tpot_s and modelled.tpot_s and more:
        then = _Time(lambda: parts.of_a_token(ask, more), measured.tpot_s, modelled.tpot_s)
    if first and then and measured.e2e_s and modelled.e2e_s:
        both = partial(_together, first, then, more)
        whole = _Time(both, measured.e2e_s, modelled.e2e_s)
    return first, then, whole


def _together(first: _Time, then: _Time, more: int) -> list[float]:
    return [early + more * late for early, late in zip(first.parts, then.parts, strict=True)]


def _row(times: Sequence[_Time], decodes_only: bool, weight: float) -> FitRow:
    """Return the row of the mean of the times."""
    modelled_s = sum(time.modelled_s for time in times)
    off = math.log(sum(time.measured_s for time in times) / modelled_s)
    return FitRow(times, decodes_only, modelled_s, off, weight)


class _Parts:
    """The contribution of each constant to the steps."""

    def __init__(self, steps: Sequence[StepResult], constants: EngineConstants) -> None:
        self._steps, self._law, self._api_s = steps, constants.law, constants.api_s

    @cached_property
    def _starts(self) -> list[float]:
        return [step.start_s for step in self._steps]

    @cached_property
    def _columns(self) -> list[tuple[list[float], tuple[float, ...]]]:
        """Return, for each unknown, the sum of its seconds before each step, and its seconds in each step."""
        columns = zip(*map(self._of, self._steps), strict=True)
        return [(list(accumulate(column, initial=0.0)), column) for column in columns]

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """Return the seconds by unknown; a step in progress counts in part."""
        (first, begun), (last, ended) = self._moment(begin_s), self._moment(end_s)
        found = [
            sums[last] + ended * values[last] - sums[first] - begun * values[first] for sums, values in self._columns
        ]
        return [0.0, *found, sum(found)]

    def until_first_token(self, ask: EngineRequest) -> list[float]:
        return [self._api_s, *self.between(ask.ready_s, ask.first_token_s)[1:]]

    def of_a_token(self, ask: EngineRequest, more: int) -> list[float]:
        """Return the mean over the `more` tokens after the first."""
        return [value / more for value in self.between(ask.first_token_s, ask.finished_s)]

    def _moment(self, at_s: float) -> tuple[int, float]:
        """Return (the step at that moment, the share of it that has passed)."""
        number = max(0, bisect_right(self._starts, at_s) - 1)
        step = self._steps[number]
        share = (at_s - step.start_s) / step.duration_s if step.duration_s else 1.0
        return number, min(1.0, max(0.0, share))

    def _of(self, step: StepResult) -> tuple[float, ...]:
        """Return the step's parts in the order of NAMES, without the first."""
        law, tokens = self._law, step.scheduled
        linear_s, products_s = law.linear_s(tokens), law.computing_s(tokens, 0.0)
        attention_s = law.attention_s_per_pair * step.pairs
        slowed = 1.0
        if law.computing_draw and products_s + attention_s:
            full_clock_s = law.step_s(tokens, step.pairs, round(step.context), step.decodes)
            slowed += (step.duration_s / step.steps - full_clock_s) / (products_s + attention_s)
        each = (
            law.fixed_s,
            products_s * slowed,
            linear_s - products_s,
            attention_s * slowed,
            law.kv_s_per_token * step.context,
            law.allreduce_s_per_token * tokens,
            law.decode_s * step.decodes,
        )
        return tuple(step.steps * value for value in each)
