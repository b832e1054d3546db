"""Replays recorded requests through the engine model and computes the model's error. Pure."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from fleet.calibration.limits import EngineLimits
from fleet.calibration.traffic.recorded import RecordedRequest
from fleet.engine.engine import Engine, RequestTooLong, StepResult
from fleet.engine.law import Law
from fleet.engine.neuron_batches import KNOWN_HITS
from fleet.engine.request import EngineRequest
from fleet.engine.scheduler import Limits


@dataclass(frozen=True, slots=True)
class EngineConstants:
    law: Law
    api_s: float
    api_s_per_token: float


@dataclass(frozen=True, slots=True)
class ComparedRequest:
    """One request as measured and as modelled."""

    measured: RecordedRequest
    modelled: RecordedRequest


@dataclass(frozen=True, slots=True)
class Replay:
    pairs: list[ComparedRequest]
    asks: list[EngineRequest]  # the requests in the form passed to the engine model
    steps: list[StepResult]


def replay(requests: Sequence[RecordedRequest], constants: EngineConstants, limits: EngineLimits) -> Replay:
    """Replay the requests in order, except any that exceed the engine's KV cache."""
    scheduling = Limits(
        limits.block_size, limits.max_num_seqs, limits.max_num_batched_tokens, KNOWN_HITS, limits.async_scheduling
    )
    engine = Engine(
        constants.law,
        limits.kv_blocks,
        scheduling,
        api_s=constants.api_s,
        api_s_per_token=constants.api_s_per_token,
    )
    made = Replay([], [], [])
    begin_s = requests[0].sent_s if requests else 0.0
    taken = []
    for number, one in enumerate(requests):
        ask = EngineRequest(str(number), one.prompt_tokens, one.output_tokens, (), content=one.cached_tokens)
        made.steps.extend(engine.advance(one.sent_s - begin_s))
        try:
            engine.add_request(ask, one.sent_s - begin_s)
        except RequestTooLong:
            continue
        taken.append(one)
        made.asks.append(ask)
    made.steps.extend(engine.advance(math.inf))
    made.pairs.extend(map(_compared, taken, made.asks))
    return made


def _compared(one: RecordedRequest, ask: EngineRequest) -> ComparedRequest:
    more = one.output_tokens - 1
    tpot_s = (ask.finished_s - ask.first_token_s) / more if more else None
    return ComparedRequest(one, replace(one, ttft_s=ask.first_token_s - ask.arrived_s, tpot_s=tpot_s))


@dataclass(frozen=True, slots=True)
class ReplayErrors:
    """Relative errors of the model; None if too few requests were measured."""

    n: int  # number of requests with a measured time
    ttft: float | None  # mean of |modelled / measured - 1|
    tpot: float | None
    ttft_mean: float | None  # signed error of the mean, like the next three fields
    ttft_p99: float | None
    tpot_mean: float | None
    e2e_mean: float | None
    blocks: int = 1  # number of time blocks; each figure except the first three is the worst block's


def worst_of(errors: Sequence[ReplayErrors]) -> ReplayErrors:
    """Return the worst errors over several time blocks."""

    def worst(name: str) -> float | None:
        found = [off for one in errors if (off := getattr(one, name)) is not None]
        return max(found, key=abs, default=None)

    def mean(name: str) -> float | None:
        found = [off for one in errors if (off := getattr(one, name)) is not None]
        return statistics.fmean(found) if found else None

    return ReplayErrors(
        n=sum(one.n for one in errors),
        ttft=mean("ttft"),
        tpot=mean("tpot"),
        ttft_mean=worst("ttft_mean"),
        ttft_p99=worst("ttft_p99"),
        tpot_mean=worst("tpot_mean"),
        e2e_mean=worst("e2e_mean"),
        blocks=len(errors),
    )


def errors_of(compared: Sequence[ComparedRequest]) -> ReplayErrors:
    ttft, tpot, e2e = (_pairs(compared, metric) for metric in map(attrgetter, ("ttft_s", "tpot_s", "e2e_s")))
    return ReplayErrors(
        n=len(ttft),
        ttft=_each(ttft),
        tpot=_each(tpot),
        ttft_mean=_of(statistics.fmean, ttft),
        ttft_p99=_of(_p99, ttft) if len(ttft) >= LEAST_P99 else None,
        tpot_mean=_of(statistics.fmean, tpot),
        e2e_mean=_of(statistics.fmean, e2e),
    )


LEAST_P99 = 100  # smallest number of requests for a p99
Pairs = list[tuple[float, float]]  # (measured, modelled)


def _pairs(compared: Sequence[ComparedRequest], metric: Callable[[RecordedRequest], float | None]) -> Pairs:
    both = ((metric(one.measured), metric(one.modelled)) for one in compared)
    return [(measured, modelled) for measured, modelled in both if measured and modelled is not None]


def _each(pairs: Pairs) -> float | None:
    return statistics.fmean(abs(modelled / measured - 1) for measured, modelled in pairs) if pairs else None


def _of(figure: Callable[[list[float]], float], pairs: Pairs) -> float | None:
    if not pairs:
        return None
    measured, modelled = (figure(list(values)) for values in zip(*pairs, strict=True))
    return modelled / measured - 1


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]
