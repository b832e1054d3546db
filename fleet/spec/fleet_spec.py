"""The fleet document: the desired fleet. Pure: a parsed document in, a FleetSpec or InvalidFleet out."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct, convert

from fleet.kinds import KINDS
from fleet.kinds.common_options import IMAGE
from fleet.kinds.engine_config import EngineConfig
from fleet.kinds.kind import SPLIT, Kind, check_engine, split_group
from fleet.kinds.option import build, check
from fleet.spec.masking import masks_left
from fleet.spec.problems import Check, Problems
from fleet.spec.section_checks import CHECKS
from fleet.spec.sections import MAX_REPLICAS, Placement, placement_of
from fleet.systems.prices import Prices
from router.contract.pools import EPHEMERAL_PREFIX, is_ephemeral
from router.contract.problem import Problem

API_VERSION = "weir/v1"
MAX_POOLS = 200
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_NAME_RULE = "lower-case letters, digits and dashes, 1 to 63 of them, no dash at either end"


class InvalidFleet(Exception):
    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


@dataclass(frozen=True, slots=True)
class PoolSpec:
    name: str
    model: str
    kind: str
    replicas: int = 1
    policy: str = "default"
    node: str = "local"  # the only node; empty: `placement` decides
    engine: Mapping[str, object] = field(default_factory=dict)  # the given options; the kind has defaults for the rest
    # As given; fleet/spec/sections.py reads them
    update: Mapping[str, object] = field(default_factory=dict)
    placement: Mapping[str, object] = field(default_factory=dict)
    schedule: Mapping[str, object] = field(default_factory=dict)
    autoscale: Mapping[str, object] = field(default_factory=dict)
    slo: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetSpec:
    name: str
    pools: tuple[PoolSpec, ...]
    prices: Mapping[str, float] = field(default_factory=dict)  # the given ones; fleet/systems/prices.py has defaults


class _Metadata(Struct, frozen=True):
    name: str


class _Body(Struct, frozen=True):
    pools: list[dict[str, object]] = []
    prices: dict[str, int | float] = {}


class _Document(Struct, frozen=True):
    metadata: _Metadata
    spec: _Body


def parse_fleet(document: object) -> FleetSpec:
    """InvalidFleet lists every problem, not only the first."""
    problems = Problems()
    body = _header(document, problems)
    _check_pools(body.get("pools", []), problems)
    problems += check(Prices, problems.mapping("spec.prices", body.get("prices", {})), "spec.prices")
    if problems:
        raise InvalidFleet(problems)
    valid = convert(document, _Document)
    pools = tuple(_pool_spec(pool) for pool in valid.spec.pools)
    return FleetSpec(valid.metadata.name, pools, valid.spec.prices)


def _header(document: object, problems: Problems) -> Mapping[str, object]:
    if not isinstance(document, Mapping):
        problems.note("", document, "must be a mapping with apiVersion, kind, metadata and spec")
        return {}
    problems.keys("", document, ("apiVersion", "kind", "metadata", "spec"))
    for name, allowed in (("apiVersion", API_VERSION), ("kind", "Fleet")):
        if document.get(name) != allowed:
            problems.note(name, document.get(name), f"must be {allowed}")
    metadata = problems.mapping("metadata", document.get("metadata"))
    problems.keys("metadata", metadata, ("name",))
    _check_name("metadata.name", metadata.get("name"), problems)
    body = problems.mapping("spec", document.get("spec"))
    problems.keys("spec", body, ("prices", "pools"))
    return body


def _check_pools(value: object, problems: Problems) -> None:
    if not isinstance(value, list):
        problems.note("spec.pools", value, "must be a list of pools")
        return
    if len(value) > MAX_POOLS:
        problems.note("spec.pools", len(value), "too many pools", f"0 to {MAX_POOLS}")
    first: dict[str, int] = {}  # name → index of the first pool with it
    for index, pool in enumerate(value):
        path = f"spec.pools[{index}]"
        if not isinstance(pool, Mapping):
            problems.note(path, pool, "must be a mapping")
            continue
        _check_pool(path, pool, problems)
        name = pool.get("name")
        if isinstance(name, str) and first.setdefault(name, index) != index:
            problems.note(f"{path}.name", name, f"is also the name of spec.pools[{first[name]}]")


def _check_pool(path: str, pool: Mapping[str, object], problems: Problems) -> None:
    problems.keys(path, pool, tuple(_FIELDS))
    for name, test in _FIELDS.items():
        if name in pool or name in _REQUIRED:
            test(f"{path}.{name}", pool.get(name), problems)
    if "node" in pool and "placement" in pool:
        problems.note(f"{path}.node", pool["node"], "cannot be combined with placement: use placement.nodes")
    kind, engine = KINDS.get(str(pool.get("kind"))), pool.get("engine")
    if kind is not None and isinstance(engine, Mapping):
        found = check_engine(kind, engine, f"{path}.engine", str(pool.get("model") or ""))
        problems += found or masks_left(build(kind.spec, engine), f"{path}.engine")
        if not found:
            _check_replicas_allowed(path, kind, engine, pool.get("replicas", 1), problems)


def _check_replicas_allowed(
    path: str, kind: Kind, engine: Mapping[str, object], replicas: object, problems: Problems
) -> None:
    """The options may limit the replicas: by GPUs, by URLs, to one, or to whole groups."""
    if not isinstance(replicas, int):
        return
    spec = build(kind.spec, engine)
    highest = kind.max_replicas(spec)
    if highest is not None and replicas > highest:
        problems.note(f"{path}.replicas", replicas, "too many for these options", f"0 to {highest}")
    elif allowed := split_group(kind, spec, replicas):
        problems.note(f"{path}.replicas", replicas, SPLIT, allowed)


def _check_name(path: str, value: object, problems: Problems) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > 63:
        problems.note(path, value, f"must be a name: {_NAME_RULE}")


def _check_pool_name(path: str, value: object, problems: Problems) -> None:
    _check_name(path, value, problems)
    if isinstance(value, str) and is_ephemeral(value):
        problems.note(path, value, f"must not begin with {EPHEMERAL_PREFIX}: experiments use such names")


def _check_model(path: str, value: object, problems: Problems) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable() or value != value.strip():
        problems.note(path, value, "must be a model name: 1 to 200 printable characters")


def _check_kind(path: str, value: object, problems: Problems) -> None:
    if not isinstance(value, str) or value not in KINDS:
        problems.note(path, value, f"must be one of {', '.join(KINDS)}")


def _check_replicas(path: str, value: object, problems: Problems) -> None:
    problems.whole_number(path, value, MAX_REPLICAS)


def _check_engine(path: str, value: object, problems: Problems) -> None:
    problems.mapping(path, value)


_FIELDS: dict[str, Check] = {
    "name": _check_pool_name,
    "model": _check_model,
    "policy": _check_name,
    "kind": _check_kind,
    "replicas": _check_replicas,
    "node": _check_name,
    "engine": _check_engine,
    **CHECKS,
}
_SECTIONS = ("engine", *CHECKS)
_REQUIRED = ("name", "model", "kind")


def _pool_spec(pool: Mapping[str, object]) -> PoolSpec:
    node = "" if "placement" in pool else "local"
    return convert({"node": node, **pool}, PoolSpec)


def dump_fleet(spec: FleetSpec) -> dict[str, Any]:
    """The document: pools sorted by name, keys in documented order, options as given."""
    pools = sorted(spec.pools, key=lambda pool: pool.name)
    return {
        "apiVersion": API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": spec.name},
        "spec": ({"prices": dict(spec.prices)} if spec.prices else {})
        | {"pools": [_dump_pool(pool) for pool in pools]},
    }


def _dump_pool(pool: PoolSpec) -> dict[str, Any]:
    order = [name for name in KINDS[pool.kind].spec.__dataclass_fields__ if name in pool.engine]
    values: dict[str, Any] = {name: getattr(pool, name) for name in _FIELDS if name not in _SECTIONS}
    if not pool.node:
        del values["node"]
        values["placement"] = dict(pool.placement)
    sections = {"engine": {name: pool.engine[name] for name in order}}
    sections |= {name: dict(getattr(pool, name)) for name in ("update", "schedule", "autoscale", "slo")}
    return values | {name: section for name, section in sections.items() if section}


def placement(pool: PoolSpec) -> Placement:
    return placement_of(pool.placement, pool.node)


def config(pool: PoolSpec) -> EngineConfig:
    return EngineConfig(pool.model, pool.kind, dict(pool.engine))


def config_hash(pool: PoolSpec) -> str:
    """An instance whose hash differs from its pool's is replaced."""
    engine = dict(vars(build(KINDS[pool.kind].spec, pool.engine)))
    if engine.get(IMAGE) is None:
        engine.pop(IMAGE, None)  # a later addition: an upgrade of Weir must not restart engines
    content = {"model": pool.model, "kind": pool.kind, "engine": engine}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
