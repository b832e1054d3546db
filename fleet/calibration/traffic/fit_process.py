"""A fit in a process of its own: the worker's other tasks do not wait for it, it ends when it is cancelled, and replays
with the compiled engine where there is one."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fleet.calibration.limits import EngineLimits
from fleet.calibration.traffic.recorded import RecordedRequest
from fleet.calibration.traffic.traffic_fit import Start, TooFewRequests, TrafficFit, fit_traffic
from fleet.subprocess import run_in_subprocess


@dataclass(frozen=True, slots=True)
class FitInputs:
    requests: Sequence[RecordedRequest]
    limits: EngineLimits
    starts: Sequence[Start]
    either: Sequence[bool]  # as of `fit_traffic`


class _Cancelled(Exception):
    """Nobody waits for the fit any more."""


async def fit_in_process(inputs: FitInputs, report: Callable[[str], None]) -> TrafficFit:
    """As `fit_traffic`. TooFewRequests, SubprocessFailed."""
    cancelled = threading.Event()

    def beat() -> None:
        if cancelled.is_set():
            raise _Cancelled

    try:
        made = await asyncio.to_thread(run_in_subprocess, fit, inputs, beat, report, compiled=True)
    finally:
        cancelled.set()
    if isinstance(made, TooFewRequests):
        raise made
    return made


def fit(inputs: FitInputs, report: Callable[[str], None]) -> TrafficFit | TooFewRequests:
    """In that process, whose errors reach the caller as texts only."""
    try:
        return fit_traffic(inputs.requests, inputs.limits, inputs.starts, report, inputs.either)
    except TooFewRequests as error:
        return error
