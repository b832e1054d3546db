"""Calibrations as jobs: requested, measured, cancelled, lost. Each is a row with its result. fleet.services.NotPossible
is raised if the instance cannot be measured now; the message has the remedy.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict
from typing import Any

import redis
from django.db import IntegrityError, transaction

from fleet import events, jobs, selectors
from fleet.calibration.describe import API, TOKENIZING
from fleet.calibration.fit import TooFewPoints
from fleet.calibration.limits import NoCache
from fleet.calibration.measure import Calibrated, CannotCalibrate, MeasuredEngine, measure, measure_traffic
from fleet.calibration.streamed_request import RequestFailed
from fleet.calibration.traffic.physical import MEASURED
from fleet.calibration.traffic.recorded import read_receipts
from fleet.calibration.traffic.replayed import EngineConstants
from fleet.calibration.traffic.traffic_fit import FitStart, TooFewRequests
from fleet.counted import percent
from fleet.engine.law import law_from
from fleet.kinds import KINDS
from fleet.models import Calibration, Instance, State
from fleet.services import NotPossible
from fleet.subprocess import SubprocessFailed
from fleet.tries import tries
from router.contract.redis.receipt import Receipt

SECONDS = 120.0
LEAST_S, MOST_S = 5.0, 3600.0
STOP_S = 0.25  # interval at which a measurement checks for a stop
SWEEP, TRAFFIC = SOURCES = ("sweep", "traffic")
WARM_UP_S = 60.0  # time after a start during which requests stall
EXPECTED = (
    RequestFailed,
    NoCache,
    NotPossible,
    CannotCalibrate,
    TooFewPoints,
    TooFewRequests,
    SubprocessFailed,
    redis.RedisError,
)


def ask_for(
    instance_name: str, actor: str, seconds: float = SECONDS, *, anyway: bool = False, source: str = SWEEP
) -> Calibration:
    """Queue a calibration. Raise Instance.DoesNotExist, NotPossible."""
    if not LEAST_S <= seconds <= MOST_S:
        raise NotPossible(f"seconds: {seconds:g} is out of range; allowed: {LEAST_S:g} to {MOST_S:g}")
    instance = selectors.instance(instance_name)
    _check(instance)
    with tries() as attempt:
        jobs.fail_lost(Calibration, fail, attempt)
    given = instance.started_from
    try:
        with transaction.atomic():
            return Calibration.objects.create(
                instance=instance.name,
                pool=instance.pool.name,
                node=instance.node,
                kind=given.kind,
                model=given.model,
                config_hash=instance.config_hash,
                actor=actor,
                seconds=seconds,
                anyway=anyway,
                source=source,
            )
    except IntegrityError:
        message = f"{instance_name} is already being calibrated: wait until that ends, or cancel it"
        raise NotPossible(message) from None


def _check(instance: Instance) -> None:
    kind = instance.started_from.known_kind
    if kind is None or not kind.serves:
        raise NotPossible(f"{instance.name} serves no requests: there is nothing to measure")
    if instance.asleep is not None:
        raise NotPossible(f"{instance.name} is asleep: wake it first")
    if instance.state not in (State.READY, State.DRAINING) or not instance.url:
        reason = f" ({instance.reason})" if instance.reason else ""
        raise NotPossible(f"{instance.name} is {instance.state}{reason}: to be measured it must be ready or drained")


def perform(calibration_id: int, report: Callable[[str], None] = lambda text: None) -> bool:
    """Measure, unless another worker does. Return True if the row then has constants; otherwise it has a cause."""
    return jobs.perform(Calibration, calibration_id, lambda row: _values(_measure(row, report)), EXPECTED, _end)


def _measure(row: Calibration, report: Callable[[str], None]) -> Calibrated:
    steps = [""]

    def began(step: str) -> None:
        steps.append(step)
        report(step)

    heartbeat = jobs.Heartbeat(row)
    try:
        target = _target(row.instance)
    except Instance.DoesNotExist:
        raise jobs.JobFailed(f"{row.instance} is gone") from None
    if row.source == TRAFFIC:
        measuring = measure_traffic(target, _receipts(row.instance), _starts(row), began)
    else:
        measuring = measure(target, row.seconds, began, anyway=row.anyway)
    return _beside(measuring, lambda: heartbeat.beat(step=steps[-1]))


def _receipts(instance_name: str) -> list[Receipt]:
    """Return the requests recorded for the current process, except those of its first minute."""
    ready_at = selectors.instance(instance_name).ready_at
    return read_receipts(instance_name, ready_at.timestamp() + WARM_UP_S if ready_at is not None else 0.0)


def _starts(row: Calibration) -> list[FitStart]:
    before = Calibration.objects.filter(pool=row.pool, kind=row.kind, model=row.model, status=jobs.DONE).first()
    if before is None:
        return []
    known = before.constants
    return [FitStart(EngineConstants(law_from(known), known[API], known.get(TOKENIZING, 0.0)), MEASURED)]


def _beside(measuring: Coroutine[Any, Any, Calibrated], beat: Callable[[], None]) -> Calibrated:
    """Measure in a separate thread, so that a heartbeat that waits for the database does not delay the measurement."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        result = executor.submit(asyncio.run, _until(stop, measuring))
        try:
            while not result.done():
                beat()
                wait([result], timeout=jobs.BEAT_S)
        finally:
            stop.set()
        return result.result()


async def _until(stop: threading.Event, measuring: Coroutine[Any, Any, Calibrated]) -> Calibrated:
    task = asyncio.ensure_future(measuring)
    while not task.done():
        if stop.is_set():
            task.cancel()
        await asyncio.wait({task}, timeout=STOP_S)
    return task.result()


def _target(name: str) -> MeasuredEngine:
    instance = selectors.instance(name)
    _check(instance)
    given = instance.started_from
    kind, options = KINDS[given.kind], given.options()
    gpu = options.gpu if kind.simulated else selectors.gpus_of_nodes([instance.node]).get(instance.node, "")
    return MeasuredEngine(name, instance.url, given.model, kind, options, gpu, instance.engine_key, instance.tls)


def cancel(row: Calibration, actor: str) -> bool:
    """Cancel the calibration. Return False if it has already ended."""
    if not jobs.cancel(row, actor):
        return False
    _record(row, f"not calibrated: {row.cause}")
    return True


def fail(row: Calibration, cause: str) -> bool:
    return _end(row, jobs.FAILED, cause)


def _values(measured: Calibrated) -> dict[str, Any]:
    """Return the row's values."""
    fitted = measured.fitted
    return {
        "constants": {**asdict(fitted.law), API: fitted.api_s, TOKENIZING: measured.api_s_per_token},
        "limits": asdict(measured.limits),
        "points": [asdict(point) for point in measured.points],
        "ttft_error": fitted.ttft_error,
        "tpot_error": fitted.tpot_error,
        "n": fitted.n,
        "notes": list(measured.notes),
        "held_out": asdict(measured.held_out) if measured.held_out is not None else {},
        "load_range": asdict(measured.load_range) if measured.load_range is not None else {},
    }


def _end(row: Calibration, status: str, cause: str = "", **values: Any) -> bool:
    ended = jobs.end(row, status, cause, **values)
    if ended and status == jobs.DONE:
        ttft, tpot = (percent(values[name], ".1f") for name in ("ttft_error", "tpot_error"))
        _record(row, f"calibrated: error {ttft} TTFT, {tpot} TPOT, n = {values['n']}")
    elif ended:
        _record(row, f"not calibrated: {cause}")
    return ended


def _record(row: Calibration, text: str) -> None:
    instance = Instance.objects.select_related("pool").filter(name=row.instance).first()
    if instance is not None:
        events.record(instance, "calibration", text, row.actor)
