"""Calibrates one engine by its URL: reads its facts, then fits the constants to a sweep or to recorded requests.

CannotCalibrate     other requests run on the engine
Also raised: RequestFailed (streamed_request.py), NoCache (limits.py), TooFewPoints (fit.py),
TooFewRequests (traffic_fit.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx

from fleet.calibration.engine_facts import EngineFacts, engine_facts
from fleet.calibration.fit import CalibrationPoint, Fitted, fit
from fleet.calibration.limits import EngineLimits, limits_of
from fleet.calibration.plan import plan_loads
from fleet.calibration.sweep import Sweep
from fleet.calibration.traffic.fit_process import FitInputs, fit_in_process
from fleet.calibration.traffic.physical import physical_starts
from fleet.calibration.traffic.recorded import requests_of
from fleet.calibration.traffic.replayed import ReplayErrors
from fleet.calibration.traffic.traffic_fit import FitStart
from fleet.counted import percent
from fleet.engine.engine_model import LoadRange
from fleet.engine.power import draws_of
from fleet.kinds.kind import Kind
from fleet.kinds.kv_size import is_moe
from router.contract.net.engine_tls import PLAIN, EngineTls
from router.contract.net.pinned_http import EngineTransport
from router.contract.redis.receipt import Receipt

SILENCE_S = 60.0  # longest pause between two bytes
# A new connection per request: vLLM closes connections that are idle for 5 s, sometimes just as one is reused.
CONNECTIONS = httpx.Limits(max_connections=None, max_keepalive_connections=0)
OTHERS = 0.02  # share of the prompt tokens below which requests of others are negligible
POOR = 0.15  # relative error above which a fit is called poor


class CannotCalibrate(Exception):
    pass


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    name: str
    url: str
    model: str  # name under which the engine serves it
    kind: Kind
    spec: Any  # the kind's options
    gpu: str = ""  # name from its driver or profile; empty: unknown
    engine_key: str = ""  # reference of the key that the engine requires; empty: none
    tls: EngineTls = PLAIN


@dataclass(frozen=True, slots=True)
class Calibrated:
    points: list[CalibrationPoint]
    fitted: Fitted
    limits: EngineLimits
    notes: tuple[str, ...]
    api_s_per_token: float = 0.0  # zero in a sweep, which measures it as part of the steps
    held_out: ReplayErrors | None = None  # errors of a fit to recorded requests
    load_range: LoadRange | None = None  # range of the load of the recorded requests


async def measure(
    target: MeasuredEngine,
    seconds: float,
    report: Callable[[str], None],
    *,
    anyway: bool,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Calibrated:
    """Calibrate by a sweep. Raise CannotCalibrate, unless `anyway`; RequestFailed, NoCache, TooFewPoints."""
    transport = transport or EngineTransport(target.url, target.engine_key, CONNECTIONS, target.tls)
    async with httpx.AsyncClient(base_url=target.url, timeout=SILENCE_S, transport=transport) as client:
        before = await _facts(client, target)
        if before.active and not anyway:
            raise CannotCalibrate(_busy(target.name, before.active))
        limits = limits_of(target.spec, before)
        plan = plan_loads(limits.window, limits.kv_blocks * limits.block_size, limits.max_num_seqs)
        sweep = Sweep(client, target.model, seconds, before.time_scale, report)
        points = await sweep.run(plan)
        after = await _facts(client, target)
    folder = getattr(target.spec, "model", None) or ""
    fitted = fit(points, limits.max_num_batched_tokens, experts=is_moe(folder) or is_moe(target.model))
    fitted = replace(fitted, law=fitted.law.drawing(draws_of(target.gpu)))  # a sweep never fills the GPU
    return Calibrated(points, fitted, limits, _notes(points, fitted, _others(before, after, sweep.prompt_tokens)))


async def measure_traffic(
    target: MeasuredEngine,
    receipts: Sequence[Receipt],
    before: Sequence[FitStart],
    report: Callable[[str], None],
    *,
    transport: httpx.AsyncBaseTransport | None = None,
) -> Calibrated:
    """Calibrate from requests recorded by routers; the engine is asked only for its facts. `before`: calibrations of
    its pool. Raise RequestFailed, NoCache, TooFewRequests, SubprocessFailed."""
    transport = transport or EngineTransport(target.url, target.engine_key, CONNECTIONS, target.tls)
    async with httpx.AsyncClient(base_url=target.url, timeout=SILENCE_S, transport=transport) as client:
        facts = await _facts(client, target)
    requests = requests_of(receipts, target.name, facts.time_scale)
    limits = limits_of(target.spec, facts)
    starts = [*before, *physical_starts(target.model, getattr(target.spec, "tensor_parallel", None))]
    starts = [one.drawing(draws_of(target.gpu)) for one in starts]
    either = (True, False) if facts.async_scheduling is None else (facts.async_scheduling,)
    made = await fit_in_process(FitInputs(requests, limits, starts, either), report)
    held_out = made.held_out
    fitted = Fitted(made.constants.law, made.constants.api_s, held_out.ttft or 0.0, held_out.tpot or 0.0, held_out.n)
    seen = f"{made.fitted} recorded requests in {held_out.blocks} blocks of time"
    notes = [f"fitted to {seen}, each block tested on a fit to the others"]
    wrong = {"TTFT": held_out.ttft_mean, "TPOT": held_out.tpot_mean}
    notes += [
        f"the mean {name} of the worst block is off by {percent(off, '+.0f')}"
        for name, off in wrong.items()
        if abs(off or 0.0) > POOR
    ]
    return Calibrated([], fitted, made.limits, tuple(notes), made.constants.api_s_per_token, held_out, made.load_range)


async def _facts(client: httpx.AsyncClient, target: MeasuredEngine) -> EngineFacts:
    kind = target.kind
    return await engine_facts(client, target.model, kind.models_path, kind.metrics_path, kind.scrape)


def _busy(name: str, running: int) -> str:
    requests = "request runs" if running == 1 else "requests run"
    return (
        f"{running} {requests} on {name} and would distort the measurement: drain it and wait, "
        "or measure anyway (--anyway, or anyway in the request)"
    )


def _others(before: EngineFacts, after: EngineFacts, own: int) -> float:
    """Return the share of the prompt tokens, 0–1, that other clients sent during that time."""
    if before.prompt_tokens is None or after.prompt_tokens is None:
        return 0.0
    received = after.prompt_tokens - before.prompt_tokens
    return max(0.0, 1 - own / received) if received > 0 else 0.0


def _notes(points: list[CalibrationPoint], fitted: Fitted, others: float) -> tuple[str, ...]:
    late = sum(point.tpot_s is None for point in points)
    found = {
        f"{percent(others)} of the prompt tokens in that time were from other clients": others > OTHERS,
        f"{late} of {len(points)} loads were received too late to count: the measuring machine was busy": late > 0,
        f"the law fits TTFT poorly, error {percent(fitted.ttft_error)}": fitted.ttft_error > POOR,
        f"the law fits TPOT poorly, error {percent(fitted.tpot_error)}": fitted.tpot_error > POOR,
    }
    return tuple(text for text, holds in found.items() if holds)
