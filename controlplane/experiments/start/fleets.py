"""The fleet of each arm: the pool with the changes of the arm, as documents and as models that a record keeps."""

import copy
import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from controlplane.twin.expected_error import BUILT_IN, ExpectedError
from controlplane.twin.pool_model import Modelled, given, is_calibrated, store_of, twin_of
from controlplane.twin.simulation.types import TwinFleet
from fleet.calibration import selectors as calibrations
from fleet.engine.engine_model import EngineModel
from fleet.engine.law import Law
from fleet.engine.tiers.shared import StoreModel
from fleet.kinds import KINDS
from fleet.kinds.kind import SPLIT, check_engine, split_group
from fleet.kinds.option import build
from fleet.models import Pool
from fleet.spec import allow_lists
from fleet.spec.sections import MAX_REPLICAS
from fleet.systems.dwdp.laws import DepLaw, DwdpLaw
from router.contract.problem import Problem

CONFIGURED = ("model", "policy", "kind", "replicas", "engine", "node", "placement")
LAW = "law_type"  # of a recorded engine model: a key of LAWS
LAWS: dict[str, type[Law]] = {law.__name__: law for law in (Law, DepLaw, DwdpLaw)}
INFINITE = "Infinity"  # JSON has no such number
CALIBRATED = ("instance", "config_hash", "constants", "limits", "ttft_error", "tpot_error", "n", "notes")


def changed(pool: Pool, changes: Mapping[str, Any], path: str) -> Pool | list[Problem]:
    """The pool as an arm asks for it: {replicas, engine, store}; an option of null gets its default again."""
    made = _changed(pool, changes, path)
    if isinstance(made, list):
        return made
    return _check_store(made, changes.get("store") or {}, f"{path}.store") or made


def _check_store(pool: Pool, changes: Mapping[str, Any], path: str) -> list[Problem]:
    """Of the options of the store that the instances share."""
    store = store_of(pool) if changes else None
    if store is not None:
        return check_engine(KINDS[store.kind], given(store.engine, changes), path, store.model)
    allowed = "with engine.kv mooncake_store and engine.store_pool"
    return [Problem(path, dict(changes), "the instances share no store", allowed)] if changes else []


def _changed(pool: Pool, changes: Mapping[str, Any], path: str) -> Pool | list[Problem]:
    replicas = changes.get("replicas")
    if not changes.get("engine") and not replicas:
        return pool
    kind = KINDS[pool.kind]
    engine = given(pool.engine, changes.get("engine") or {})
    problems = check_engine(kind, engine, f"{path}.engine", pool.model)
    if not problems:
        problems = allow_lists.refusals(allow_lists.configured(), kind, pool.model, engine, path)
        problems += _check_replicas(pool, engine, replicas, path)
    if problems:
        return problems
    made = copy.copy(pool)
    made.engine = engine
    made.replicas = replicas or running(pool)
    made.pk = 0  # it has no instances of its own: all of its replicas run
    return made


def _check_replicas(pool: Pool, engine: Mapping[str, Any], replicas: int | None, path: str) -> list[Problem]:
    kind = KINDS[pool.kind]
    spec = build(kind.spec, engine)
    most = kind.max_replicas(spec) or MAX_REPLICAS
    if replicas is not None and replicas > most:
        return [Problem(f"{path}.replicas", replicas, "too many for these options", f"1 to {most}")]
    asked = pool.replicas if replicas is None else replicas
    allowed = split_group(kind, spec, asked)
    return [Problem(f"{path}.replicas", asked, SPLIT, allowed)] if allowed else []


def running(pool: Pool) -> int:
    """The number of its instances that should run."""
    rows = pool.instances.filter(retired="")
    return rows.filter(desired="running").count() if rows.exists() else pool.replicas


def snapshot(pool: Pool, changes: Mapping[str, Any], *, simulated: bool) -> dict[str, Any]:
    """Everything about the fleet that a run depends on; `pool`: with the changes of the arm. NotModelled."""
    kind, of_store = KINDS[pool.kind], changes.get("store") or {}
    found: dict[str, Any] = {
        "pool": pool.name,
        **{name: getattr(pool, name) for name in CONFIGURED},
        "options": vars(build(kind.spec, pool.engine)),
    }
    if simulated:
        found |= {"calibration": _calibration(pool), "twin": recorded(twin_of(pool, of_store))}
        if (store := store_of(pool)) is not None:
            options = vars(build(KINDS[store.kind].spec, given(store.engine, of_store)))
            found["store"] = {"pool": store.name, "kind": store.kind, "options": options}
    kept: dict[str, Any] = plain(found)
    return kept


def _calibration(pool: Pool) -> dict[str, Any] | None:
    row = calibrations.of_pool(pool) if is_calibrated(pool) else None
    return None if row is None else {name: getattr(row, name) for name in CALIBRATED}


def sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def recorded(modelled: Modelled) -> dict[str, Any]:
    """Equal instances share one model."""
    models = list(dict.fromkeys(modelled.fleet.instances.values()))
    return {
        "basis": modelled.basis,
        "about": modelled.about,
        "cautions": list(modelled.cautions),
        "expected": modelled.expected.as_dict(),
        "models": [msgspec.to_builtins(model) | {LAW: type(model.law).__name__} for model in models],
        "instances": {name: models.index(model) for name, model in modelled.fleet.instances.items()},
        "store": msgspec.to_builtins(modelled.fleet.store),
    }


def modelled(kept: Mapping[str, Any]) -> Modelled:
    """Exactly the fleet that was recorded, whatever became of the pool and of the built-in constants."""
    models = [_model(_numbers(model)) for model in kept["models"]]
    store = msgspec.convert(kept["store"], StoreModel) if kept.get("store") else None  # early records have none
    fleet = TwinFleet({name: models[at] for name, at in kept["instances"].items()}, store)
    expected = kept.get("expected") or BUILT_IN["profile"].as_dict()  # early records have none
    return Modelled(fleet, kept["basis"], kept["about"], tuple(kept["cautions"]), ExpectedError(**expected))


def _model(kept: Mapping[str, Any]) -> EngineModel:
    law = msgspec.convert(kept["law"], LAWS[kept.get(LAW, Law.__name__)])
    return replace(msgspec.convert(kept, EngineModel), law=law)


def plain(value: Any) -> Any:
    """As JSON can keep it."""
    if isinstance(value, Mapping):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return INFINITE if value == math.inf else value


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_numbers(part) for part in value]
    return math.inf if value == INFINITE else value


def pool_of(kept: Mapping[str, Any]) -> Pool:
    """A row that is not stored, with the recorded configuration."""
    return Pool(name=kept["pool"], **{name: kept[name] for name in CONFIGURED})
