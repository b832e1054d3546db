"""Models a pool for the twin: its engines, the source of their constants, the omitted features."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from django.utils import timezone

from controlplane.evidence.twin import expected_error
from controlplane.evidence.twin.expected_error import Basis, ExpectedError
from controlplane.evidence.twin.measured_engine import about, left_out, model_of, published
from controlplane.evidence.twin.pool_engines import fleet_of, launch_of
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.calibration import selectors as calibrations
from fleet.engine.engine_model import EngineModel
from fleet.engine.profiles import UnknownProfile
from fleet.engine.tiers.shared import StoreModel
from fleet.kinds import KINDS
from fleet.kinds.kind import Kind, Launch, TwinModel, twin_model_of
from fleet.kinds.options.option import build
from fleet.kinds.sim.twin_kv import STORE_LINK
from fleet.models import DesiredState, Pool, State
from router.contract.values.json_value import JsonObject


class NotModelled(Exception):
    """The engines of the pool are unknown; the message has the remedy."""


@dataclass(frozen=True, slots=True)
class Modelled:
    fleet: TwinFleet
    basis: str  # "profile": built-in constants; "transferred": those of another model; "calibrated": measured
    about: str  # description in one line
    cautions: tuple[str, ...]  # features that the twin omits, and doubts about its constants
    expected: ExpectedError


def twin_of(pool: Pool, store: JsonObject | None = None) -> Modelled:
    """Model the pool. `store` has options that replace those of the store shared by its instances. Raise
    NotModelled."""
    kind = KINDS.get(pool.kind)
    if kind is None or not kind.serves:
        raise NotModelled(f"pool {pool.name} is of the kind {pool.kind}, which serves no requests: choose another")
    ordinals = _ordinals(pool)
    if not ordinals:
        raise NotModelled(f"pool {pool.name} has no instance that should run: scale it up or start one")
    model = twin_model_of(kind, build(kind.spec, pool.engine))
    if model is not None and not is_calibrated(pool):
        return _known(pool, model, kind, ordinals, store or {})
    return _calibrated(pool, kind, ordinals)


def given(options: JsonObject, changes: JsonObject) -> JsonObject:
    """Apply changes of options; null restores a default."""
    return {name: value for name, value in {**options, **changes}.items() if value is not None}


def is_calibrated(pool: Pool) -> bool:
    """True if the pool is calibrated: a measurement takes precedence over built-in constants."""
    return not KINDS[pool.kind].simulated and calibrations.of_pool(pool) is not None


def _ordinals(pool: Pool) -> list[int]:
    """Return the ordinals of the instances that should run, or of all replicas if the pool has never started."""
    rows = pool.instances.filter(retired="").order_by("ordinal")
    if not rows.exists():
        return list(range(pool.replicas))
    return list(rows.filter(desired=DesiredState.RUNNING).values_list("ordinal", flat=True))


def _known(
    pool: Pool,
    model: Callable[[Any, Launch], TwinModel],
    kind: Kind,
    ordinals: Iterable[int],
    changes: JsonObject,
) -> Modelled:
    spec = build(kind.spec, pool.engine)
    try:
        models = {ordinal: model(spec, launch_of(pool, kind, ordinal)) for ordinal in ordinals}
    except UnknownProfile as error:
        or_measure = "" if kind.simulated else f"; or measure one with manage.py calibrate {_to_measure(pool)}"
        raise NotModelled(f"pool {pool.name}: {error}{or_measure}") from None
    first = next(iter(models.values()))
    fleet = fleet_of(pool, {ordinal: model.engine for ordinal, model in models.items()})
    stores = {name: _store(name, first.engine, changes) for name in kind.needs(spec)}
    lost = tuple(f"the store {name} is not modelled: its pool is gone" for name, store in stores.items() if not store)
    shared = _one_of(stores.values())
    basis: Basis = "transferred" if any(model.transferred for model in models.values()) else "profile"
    wrong = expected_error.cautions([model.engine for model in models.values()], first.family)
    real = () if kind.simulated or not first.family else (*left_out(spec, fleet), *published(fleet))
    cautions = (*first.not_modelled, *lost, *wrong, *real)
    return Modelled(
        replace(fleet, store=shared), basis, first.source, cautions, expected_error.of_built_in(basis, first.family)
    )


def store_of(pool: Pool) -> Pool | None:
    """Return the pool of the store shared by its instances; None if they share none, or if it no longer exists."""
    kind = KINDS[pool.kind]
    names = kind.needs(build(kind.spec, pool.engine))
    stores = [known.name for known in KINDS.values() if known.twin_store is not None]
    return Pool.objects.filter(name__in=names, kind__in=stores, removed=False).first()


def _store(name: str, engine: EngineModel, changes: JsonObject) -> StoreModel | None:
    """Return the store that the pool of that name runs; None if it no longer exists."""
    pool = Pool.objects.filter(name=name, removed=False).first()
    kind = KINDS.get(pool.kind) if pool is not None else None
    if pool is None or kind is None or kind.twin_store is None or engine.transfers is None:
        return None
    spec = build(kind.spec, given(pool.engine, changes))
    one = kind.twin_store(spec, engine.transfers.bytes_per_token)
    return replace(one, capacity_bytes=one.capacity_bytes * pool.replicas)


def _one_of(stores: Iterable[StoreModel | None]) -> StoreModel | None:
    return next((store for store in stores if store is not None), None)


def _calibrated(pool: Pool, kind: Kind, ordinals: Iterable[int]) -> Modelled:
    row = calibrations.of_pool(pool)
    if row is None:
        raise NotModelled(
            f"the engines of pool {pool.name} are not calibrated: measure one with "
            f"manage.py calibrate {_to_measure(pool)}"
        )
    spec = build(kind.spec, pool.engine)
    models = {ordinal: model_of(row, kind, spec, launch_of(pool, kind, ordinal)) for ordinal in ordinals}
    fleet = replace(fleet_of(pool, models), store=_shared(pool, kind, spec, models))
    cautions = (
        *calibrations.stale(row, pool, timezone.now()),
        *row.notes,
        *left_out(spec, fleet),
        *published(fleet),
        *expected_error.cautions(list(models.values())),
    )
    return Modelled(fleet, "calibrated", about(row), cautions, expected_error.of_calibration(row))


def _shared(pool: Pool, kind: Kind, spec: Any, models: Mapping[int, EngineModel]) -> StoreModel | None:
    """Return the store of a separate pool, or of the memory that the instances provide."""
    engine = next(iter(models.values()))
    if engine.transfers is None:
        return None
    provided = sum(kind.twin_kv(spec, launch_of(pool, kind, ordinal)).store_bytes for ordinal in models)
    if provided:
        return StoreModel(provided, STORE_LINK, engine.transfers.bytes_per_token)
    return _one_of(_store(name, engine, {}) for name in kind.needs(spec))


def _to_measure(pool: Pool) -> str:
    """Return the name of an instance of the pool, preferably a ready one."""
    ready = pool.instances.filter(state=State.READY).first() or pool.instances.first()
    return ready.name if ready is not None else f"{pool.name}-0"
