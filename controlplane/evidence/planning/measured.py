"""The engines of a calibrated pool, for a plan that scales them."""

import hashlib
from dataclasses import replace

from controlplane.evidence.plan.calibrated import engines_alike
from controlplane.evidence.plan.fleets import NotPlayable
from controlplane.evidence.plan.question import MeasuredEngines
from controlplane.evidence.twin.pool_model import NotModelled, is_calibrated, twin_of
from fleet import selectors
from fleet.kinds import KINDS
from fleet.models import Pool
from fleet.snapshot import pool_spec
from router.contract.values.problem import InvalidInput, Problem


def engines_of(name: str) -> MeasuredEngines | None:
    """Return the measured engines of the pool; None if no pool is named. Raise InvalidInput."""
    if not name:
        return None
    try:
        return _engines(selectors.pool(name))
    except Pool.DoesNotExist:
        problem = "is not a pool"
    except (NotModelled, NotPlayable) as error:
        problem = str(error)
    raise InvalidInput(problems=[Problem("pool", name, problem, "a calibrated pool of equal instances")])


def _engines(pool: Pool) -> MeasuredEngines:
    if pool.kind not in KINDS or not is_calibrated(pool):
        raise NotModelled("it is not calibrated")
    modelled = twin_of(pool)
    return engines_alike(pool_spec(pool), modelled.fleet, modelled.about, modelled.cautions, modelled.expected)


def digest(measured: MeasuredEngines | None) -> str:
    """Return a digest of the measurement that does not depend on its age; empty without one."""
    return "" if measured is None else hashlib.sha256(repr(replace(measured, cautions=())).encode()).hexdigest()
