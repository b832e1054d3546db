"""Runs a fit in a separate process, so that the worker's other tasks need not wait for it and a cancellation can end
it; it replays with the compiled engine if there is one.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.calibration.limits import EngineLimits
from fleet.calibration.traffic.recorded import RecordedRequest
from fleet.calibration.traffic.traffic_fit import FitStart, TooFewRequests, TrafficFit, fit_traffic
from fleet.engine.compiled import ENGINE
from fleet.subprocess import run_in_subprocess


@dataclass(frozen=True, slots=True)
class FitInputs:
    requests: Sequence[RecordedRequest]
    limits: EngineLimits
    starts: Sequence[FitStart]
    either: Sequence[bool]  # values of async scheduling to try, as in `fit_traffic`


class _Cancelled(Exception):
    """The fit was cancelled, so its result is not needed."""


async def fit_in_process(inputs: FitInputs, report: Callable[[str], None]) -> TrafficFit:
    """Run `fit_traffic` in a subprocess. Raise TooFewRequests, SubprocessFailed."""
    cancelled = threading.Event()

    def beat() -> None:
        if cancelled.is_set():
            raise _Cancelled

    try:
        made = await asyncio.to_thread(run_in_subprocess, fit, inputs, beat, report, compiled=(ENGINE,))
    finally:
        cancelled.set()
    if isinstance(made, TooFewRequests):
        raise made
    return made


def fit(inputs: FitInputs, report: Callable[[str], None]) -> TrafficFit | TooFewRequests:
    """Run the fit in the subprocess; its errors reach the caller only as text."""
    try:
        return fit_traffic(inputs.requests, inputs.limits, inputs.starts, report, inputs.either)
    except TooFewRequests as error:
        return error
