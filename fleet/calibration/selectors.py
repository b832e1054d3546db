"""Queries of calibrations: the newest one, and whether it is still valid."""

from datetime import datetime

from fleet.calibration.describe import changed_since
from fleet.jobs import DONE
from fleet.kinds import KINDS
from fleet.models import Calibration, Pool
from fleet.selectors import calibration_of
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import config_hash


def newest(instance_name: str) -> Calibration | None:
    """Return the newest finished calibration of an instance."""
    return Calibration.objects.filter(instance=instance_name, status=DONE).first()


def last_asked(instance_name: str) -> Calibration | None:
    """Return the newest calibration of an instance in any state."""
    return Calibration.objects.filter(instance=instance_name).first()


of_pool = calibration_of


def stale(calibration: Calibration, pool: Pool | None, now: datetime) -> tuple[str, ...]:
    """Return what has changed since the calibration; empty if it is still valid."""
    settings = config_hash(pool_spec(pool)) if pool is not None and pool.kind in KINDS else None
    at = calibration.ended_at or calibration.asked_at
    return changed_since(at, calibration.config_hash, settings, now)
