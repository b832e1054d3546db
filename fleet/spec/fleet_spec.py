"""The fleet document: what should run. Pure: a parsed document in, a FleetSpec or every problem in it out.

InvalidFleet
└── problems: Problem(path, value, message)
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fleet.kinds import KINDS
from fleet.kinds.image import IMAGE
from fleet.kinds.kind import Kind, check_engine
from fleet.kinds.option import build, suggestion
from fleet.spec.section_checks import CHECKS
from fleet.spec.sections import MAX_REPLICAS, Placement, placement_of
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
    node: str = "local"  # the one node; empty: as `placement` says
    engine: Mapping[str, Any] = field(default_factory=dict)  # the options given; the rest are the kind's defaults
    # As given; read by fleet/spec/sections.py
    update: Mapping[str, Any] = field(default_factory=dict)
    placement: Mapping[str, Any] = field(default_factory=dict)
    schedule: Mapping[str, Any] = field(default_factory=dict)
    autoscale: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetSpec:
    name: str
    pools: tuple[PoolSpec, ...]


def parse_fleet(document: object) -> FleetSpec:
    """InvalidFleet lists every problem at once, each with its path, the value and what is allowed."""
    problems: list[Problem] = []
    body = _header(document, problems)
    pools = _pools(body.get("pools", []), problems)
    if problems:
        raise InvalidFleet(problems)
    assert isinstance(document, Mapping)  # noqa: S101 - _header has seen to it
    return FleetSpec(document["metadata"]["name"], tuple(_pool_spec(pool) for pool in pools))


def _header(document: object, problems: list[Problem]) -> Mapping[str, Any]:
    if not isinstance(document, Mapping):
        problems.append(Problem("", document, "must be a mapping with apiVersion, kind, metadata and spec"))
        return {}
    _keys("", document, ("apiVersion", "kind", "metadata", "spec"), problems)
    for name, allowed in (("apiVersion", API_VERSION), ("kind", "Fleet")):
        if document.get(name) != allowed:
            problems.append(Problem(name, document.get(name), f"must be {allowed}"))
    metadata = _mapping("metadata", document.get("metadata"), problems)
    _keys("metadata", metadata, ("name",), problems)
    _check_name("metadata.name", metadata.get("name"), problems)
    body = _mapping("spec", document.get("spec"), problems)
    _keys("spec", body, ("pools",), problems)
    return body


def _mapping(path: str, value: object, problems: list[Problem]) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    problems.append(Problem(path, value, "must be a mapping"))
    return {}


def _keys(path: str, given: Mapping[str, Any], known: tuple[str, ...], problems: list[Problem]) -> None:
    for name in given:
        if name not in known:
            problems.append(Problem(_join(path, name), given[name], f"unknown key{suggestion(name, known)}"))


def _join(path: str, name: object) -> str:
    return f"{path}.{name}" if path else str(name)


def _pools(value: object, problems: list[Problem]) -> list[Mapping[str, Any]]:
    if not isinstance(value, list):
        problems.append(Problem("spec.pools", value, "must be a list of pools"))
        return []
    if len(value) > MAX_POOLS:
        problems.append(Problem("spec.pools", len(value), "too many pools", f"0 to {MAX_POOLS}"))
    seen: dict[str, int] = {}
    for index, pool in enumerate(value):
        path = f"spec.pools[{index}]"
        if not isinstance(pool, Mapping):
            problems.append(Problem(path, pool, "must be a mapping"))
            continue
        _check_pool(path, pool, problems)
        name = pool.get("name")
        if isinstance(name, str):
            first = seen.setdefault(name, index)
            if first != index:
                problems.append(Problem(f"{path}.name", name, f"is the name of spec.pools[{first}] as well"))
    return value


def _check_pool(path: str, pool: Mapping[str, Any], problems: list[Problem]) -> None:
    _keys(path, pool, tuple(_FIELDS), problems)
    for name, test in _FIELDS.items():
        if name in pool or name in _REQUIRED:
            test(f"{path}.{name}", pool.get(name), problems)
    if "node" in pool and "placement" in pool:
        problems.append(Problem(f"{path}.node", pool["node"], "goes without a placement: name it in placement.nodes"))
    kind = KINDS.get(pool["kind"]) if isinstance(pool.get("kind"), str) else None
    if kind is not None and isinstance(pool.get("engine"), Mapping):
        found = check_engine(kind, pool["engine"], f"{path}.engine")
        problems.extend(found or _too_many(kind, pool, path))


def _too_many(kind: Kind, pool: Mapping[str, Any], path: str) -> list[Problem]:
    """More replicas than the options allow: GPUs, URLs, or one of a kind."""
    most, replicas = kind.max_replicas(build(kind.spec, pool["engine"])), pool.get("replicas", 1)
    if most is None or not isinstance(replicas, int) or replicas <= most:
        return []
    return [Problem(f"{path}.replicas", replicas, "too many for these options", f"0 to {most}")]


def _check_name(path: str, value: object, problems: list[Problem]) -> None:
    if not isinstance(value, str) or not _NAME.fullmatch(value) or len(value) > 63:
        problems.append(Problem(path, value, f"must be a name: {_NAME_RULE}"))


def _check_pool_name(path: str, value: object, problems: list[Problem]) -> None:
    _check_name(path, value, problems)
    if isinstance(value, str) and is_ephemeral(value):
        problems.append(Problem(path, value, f"must not begin with {EPHEMERAL_PREFIX}: experiments make such pools"))


def _check_model(path: str, value: object, problems: list[Problem]) -> None:
    if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable() or value != value.strip():
        problems.append(Problem(path, value, "must be the name of a model: 1 to 200 printable characters"))


def _check_kind(path: str, value: object, problems: list[Problem]) -> None:
    if not isinstance(value, str) or value not in KINDS:
        problems.append(Problem(path, value, f"must be one of {', '.join(KINDS)}"))


def _check_replicas(path: str, value: object, problems: list[Problem]) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_REPLICAS:
        problems.append(Problem(path, value, "must be a whole number", f"0 to {MAX_REPLICAS}"))


def _check_engine(path: str, value: object, problems: list[Problem]) -> None:
    _mapping(path, value, problems)


_FIELDS: dict[str, Callable[[str, object, list[Problem]], None]] = {
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


def _pool_spec(pool: Mapping[str, Any]) -> PoolSpec:
    node = "" if "placement" in pool else "local"
    return PoolSpec(**{"node": node, **pool, **{name: dict(pool.get(name, {})) for name in _SECTIONS}})


def dump_fleet(spec: FleetSpec) -> dict[str, Any]:
    """The document again: pools by name, keys in the order of the documentation, options as they were given."""
    pools = sorted(spec.pools, key=lambda pool: pool.name)
    return {
        "apiVersion": API_VERSION,
        "kind": "Fleet",
        "metadata": {"name": spec.name},
        "spec": {"pools": [_dump_pool(pool) for pool in pools]},
    }


def _dump_pool(pool: PoolSpec) -> dict[str, Any]:
    order = [name for name in KINDS[pool.kind].spec.__dataclass_fields__ if name in pool.engine]  # type: ignore[attr-defined]
    values: dict[str, Any] = {name: getattr(pool, name) for name in _FIELDS if name not in _SECTIONS}
    if not pool.node:
        del values["node"]
        values["placement"] = dict(pool.placement)
    sections = {"engine": {name: pool.engine[name] for name in order}}
    sections |= {name: dict(getattr(pool, name)) for name in ("update", "schedule", "autoscale")}
    return values | {name: section for name, section in sections.items() if section}


def placement(pool: PoolSpec) -> Placement:
    return placement_of(pool.placement, pool.node)


def config(pool: PoolSpec) -> dict[str, Any]:
    """Everything that an engine is started from; kept with each instance and each version of its pool."""
    return {"model": pool.model, "kind": pool.kind, "engine": dict(pool.engine)}


def config_hash(pool: PoolSpec) -> str:
    """Of everything that a running engine was started with: when it differs, the instance is replaced."""
    engine = dict(vars(build(KINDS[pool.kind].spec, pool.engine)))
    if engine.get(IMAGE) is None:
        engine.pop(IMAGE, None)  # it came later: an upgrade of Weir starts nothing anew
    content = {"model": pool.model, "kind": pool.kind, "engine": engine}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
