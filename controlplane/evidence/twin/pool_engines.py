"""Models the engines of a pool, from the pool's row or its part of a fleet document. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.engine.engine_model import EngineModel
from fleet.kinds import KINDS
from fleet.kinds.data_parallel import endpoints
from fleet.kinds.kind import Kind, Launch, TwinModel, twin_model_of
from fleet.kinds.options.option import build


class AnyPool(Protocol):
    """The fields common to a row and a document."""

    @property
    def name(self) -> str: ...
    @property
    def model(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def engine(self) -> Any: ...


def launch_of(pool: AnyPool, kind: Kind, ordinal: int) -> Launch:
    any_ports = dict.fromkeys(kind.ports, 0)
    return Launch(f"{pool.name}-{ordinal}", pool.model, "127.0.0.1", any_ports, "python", ordinal)


def models_of(pool: AnyPool, ordinals: Iterable[int]) -> dict[int, TwinModel]:
    """Return models by ordinal; empty if only a calibration can provide them. Raise UnknownProfile."""
    kind = KINDS[pool.kind]
    spec = build(kind.spec, pool.engine)
    model = twin_model_of(kind, spec)
    return {} if model is None else {ordinal: model(spec, launch_of(pool, kind, ordinal)) for ordinal in ordinals}


def fleet_of(pool: AnyPool, models: Mapping[int, EngineModel]) -> TwinFleet:
    """Return a fleet in which equal instances share one model. Each data-parallel rank is a separate engine."""
    shared: dict[EngineModel, EngineModel] = {}
    kind, instances = KINDS[pool.kind], dict[str, EngineModel]()
    spec = build(kind.spec, pool.engine)
    for ordinal, alone in models.items():
        launch = launch_of(pool, kind, ordinal)
        dp = kind.wire(spec, launch).dp
        model = replace(alone, together=dp.together)
        instances |= dict.fromkeys(endpoints(launch.instance, dp), shared.setdefault(model, model))
    return TwinFleet(instances)
