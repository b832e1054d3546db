"""Asking for a calibration and doing it: a row for each, which says how it went.

fleet.services.NotPossible: the instance is in no condition to be measured; the message says what to do.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.utils import timezone

from fleet import events, selectors
from fleet.calibration.ask import AskError
from fleet.calibration.fit import TooFewPoints
from fleet.calibration.limits import NoCache
from fleet.calibration.measure import Calibrated, CannotCalibrate, Target, measure
from fleet.kinds import KINDS
from fleet.kinds.option import build
from fleet.models import Calibration, Instance, State
from fleet.services import NotPossible

SECONDS = 120.0
LEAST_S, MOST_S = 5.0, 3600.0
LOST_S = 300.0  # after its time a calibration whose worker has died makes room for another
DONE, FAILED, QUEUED, RUNNING = Calibration.Status.DONE, Calibration.Status.FAILED, "queued", "running"
log = logging.getLogger(__name__)


def ask_for(instance_name: str, actor: str, seconds: float = SECONDS) -> Calibration:
    """Write down that it is to be measured. Instance.DoesNotExist, NotPossible."""
    if not LEAST_S <= seconds <= MOST_S:
        raise NotPossible(f"seconds: {seconds:g} is out of range; allowed: {LEAST_S:g} to {MOST_S:g}")
    instance = selectors.instance(instance_name)
    _check(instance)
    _give_up_lost(instance_name)
    config = config_of(instance)
    try:
        with transaction.atomic():
            return Calibration.objects.create(
                instance=instance.name,
                pool=instance.pool.name,
                node=instance.node,
                kind=config["kind"],
                model=config["model"],
                config_hash=instance.config_hash,
                actor=actor,
                seconds=seconds,
            )
    except IntegrityError:
        raise NotPossible(f"{instance_name} is being calibrated already: wait until that is done") from None


def config_of(instance: Instance) -> dict[str, Any]:
    """{model, kind, engine} that it runs with."""
    pool = instance.pool
    return instance.config or {"model": pool.model, "kind": pool.kind, "engine": pool.engine}


def _check(instance: Instance) -> None:
    kind = KINDS.get(config_of(instance)["kind"])
    if kind is None or not kind.serves:
        raise NotPossible(f"{instance.name} serves no requests: there is nothing to measure")
    if instance.asleep is not None:
        raise NotPossible(f"{instance.name} is asleep: wake it first")
    if instance.state not in (State.READY, State.DRAINING) or not instance.url:
        reason = f" ({instance.reason})" if instance.reason else ""
        raise NotPossible(f"{instance.name} is {instance.state}{reason}: it must be ready, or drained, to be measured")


def _give_up_lost(instance_name: str) -> None:
    for row in Calibration.objects.filter(instance=instance_name, status__in=(QUEUED, RUNNING)):
        if timezone.now() > row.asked_at + timedelta(seconds=row.seconds + LOST_S):
            _end(row, FAILED, cause="whoever measured has ended without a word")


def perform(calibration_id: int, tell: Callable[[str], None] = lambda text: None, *, anyway: bool = False) -> bool:
    """Measure, unless somebody else does; whether the row then holds constants (else it says why not)."""
    if not Calibration.objects.filter(pk=calibration_id, status=QUEUED).update(status=RUNNING):
        return False
    row = Calibration.objects.get(pk=calibration_id)
    try:
        measured = asyncio.run(measure(_target(row.instance), row.seconds, tell, anyway=anyway))
    except (AskError, NoCache, NotPossible, CannotCalibrate, TooFewPoints) as error:
        return _failed(row, str(error))
    except Instance.DoesNotExist:
        return _failed(row, f"{row.instance} is gone")
    except Exception as error:
        log.exception("calibration of %s", row.instance)
        return _failed(row, f"{type(error).__name__}: {error}")
    return _done(row, measured)


def _target(name: str) -> Target:
    instance = selectors.instance(name)
    _check(instance)
    config = config_of(instance)
    kind = KINDS[config["kind"]]
    return Target(name, instance.url, config["model"], kind, build(kind.spec, config["engine"]))


def _done(row: Calibration, measured: Calibrated) -> bool:
    fitted = measured.fitted
    _end(
        row,
        DONE,
        constants={**asdict(fitted.law), "api_s": fitted.api_s},
        limits=asdict(measured.limits),
        points=[asdict(point) for point in measured.points],
        ttft_error=fitted.ttft_error,
        tpot_error=fitted.tpot_error,
        n=fitted.n,
        notes=list(measured.notes),
    )
    errors = f"error {fitted.ttft_error:.1%} TTFT, {fitted.tpot_error:.1%} TPOT, n = {fitted.n}"
    _record(row, f"calibrated: {errors}")
    return True


def _failed(row: Calibration, cause: str) -> bool:
    _end(row, FAILED, cause=cause[:2_000])
    _record(row, f"not calibrated: {cause}")
    return False


def _end(row: Calibration, status: str, **values: Any) -> None:
    Calibration.objects.filter(pk=row.pk, status__in=(QUEUED, RUNNING)).update(
        status=status, ended_at=timezone.now(), **values
    )


def _record(row: Calibration, text: str) -> None:
    instance = Instance.objects.select_related("pool").filter(name=row.instance).first()
    if instance is not None:
        events.record(instance, "calibration", text, row.actor)
