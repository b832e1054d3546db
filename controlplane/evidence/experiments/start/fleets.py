"""Builds each arm's fleet, which is the pool with the arm's changes, both as documents and as models that a record
stores."""

import copy
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET, structs

from controlplane.evidence.experiments.models import FleetChanges
from controlplane.evidence.experiments.record import RecordedFleet, RecordedStore, RecordedTwin
from controlplane.evidence.twin.expected_error import BUILT_IN
from controlplane.evidence.twin.pool_model import Modelled, given, is_calibrated, store_of, twin_of
from controlplane.evidence.twin.simulation.types import TwinFleet
from fleet.calibration import selectors as calibrations
from fleet.engine.dwdp.laws import DepLaw, DwdpLaw
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import Law
from fleet.kinds import KINDS
from fleet.kinds.kind import SPLIT, Kind, check_engine, split_group
from fleet.kinds.options.option import build
from fleet.models import Pool
from fleet.spec import allow_lists
from fleet.spec.sections import MAX_REPLICAS
from router.contract.values.json_value import JsonObject
from router.contract.values.problem import Problem
from router.contract.values.reading import read_value

CONFIGURED = ("model", "policy", "kind", "replicas", "engine", "node", "placement")  # fields of a pool's document
LAW = "law_type"  # law of a recorded engine model: a key of LAWS
LAWS: dict[str, type[Law]] = {law.__name__: law for law in (Law, DepLaw, DwdpLaw)}
INFINITE = "Infinity"  # stands for infinity, which does not exist in JSON
CALIBRATED = ("instance", "config_hash", "constants", "limits", "ttft_error", "tpot_error", "n", "notes")


def changed(pool: Pool, changes: FleetChanges, path: str) -> Pool | list[Problem]:
    """Return the pool with an arm's changes, or the faults in these."""
    made = _changed(pool, changes, path)
    if isinstance(made, list):
        return made
    return _check_store(made, changes, f"{path}.store") or made


def _check_store(pool: Pool, changes: FleetChanges, path: str) -> list[Problem]:
    """Return problems with the options of the store shared by the instances."""
    if not changes.store:
        return []
    store = store_of(pool)
    if store is not None:
        return check_engine(KINDS[store.kind], given(store.engine, changes.store), path, store.model)
    allowed = "with engine.kv mooncake_store and engine.store_pool"
    return [Problem(path, changes.store, "the instances share no store", allowed)]


def _changed(pool: Pool, changes: FleetChanges, path: str) -> Pool | list[Problem]:
    replicas = changes.replicas
    if not changes.engine and not replicas:
        return pool
    kind = KINDS[pool.kind]
    engine = given(pool.engine, changes.engine)
    problems = check_engine(kind, engine, f"{path}.engine", pool.model)
    if not problems:
        problems = allow_lists.refusals(allow_lists.configured(), kind, pool.model, engine, path)
        problems += _check_replicas(kind, build(kind.spec, engine), replicas, pool.replicas, path)
    if problems:
        return problems
    made = copy.copy(pool)
    made.engine = engine
    made.replicas = replicas or running(pool)
    made.pk = 0  # without rows of instances, all its replicas count as running
    return made


def _check_replicas(kind: Kind, spec: Any, replicas: int | None, present: int, path: str) -> list[Problem]:
    most = kind.max_replicas(spec) or MAX_REPLICAS
    if replicas is not None and replicas > most:
        return [Problem(f"{path}.replicas", replicas, "too many for these options", f"1 to {most}")]
    asked = present if replicas is None else replicas
    allowed = split_group(kind, spec, asked)
    return [Problem(f"{path}.replicas", asked, SPLIT, allowed)] if allowed else []


def running(pool: Pool) -> int:
    """Return the number of the pool's instances that should run."""
    rows = pool.instances.filter(retired="")
    return rows.filter(desired="running").count() if rows.exists() else pool.replicas


def snapshot(pool: Pool, changes: FleetChanges, *, simulated: bool) -> RecordedFleet:
    """Return every property of the fleet on which a run depends; `pool` already has the arm's changes. Raise
    NotModelled."""
    configured = {name: getattr(pool, name) for name in CONFIGURED}
    found = RecordedFleet(pool.name, **configured, options=_options(pool, pool.engine))
    if not simulated:
        return found
    row, store = calibrations.of_pool(pool) if is_calibrated(pool) else None, store_of(pool)
    return structs.replace(
        found,
        calibration=None if row is None else {name: getattr(row, name) for name in CALIBRATED},
        twin=recorded(twin_of(pool, changes.store)),
        store=UNSET
        if store is None
        else RecordedStore(store.name, store.kind, _options(store, given(store.engine, changes.store))),
    )


def _options(pool: Pool, engine: JsonObject) -> Any:
    return vars(build(KINDS[pool.kind].spec, engine))


def sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def recorded(modelled: Modelled) -> RecordedTwin:
    models = list(dict.fromkeys(modelled.fleet.instances.values()))
    return RecordedTwin(
        basis=modelled.basis,
        about=modelled.about,
        cautions=list(modelled.cautions),
        expected=modelled.expected,
        models=[msgspec.to_builtins(model) | {LAW: type(model.law).__name__} for model in models],
        instances={name: models.index(model) for name, model in modelled.fleet.instances.items()},
        store=modelled.fleet.store,
    )


def modelled(kept: RecordedTwin) -> Modelled:
    """Return the recorded fleet, regardless of later changes to the pool and the built-in constants."""
    models = [
        # Not strict, because infinity is stored as text.
        replace(
            read_value(model, EngineModel, strict=False),
            law=read_value(model["law"], LAWS[model.get(LAW, Law.__name__)], strict=False),
        )
        for model in kept.models
    ]
    fleet = TwinFleet({name: models[at] for name, at in kept.instances.items()}, kept.store)
    return Modelled(fleet, kept.basis, kept.about, tuple(kept.cautions), kept.expected or BUILT_IN["profile"])


def plain(value: Any) -> Any:
    """Return the value in a form that JSON can store."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return INFINITE if value == math.inf else value


def pool_of(kept: RecordedFleet) -> Pool:
    """Return an unsaved row with the recorded configuration."""
    return Pool(name=kept.pool, **{name: getattr(kept, name) for name in CONFIGURED})
