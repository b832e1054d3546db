"""Queries of calibrations: the newest one, and whether it is still valid."""

from datetime import datetime, timedelta

from fleet.jobs import DONE
from fleet.kinds import KINDS
from fleet.models import Calibration, Pool
from fleet.selectors import calibration_of
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import config_hash

OLD = timedelta(days=7)


def newest(instance_name: str) -> Calibration | None:
    """Return the newest finished calibration of an instance."""
    return Calibration.objects.filter(instance=instance_name, status=DONE).first()


def last_asked(instance_name: str) -> Calibration | None:
    """Return the newest calibration of an instance in any state."""
    return Calibration.objects.filter(instance=instance_name).first()


of_pool = calibration_of


def stale(calibration: Calibration, pool: Pool | None, now: datetime) -> tuple[str, ...]:
    """Return what has changed since the calibration; empty if it is still valid."""
    found = []
    age = now - (calibration.ended_at or calibration.asked_at)
    if age > OLD:
        found.append(f"the calibration is {age.days} days old")
    if pool is not None and pool.kind in KINDS and calibration.config_hash != config_hash(pool_spec(pool)):
        found.append("the engine's settings have changed since the calibration")
    return tuple(found)
