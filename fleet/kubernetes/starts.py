"""The start of an instance in a cluster (manifests.PodStart), from its record and configuration."""

from typing import Any

from fleet.kinds import KINDS
from fleet.kinds.option import build
from fleet.kubernetes import manifests
from fleet.models import Instance, Pool
from fleet.node.ports import in_pod
from fleet.node.prepare import peers_of, prepare
from fleet.spec.sections import placement_of


def start_of(instance: Instance) -> manifests.PodStart:
    """Its next start. DependencyNotReady when a needed pool is not ready."""
    return described(instance, instance.config, peers_of(instance), born_of(instance.pool))


def described(instance: Instance, config: dict[str, Any], peers: dict[str, str], born: str) -> manifests.PodStart:
    kind, engine = KINDS[config["kind"]], manifests.in_image(config["engine"])
    ports = in_pod(kind.ports)
    return manifests.PodStart(
        instance=instance.name,
        pool=instance.pool.name,
        node=instance.node,
        epoch=instance.epoch,
        born=born,
        kind=kind,
        options=build(kind.spec, engine),
        placement=placement_of(instance.pool.placement, instance.pool.node),
        ports=ports,
        prepared=prepare({**config, "engine": engine}, instance, ports, peers, manifests.IN_POD),
    )


def born_of(pool: Pool) -> str:
    return str(int(pool.created_at.timestamp() * 1000))
