"""A preview of the next Pod of a pool's first instance."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

from django.utils import timezone

from fleet.kubernetes import render
from fleet.kubernetes.objects import ENGINE
from fleet.kubernetes.pod_settings import PodSettings
from fleet.models import Instance, Node
from fleet.plan.placement import not_allowed
from fleet.snapshot import node_views
from fleet.spec.fleet_spec import PoolSpec
from fleet.spec.masking import pool_shown
from fleet.spec.sections import placement_of


@dataclass(frozen=True, slots=True)
class PodPreview:
    node: str
    image: str = ""
    command: str = ""  # command of the container, as a shell command
    resources: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # resources of the Pod
    manifests: str = ""  # YAML, with secrets hidden
    lacks: str = ""  # why there is no preview


def preview_pod(pool: PoolSpec) -> PodPreview | None:
    """Return the Pod of the next start; None if the instance could also run on a host, or could run on no reporting
    node.
    """
    found_node = _namespace_node(pool)
    if found_node is None:
        return None
    node, place = found_node
    epoch = Instance.objects.filter(name=f"{pool.name}-0").values_list("epoch", flat=True).first() or 0
    try:
        found = render.objects_of(pool_shown(pool), 0, place, node, epoch + 1)
    except LookupError as error:
        return PodPreview(node, lacks=str(error))
    engine = next(one for one in found[0]["spec"]["containers"] if one["name"] == ENGINE)
    words = [word.replace("$$", "$") for word in (*engine["command"], *engine.get("args", ()))]
    return PodPreview(node, engine["image"], shlex.join(words), engine.get("resources", {}), render.as_yaml(found))


def _namespace_node(pool: PoolSpec) -> tuple[str, PodSettings] | None:
    placement = placement_of(pool.placement, pool.node)
    allowed = [view.name for view in node_views(timezone.now()) if not not_allowed(placement, view)]
    found = [(node.name, node.resources.pods) for node in Node.objects.filter(name__in=allowed).order_by("name")]
    if not found or any(pods is None for _, pods in found):
        return None
    name, pods = found[0]
    return (name, PodSettings(pods.namespace, pods.images, {}, pods.template)) if pods is not None else None
