"""Renders the Kubernetes objects of a fleet document, for reading, without a cluster."""

from collections.abc import Iterable, Iterator

import yaml

from fleet.kinds import KINDS
from fleet.kubernetes import manifests
from fleet.kubernetes.overlay import Json
from fleet.kubernetes.pod_settings import PodSettings
from fleet.kubernetes.starts import described
from fleet.models import Instance, Pool
from fleet.node.prepare import known_peers
from fleet.spec.fleet_spec import FleetSpec, PoolSpec, config, placement
from fleet.spec.masking import hidden
from router.contract.values.secret_text import HIDDEN

NODE = "kubernetes"  # default node name


def objects(spec: FleetSpec, settings: PodSettings) -> Iterator[Json]:
    """Yield the objects of each instance's first start, without secrets. Raise LookupError if a kind has no image."""
    for pool in spec.pools:
        if KINDS[pool.kind].launched:
            for ordinal in range(pool.replicas):
                yield from objects_of(pool, ordinal, settings)


def objects_of(pool: PoolSpec, ordinal: int, settings: PodSettings, node: str = "", epoch: int = 1) -> list[Json]:
    start = described(_of(pool, ordinal, node or _named(pool), epoch), config(pool), known_peers(config(pool)), "0")
    found = [hidden(manifests.pod(start, settings))]
    secret = manifests.secret(start, settings)
    if secret is not None:
        shown = {key: HIDDEN if key.startswith("env.") else text for key, text in secret["stringData"].items()}
        found.append({**secret, "stringData": shown})
    return found


def as_yaml(found: Iterable[Json]) -> str:
    return yaml.safe_dump_all(found, sort_keys=False, allow_unicode=True, width=120)


def _of(pool: PoolSpec, ordinal: int, node: str, epoch: int) -> Instance:
    row = Pool(name=pool.name, kind=pool.kind, placement=dict(pool.placement), node=pool.node)
    return Instance(pool=row, name=f"{pool.name}-{ordinal}", ordinal=ordinal, node=node, epoch=epoch)


def _named(pool: PoolSpec) -> str:
    return next(iter(placement(pool).nodes), NODE)
