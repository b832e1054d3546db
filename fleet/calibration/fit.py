"""Fits the constants of the step-time law (fleet/engine/law.py) to measured points. Pure.

A single request takes api + Σ steps of its prompt's chunks to its first token, and concurrent decodes take one step per
token. Let m be the knee of the matrix products: the number of tokens at which arithmetic outweighs reading the weights.
In

    T_lin(N) = w·(1 + (N/m)⁴)^¼,        m = weights_s / compute_s_per_token,

everything except m is linear. For each m the constants are a non-negative least-squares fit of relative errors, as 10 %
of a decode step and 10 % of a long prompt are equally bad; the best m has the least sum. Outliers count less (Huber's
weights).

For a mixture of experts, w grows with the experts that the tokens use: w + e·(1 - (1 - s)^N). The share s per token is
searched for, as kernels read more than the chosen experts: on an H200, vLLM 0.20 read those of Qwen3-30B-A3B as if a
token used an eighth of them, although it uses a sixteenth. Its layers consist of many small kernels. For a prompt too
large for CUDA graphs the host launches each of them, so a step takes at least the time of the shortest such prompt. The
fit includes this floor if the other points are fitted better without that prompt.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from fleet.calibration.nnls import nnls
from fleet.engine.law import GRAPH_TOKENS, Law, chunk_pairs, used_experts

KNEES = [2.0**power for power in range(17)]  # 1 to 65,536 tokens
EXPERT_SHARES = [2.0 ** (-power / 2) for power in range(2, 14)]  # 1/2 to 1/90
GOLDEN = (math.sqrt(5) - 1) / 2
NARROWER = 24  # golden-section steps on the knee's interval
REWEIGHTED = 3  # rounds of reweighting
LEAST_SPREAD = 0.02  # relative error below which differences count as noise
LEAST_POINTS = 4

Row = tuple[list[float], float]  # (factor of each constant, measured seconds)


@dataclass(frozen=True, slots=True)
class CalibrationPoint:
    """Medians over `n` repetitions of concurrent requests of one length.

    Seconds are virtual: with a time scale of 10, ten times those of the wall clock.
    """

    concurrency: int
    prompt_tokens: int  # prompt length of each request
    output_tokens: int  # output length of each request
    context: float  # tokens attended to by all requests, in the middle of the `tpot_s` interval
    ttft_s: float | None  # TTFT of a single request on an idle engine
    tpot_s: float | None  # TPOT while all requests decoded
    n: int  # repetitions


class TooFewPoints(Exception):
    """There are not enough points for a fit."""


@dataclass(frozen=True, slots=True)
class Fitted:
    law: Law
    api_s: float  # time in the API before the engine's first step
    ttft_error: float  # mean of |fitted / measured - 1|
    tpot_error: float
    n: int  # number of measured requests or groups of requests


def fit(points: Sequence[CalibrationPoint], chunk_tokens: int, *, experts: bool = False) -> Fitted:
    """Fit the constants. `chunk_tokens` is the engine's max_num_batched_tokens; `experts` is True for a mixture of
    experts. Raise TooFewPoints."""
    lengths = {point.prompt_tokens for point in points if point.ttft_s is not None}
    if len(points) < LEAST_POINTS or len(lengths) < 2 or not any(point.tpot_s for point in points):
        raise TooFewPoints(f"{len(points)} points of {len(lengths)} prompt lengths: too few for a fit; allow more time")
    if not experts:
        return _fit(points, chunk_tokens, 0.0)
    made = _best_share(points, chunk_tokens)
    above = [one for one in points if one.ttft_s is not None and GRAPH_TOKENS < one.prompt_tokens <= chunk_tokens]
    if len(above) < 2 or len(lengths) < LEAST_POINTS:
        return made
    launched = min(above, key=lambda one: one.prompt_tokens)
    bound = _launching(launched, _best_share([one for one in points if one is not launched], chunk_tokens))
    ttft, tpot = (_mean(found) for found in errors(points, bound.law, bound.api_s, chunk_tokens))
    bound = replace(bound, ttft_error=ttft, tpot_error=tpot, n=made.n)
    return bound if ttft < made.ttft_error - LEAST_SPREAD else made


def _best_share(points: Sequence[CalibrationPoint], chunk_tokens: int) -> Fitted:
    made = (_fit(points, chunk_tokens, share) for share in EXPERT_SHARES)
    return min(made, key=lambda one: one.ttft_error + one.tpot_error)


def _launching(point: CalibrationPoint, made: Fitted) -> Fitted:
    """Take the time of this prompt's step as the shortest time of a step whose kernels the host launches."""
    return replace(made, law=replace(made.law, launch_s=max(0.0, (point.ttft_s or 0.0) - made.api_s)))


def _fit(points: Sequence[CalibrationPoint], chunk_tokens: int, share: float) -> Fitted:
    rows_at: Callable[[float], Sequence[Row]] = lambda knee: _rows(points, chunk_tokens, knee, share)  # noqa: E731
    api_s, law = fit_rows(rows_at, _first_weights(points), share=share)
    ttft, tpot = errors(points, law, api_s, chunk_tokens)
    return Fitted(law, api_s, _mean(ttft), _mean(tpot), sum(point.n for point in points))


def fit_rows(
    rows_at: Callable[[float], Sequence[Row]],
    weights: Sequence[float],
    importance: Sequence[float] | None = None,
    share: float = 0.0,
) -> tuple[float, Law]:
    """Return (time in the API, law) for the rows at the best knee. `weights` are the rows' weights until outliers are
    known; `share` is the share of the experts that a token uses, 0 without experts."""
    for _ in range(REWEIGHTED):
        knee = _best_knee(rows_at, weights)
        rows = rows_at(knee)
        constants = _constants(rows, weights)
        weights = _weights(rows, constants)
        if importance is not None:
            weights = list(map(float.__mul__, weights, importance))
    return constants[0], _law(constants, knee, share)


def ttft_s(point: CalibrationPoint, law: Law, api_s: float, chunk_tokens: int) -> float:
    """Return the TTFT of a single request on an idle engine."""
    return api_s + law.prefill_s(point.prompt_tokens, chunk=chunk_tokens)


def tpot_s(point: CalibrationPoint, law: Law) -> float:
    return law.step_s(point.concurrency, 0.0, round(point.context), point.concurrency)


def errors(
    points: Sequence[CalibrationPoint], law: Law, api_s: float, chunk_tokens: int
) -> tuple[list[float], list[float]]:
    """Return |fitted / measured - 1| of each TTFT, and of each TPOT."""
    first = [abs(ttft_s(one, law, api_s, chunk_tokens) / one.ttft_s - 1) for one in points if one.ttft_s]
    then = [abs(tpot_s(one, law) / one.tpot_s - 1) for one in points if one.tpot_s]
    return first, then


def _mean(values: list[float]) -> float:
    return statistics.fmean(values)


def _rows(points: Sequence[CalibrationPoint], chunk_tokens: int, knee: float, share: float) -> list[Row]:
    """Return the factors of (api, fixed, weights, attention pair, KV token, allreduce token, decode, experts)."""
    first = [(_prompt(one.prompt_tokens, chunk_tokens, knee, share), one.ttft_s) for one in points if one.ttft_s]
    then = [(_decode(point, knee, share), point.tpot_s) for point in points if point.tpot_s]
    return [*first, *then]


def _prompt(tokens: int, chunk_tokens: int, knee: float, share: float) -> list[float]:
    starts = [*range(0, tokens, chunk_tokens), tokens]
    chunks = [(end - start, start) for start, end in pairwise(starts)]
    linear = sum(bend(size, knee) for size, _ in chunks)
    pairs = sum(chunk_pairs(size, before) for size, before in chunks)
    experts = sum(bend(size, knee) * used_experts(size, share) for size, _ in chunks)
    return [1.0, float(len(chunks)), linear, pairs, 0.0, float(tokens), 0.0, experts]


def _decode(point: CalibrationPoint, knee: float, share: float) -> list[float]:
    decodes, bent = float(point.concurrency), bend(point.concurrency, knee)
    experts = bent * used_experts(point.concurrency, share)
    return [0.0, 1.0, bent, 0.0, float(round(point.context)), decodes, decodes, experts]


def bend(tokens: int, knee: float) -> float:
    return math.sqrt(math.sqrt(1 + (tokens / knee) ** 4))


def _constants(rows: Sequence[Row], weights: Sequence[float]) -> list[float]:
    sizes = [math.sqrt(weight) / seconds for (_, seconds), weight in zip(rows, weights, strict=True)]
    scaled = [[size * value for value in values] for (values, _), size in zip(rows, sizes, strict=True)]
    return nnls(scaled, [math.sqrt(weight) for weight in weights])


def _first_weights(points: Sequence[CalibrationPoint]) -> list[float]:
    """Until outliers are known, give little weight to times per token far below the others: they are measuring
    errors."""
    paces = [point.tpot_s for point in points if point.tpot_s]
    middle = statistics.median(paces)
    return [1.0 for point in points if point.ttft_s] + [min(1.0, pace / middle) ** 2 for pace in paces]


def _off(row: Row, constants: Sequence[float]) -> float:
    values, seconds = row
    return sum(map(float.__mul__, values, constants)) / seconds - 1


def _weights(rows: Sequence[Row], constants: Sequence[float]) -> list[float]:
    """Return Huber's weights of errors relative to the larger of fitted and measured, so that half and double count
    alike."""
    shares = [min(1.0, 1 / max(1 + _off(row, constants), 1e-9)) for row in rows]
    off = [abs(_off(row, constants)) * share for row, share in zip(rows, shares, strict=True)]
    # 1.4826 medians of |error| are a standard deviation, 1.345 of which keep 95 % of the efficiency (Huber 1981).
    limit = max(LEAST_SPREAD, 1.345 * 1.4826 * statistics.median(off))
    return [share**2 * (min(1.0, limit / error) if error else 1.0) for share, error in zip(shares, off, strict=True)]


def _best_knee(rows_at: Callable[[float], Sequence[Row]], weights: Sequence[float]) -> float:
    def loss(knee: float) -> float:
        rows = rows_at(knee)
        constants = _constants(rows, weights)
        return sum(weight * _off(row, constants) ** 2 for row, weight in zip(rows, weights, strict=True))

    best = min(range(len(KNEES)), key=lambda at: loss(KNEES[at]))
    return _narrow(loss, KNEES[max(best - 1, 0)], KNEES[min(best + 1, len(KNEES) - 1)])


def _narrow(loss: Callable[[float], float], low: float, high: float) -> float:
    """Search the minimum by golden sections on a logarithmic scale."""
    left, right = math.log(low), math.log(high)
    inner = [right - GOLDEN * (right - left), left + GOLDEN * (right - left)]
    found = [loss(math.exp(at)) for at in inner]
    for _ in range(NARROWER):
        if found[0] <= found[1]:
            right = inner[1]
            inner = [right - GOLDEN * (right - left), inner[0]]
            found = [loss(math.exp(inner[0])), found[0]]
        else:
            left = inner[0]
            inner = [inner[1], left + GOLDEN * (right - left)]
            found = [found[1], loss(math.exp(inner[1]))]
    return math.exp(inner[0] if found[0] <= found[1] else inner[1])


def _law(constants: Sequence[float], knee: float, share: float) -> Law:
    _, fixed, weights, pair, kv, token, decode, *more = constants
    experts = sum(more)
    return Law(
        fixed_s=fixed,
        compute_s_per_token=(weights + experts) / knee,
        weights_s=weights,
        attention_s_per_pair=pair,
        kv_s_per_token=kv,
        allreduce_s_per_token=token,
        decode_s=decode,
        experts_s=experts,
        expert_share=share if experts else 0.0,
    )
