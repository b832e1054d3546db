"""The start of an instance in a cluster (manifests.PodStart), from its record and configuration."""

import dataclasses

from msgspec.structs import replace

from fleet.kinds import KINDS
from fleet.kinds.engine_config import EngineConfig
from fleet.kubernetes import manifests
from fleet.models import Instance
from fleet.node.ports import in_pod
from fleet.node.prepare import peers_of, prepare, with_key
from fleet.spec.sections import placement_of


def start_of(instance: Instance) -> manifests.PodStart:
    """Return the instance's next start, with its engine key. Raise DependencyNotReady if a needed pool is not ready, or
    EngineKeyMissing."""
    given = instance.started_from
    start = described(instance, given, peers_of(instance), instance.pool.born)
    return dataclasses.replace(start, prepared=with_key(start.prepared, given))


def described(instance: Instance, config: EngineConfig, peers: dict[str, str], born: str) -> manifests.PodStart:
    kind, config = KINDS[config.kind], replace(config, engine=manifests.in_image(config.engine))
    ports = in_pod(kind.ports, kind.port_spans(config.options()))
    return manifests.PodStart(
        instance=instance.name,
        pool=instance.pool.name,
        node=instance.node,
        epoch=instance.epoch,
        born=born,
        kind=kind,
        options=config.options(),
        placement=placement_of(instance.pool.placement, instance.pool.node),
        ports=ports,
        prepared=prepare(config, instance, ports, peers, manifests.IN_POD),
    )
