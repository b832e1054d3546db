"""The fleet document: the desired fleet. Pure: a parsed document in, a FleetSpec or InvalidFleet out."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from fleet.kinds import KINDS
from fleet.kinds.engine_config import EngineConfig
from fleet.kinds.kind import SPLIT, Kind, check_engine, fixed_sides, split_group
from fleet.kinds.options.common_options import IMAGE
from fleet.kinds.options.option import build, check
from fleet.spec.masking import masks_left
from fleet.spec.problems import Check, Problems
from fleet.spec.section_checks import CHECKS
from fleet.spec.sections import MAX_REPLICAS, Placement, autoscale_of, placement_of
from fleet.systems.prices import Prices
from router.contract.pools import EPHEMERAL_PREFIX, is_ephemeral
from router.contract.values.fields import REQUIRED, Field, read
from router.contract.values.problem import InvalidInput, Problem
from router.contract.values.reading import read_value

SERVE, OBSERVE = "serve", "observe"
API_VERSION = "weir/v1"
MAX_POOLS = 200
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_NAME_RULE = "1–63 lower-case letters, digits or dashes, no dash at either end"


def _name(name: str, title: str = "", default: Any = REQUIRED, help: str = "") -> Field:
    """Declare a field that holds a name."""
    return Field(name=name, title=title, default=default, kind="text", help=help, fits=_is_name, words=_NAME_RULE)


def _is_name(text: str) -> bool:
    return len(text) <= 63 and _NAME.fullmatch(text) is not None


def _is_model(text: str) -> bool:
    return len(text) <= 200 and text.isprintable() and text == text.strip()


POOL_FIELDS = (
    _name("name", "Name", help="Lower-case letters, digits and dashes. Cannot be changed later."),
    Field(
        name="model",
        title="Model",
        kind="text",
        help="The model name in clients' requests.",
        fits=_is_model,
        words="a model name: 1 to 200 printable characters",
    ),
    _name("policy", "Policy", "default", "The policy that routes its requests."),
    Field(
        name="kind",
        title="Kind",
        kind="text",
        fits=KINDS.__contains__,
        help="The engine of each instance.",
        words=f"one of {', '.join(KINDS)}",
    ),
    Field(
        name="replicas",
        title="Replicas",
        default=1,
        unit="instances",
        range=(0, MAX_REPLICAS),
        help="Number of instances.",
    ),
    _name("node", "Node", "local", "The host of its instances."),
    Field(
        name="mode",
        title="Mode",
        default=SERVE,
        kind="text",
        choices=(SERVE, OBSERVE),
        help="observe: show engines that another system started, and send them no request.",
    ),
)


class InvalidFleet(InvalidInput):
    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)), problems)


@dataclass(frozen=True, slots=True)
class PoolSpec:
    name: str
    model: str
    kind: str
    replicas: int = 1
    policy: str = "default"
    node: str = "local"  # the only node; empty: `placement` decides
    engine: Mapping[str, object] = field(default_factory=dict)  # declared options; the kind has defaults for the rest
    # Sections as declared; fleet/spec/sections.py reads them.
    update: Mapping[str, object] = field(default_factory=dict)
    placement: Mapping[str, object] = field(default_factory=dict)
    schedule: Mapping[str, object] = field(default_factory=dict)
    autoscale: Mapping[str, object] = field(default_factory=dict)
    slo: Mapping[str, object] = field(default_factory=dict)
    access: Mapping[str, object] = field(default_factory=dict)
    mode: str = SERVE


@dataclass(frozen=True, slots=True)
class FleetSpec:
    name: str
    pools: tuple[PoolSpec, ...]
    prices: Mapping[str, float] = field(default_factory=dict)  # declared prices; fleet/systems/prices.py has defaults


class _Metadata(Struct, frozen=True):
    name: str


class _Body(Struct, frozen=True):
    pools: list[dict[str, object]] = []
    prices: dict[str, int | float] = {}


class _Document(Struct, frozen=True):
    metadata: _Metadata
    spec: _Body


def parse_fleet(document: object) -> FleetSpec:
    """Parse the document. Raise InvalidFleet, which lists every problem, not only the first."""
    problems = Problems()
    body = _header(document, problems)
    _check_pools(body.get("pools", []), problems)
    problems += check(Prices, problems.mapping("spec.prices", body.get("prices", {})), "spec.prices")
    if problems:
        raise InvalidFleet(problems)
    valid = read_value(document, _Document)
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
    read([_name("name")], metadata, "metadata", problems)
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
    own = {name: value for name, value in pool.items() if name not in _SECTIONS}
    read(POOL_FIELDS, own, path, problems)
    for name, test in _SECTIONS.items():
        if name in pool:
            test(f"{path}.{name}", pool[name], problems)
    if is_ephemeral(str(pool.get("name"))):
        problems.note(
            f"{path}.name", pool["name"], f"must not begin with {EPHEMERAL_PREFIX}: experiments use such names"
        )
    if "node" in pool and "placement" in pool:
        problems.note(f"{path}.node", pool["node"], "cannot be combined with placement: use placement.nodes")
    kind, engine = KINDS.get(str(pool.get("kind"))), pool.get("engine", {})
    if kind is not None and kind.launched and pool.get("mode") == OBSERVE:
        words = "is for engines that another system starts, of the kind external: Weir starts these to serve"
        problems.note(f"{path}.mode", OBSERVE, words)
    if kind is not None and isinstance(engine, Mapping):
        found = check_engine(kind, engine, f"{path}.engine", str(pool.get("model") or ""))
        problems += found or masks_left(build(kind.spec, engine), f"{path}.engine")
        if not found:
            _check_source(path, kind, engine, pool, problems)
            _check_replicas_allowed(path, kind, engine, pool.get("replicas", 1), problems)
            _check_can_sleep(path, kind, engine, pool.get("autoscale"), problems)
            _check_can_add_prefills(path, kind, engine, pool.get("autoscale"), problems)


def _check_can_sleep(
    path: str, kind: Kind, engine: Mapping[str, object], autoscale: object, problems: Problems
) -> None:
    asked = isinstance(autoscale, Mapping) and autoscale.get("to_zero") == "sleep"
    if asked and not kind.can_sleep(build(kind.spec, engine)):
        why = "engines of its kind, or with its options, cannot sleep"
        problems.note(f"{path}.autoscale.to_zero", "sleep", why, "stop")


def _check_can_add_prefills(
    path: str, kind: Kind, engine: Mapping[str, object], autoscale: object, problems: Problems
) -> None:
    faulty = any(problem.path.startswith(f"{path}.autoscale") for problem in problems)
    if faulty or not isinstance(autoscale, Mapping):
        return
    scaling = autoscale_of(autoscale)
    if scaling.prefill_max is None:
        return
    decodes = scaling.max - 1  # decode_max sets no limit where a person chose the total
    if why := fixed_sides(kind, build(kind.spec, engine), scaling.prefill_max, decodes):
        problems.note(f"{path}.autoscale.prefill_max", scaling.prefill_max, why)


def _check_replicas_allowed(
    path: str, kind: Kind, engine: Mapping[str, object], replicas: object, problems: Problems
) -> None:
    """Check the replicas against limits of the options: by GPUs, by URLs, to one, or to whole groups."""
    if not isinstance(replicas, int):
        return
    spec = build(kind.spec, engine)
    highest = kind.max_replicas(spec)
    if highest is not None and replicas > highest:
        problems.note(f"{path}.replicas", replicas, "too many for these options", f"0 to {highest}")
    elif allowed := split_group(kind, spec, replicas):
        problems.note(f"{path}.replicas", replicas, SPLIT, allowed)


def _check_source(
    path: str, kind: Kind, engine: Mapping[str, object], pool: Mapping[str, object], problems: Problems
) -> None:
    """Check a pool whose source decides how many instances there are."""
    for name in ("schedule", "autoscale"):
        if kind.has_source(build(kind.spec, engine)) and pool.get(name):
            problems.note(f"{path}.{name}", pool[name], "cannot be combined with a source, which lists the instances")


def _check_engine(path: str, value: object, problems: Problems) -> None:
    problems.mapping(path, value)


_SECTIONS: dict[str, Check] = {"engine": _check_engine, **CHECKS}


def _pool_spec(pool: Mapping[str, object]) -> PoolSpec:
    node = "" if "placement" in pool else "local"
    return read_value({"node": node, "replicas": _default_replicas(pool), **pool}, PoolSpec)


def _default_replicas(pool: Mapping[str, Any]) -> int:
    """Return the number of all engines in a list that another system started; 1 if Weir starts them or a source lists
    them.
    """
    kind = KINDS[pool["kind"]]
    listed = None if kind.launched else kind.max_replicas(build(kind.spec, pool.get("engine", {})))
    return 1 if listed is None else min(listed, MAX_REPLICAS)


def dump_fleet(spec: FleetSpec) -> dict[str, Any]:
    """Return the document: pools sorted by name, keys in documented order, options as declared."""
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
    values: dict[str, Any] = {field.name: getattr(pool, field.name) for field in POOL_FIELDS}
    if not pool.node:
        del values["node"]
        values["placement"] = dict(pool.placement)
    if pool.mode == SERVE:
        del values["mode"]
    sections = {"engine": {name: pool.engine[name] for name in order}}
    sections |= {name: dict(getattr(pool, name)) for name in ("update", "schedule", "autoscale", "slo", "access")}
    return values | {name: section for name, section in sections.items() if section}


def placement(pool: PoolSpec) -> Placement:
    return placement_of(pool.placement, pool.node)


def config(pool: PoolSpec) -> EngineConfig:
    return EngineConfig(pool.model, pool.kind, dict(pool.engine))


def config_hash(pool: PoolSpec) -> str:
    """Return the hash of a configuration: an instance whose hash differs from its pool's is replaced."""
    kind = KINDS[pool.kind]
    engine, default = dict(vars(build(kind.spec, pool.engine))), vars(build(kind.spec, {}))
    left_out = [name for name in (IMAGE, *kind.later_options) if name in engine and engine[name] == default[name]]
    for name in (*kind.free_options, *left_out):
        del engine[name]
    if "kv_events" in engine:
        engine["kv_events"] = bool(engine["kv_events"])  # absent means false
    content = {"model": pool.model, "kind": pool.kind, "engine": engine}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
