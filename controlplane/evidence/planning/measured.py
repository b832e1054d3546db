"""The engines of a calibrated pool, for a plan that scales them."""

import hashlib
from dataclasses import replace

from controlplane.evidence.plan.question import MeasuredEngines
from controlplane.evidence.twin.pool_model import NotModelled, is_calibrated, twin_of
from fleet import selectors
from fleet.kinds import KINDS
from fleet.kinds.kind import hardware_of
from fleet.kinds.options.option import build
from fleet.models import Pool
from fleet.snapshot import pool_spec
from fleet.spec.fleet_spec import PoolSpec, config_hash
from router.contract.values.problem import InvalidInput, Problem


def engines_of(name: str) -> MeasuredEngines | None:
    """Return the measured engines of the pool; None without a name. Raises InvalidInput."""
    if not name:
        return None
    try:
        return _engines(selectors.pool(name))
    except Pool.DoesNotExist:
        problem = "is not a pool"
    except NotModelled as error:
        problem = str(error)
    raise InvalidInput(problems=[Problem("pool", name, problem, "a calibrated pool of equal instances")])


def _engines(pool: Pool) -> MeasuredEngines:
    if pool.kind not in KINDS or not is_calibrated(pool):
        raise NotModelled("it is not calibrated")
    modelled, spec = twin_of(pool), pool_spec(pool)
    alike = {replace(one, together="") for one in modelled.fleet.instances.values()}
    engine = alike.pop()
    if alike or engine.role != "both" or modelled.fleet.store is not None:
        raise NotModelled("its instances differ, or share a store")
    kind = KINDS[pool.kind]
    gpus = hardware_of(kind, build(kind.spec, pool.engine), "both").gpus
    one = PoolSpec(spec.name, spec.model, spec.kind, 1, engine=spec.engine)
    about, cautions, expected = modelled.about, modelled.cautions, modelled.expected
    return MeasuredEngines(one, config_hash(spec), engine, max(1, gpus), about, cautions, expected)


def digest(measured: MeasuredEngines | None) -> str:
    """Return a mark of the measurement, whatever its age; empty without one."""
    return "" if measured is None else hashlib.sha256(repr(replace(measured, cautions=())).encode()).hexdigest()
