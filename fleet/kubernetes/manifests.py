"""From what starting an instance consists of to the objects that start it in a cluster: a Pod, and a Secret. Pure.

The Pod's name carries the epoch, so that a start that is asked for twice is one start. Secret values and files are in
a Secret of the same name, which goes with the Pod. The engine listens on the Pod's own address, which its command line
names as $(WEIR_POD_IP): it is known only once the Pod is somewhere.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.kinds.kind import Kind
from fleet.kinds.serving import NVIDIA
from fleet.kubernetes.overlay import laid_over
from fleet.kubernetes.pod_settings import PodSettings
from fleet.node.prepare import LaunchSite, PreparedStart
from fleet.spec.masking import is_secret
from fleet.spec.sections import Placement

Json = dict[str, Any]
POD_IP = "pod-ip.invalid"  # stands for the Pod's address until that is known
FOLDER = "/var/lib/weir"  # in the container: where an instance writes
BASE = "/opt/weir"  # in the container: what paths of the document that begin with ./ are taken from
ENGINE = "engine"  # the container's name
USER = 10001  # as in deploy/Dockerfile; every other image is told to run as it
PROBE_S = 5
_IP = "WEIR_POD_IP"
_LABEL_MOST = 63
IN_POD = LaunchSite(host=POD_IP, python="python3", base=BASE, folder=FOLDER)


@dataclass(frozen=True, slots=True)
class PodStart:
    """One start of one instance, as the cluster is told of it."""

    instance: str
    pool: str
    node: str
    epoch: int
    born: str  # of its pool: a database that begins anew counts its epochs anew
    kind: Kind
    options: Any
    placement: Placement
    ports: Mapping[str, int]
    made: PreparedStart

    @property
    def name(self) -> str:
        return f"{self.instance}-e{self.epoch}"


def in_image(engine: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they are inside an image: what lies in Weir's folder is on the path there, devices are its own."""
    inside = {name: value for name, value in engine.items() if name not in ("gpus", "cores")}
    if str(inside.get("python", "")).startswith("./"):
        inside["python"] = IN_POD.python
    if str(inside.get("program", "")).startswith("./"):
        inside["program"] = _file(inside["program"])
    return inside


def pod(start: PodStart, place: PodSettings) -> Json:
    """LookupError when no image is known for its kind."""
    metadata = laid_over(place.template.get("metadata", {}), _metadata(start, place))
    spec = laid_over(_spec(start, place), place.template.get("spec", {}))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def secret(start: PodStart, place: PodSettings, owner: Mapping[str, Any] | None = None) -> Json | None:
    """What the Pod must not show, and its files; None when there is neither. `owner`: the Pod that takes it along."""
    values = {f"env.{name}": value for name, value in _secrets(start).items()}
    values |= {f"file.{_file(path)}": text for path, text in start.made.files.items()}
    if not values:
        return None
    metadata: Json = {"name": start.name, "namespace": place.namespace, "labels": labels(start)}
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner["name"], "uid": owner["uid"]}
        metadata["ownerReferences"] = [reference]
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": values}


def shown(argv: Iterable[str]) -> list[str]:
    """To be read: the address as the Pod has it."""
    return [word.replace(POD_IP, f"$({_IP})") for word in argv]


def selector(node: str, instance: str = "") -> str:
    """Of the Pods of a node, or of one instance on it."""
    wanted = {"app.kubernetes.io/managed-by": "weir", "weir/node": label(node)}
    if instance:
        wanted["weir/instance"] = label(instance)
    return ",".join(f"{name}={value}" for name, value in wanted.items())


def labels(start: PodStart) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": start.kind.name,
        "app.kubernetes.io/instance": label(start.instance),
        "app.kubernetes.io/component": "engine",
        "app.kubernetes.io/managed-by": "weir",
        "weir/node": label(start.node),
        "weir/pool": label(start.pool),
        "weir/instance": label(start.instance),
    }


def label(text: str) -> str:
    """As it is, or shortened to what a label's value may hold."""
    if len(text) <= _LABEL_MOST:
        return text
    return f"{text[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _metadata(start: PodStart, place: PodSettings) -> Json:
    return {
        "name": start.name,
        "namespace": place.namespace,
        "labels": labels(start),
        "annotations": {
            "weir/instance": start.instance,
            "weir/epoch": str(start.epoch),
            "weir/born": start.born,
            # With the address filled in they are what routers are told.
            "weir/url": start.made.url,
            "weir/wire": json.dumps(start.made.wire, sort_keys=True),
        },
    }


def _spec(start: PodStart, place: PodSettings) -> Json:
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(max(start.kind.grace_s, start.kind.drain_timeout_s)),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(start, place)],
        "volumes": _volumes(start),
    }


def _container(start: PodStart, place: PodSettings) -> Json:
    kind = start.kind
    found: Json = {
        "name": ENGINE,
        "image": place.image(kind.name, getattr(start.options, "image", None)),
        "command": [_expanded(word) for word in start.made.argv],
        "env": _environment(start),
        "ports": [{"name": use, "containerPort": number} for use, number in start.ports.items()],
        "startupProbe": _probe(kind, failures=math.ceil(kind.load_timeout_s / PROBE_S)),
        "readinessProbe": _probe(kind, failures=2),
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": _mounts(start),
    }
    resources = _resources(start)
    return found | ({"resources": resources} if resources else {})


def _expanded(text: str) -> str:
    """For Kubernetes, which replaces $(NAME): only the address is to be replaced, whatever else stands there."""
    return text.replace("$", "$$").replace(POD_IP, f"$({_IP})")


def _environment(start: PodStart) -> list[Json]:
    secrets = _secrets(start)
    plain = {"HOME": FOLDER, "USER": "weir", "PYTHONUNBUFFERED": "1", **start.made.environment}
    plain |= {"WEIR_INSTANCE": start.instance, "WEIR_NODE": start.node, "WEIR_EPOCH": str(start.epoch)}
    found: list[Json] = [{"name": _IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    found += [{"name": name, "value": _expanded(value)} for name, value in plain.items() if name not in secrets]
    return found + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": start.name, "key": f"env.{name}"}}} for name in secrets
    ]


def _secrets(start: PodStart) -> dict[str, str]:
    return {name: value for name, value in start.made.environment.items() if is_secret(name) and value}


def _probe(kind: Kind, failures: int) -> Json:
    asked = {"path": kind.health_path, "port": "http"}
    return {"httpGet": asked, "periodSeconds": PROBE_S, "timeoutSeconds": 3, "failureThreshold": failures}


def _resources(start: PodStart) -> Json:
    wanted = start.placement
    limits: dict[str, str] = _devices(start)
    if wanted.memory_gib:
        limits["memory"] = f"{math.ceil(wanted.memory_gib * 1024)}Mi"
    # CPUs are asked for but not limited: an engine that is throttled is slow for everybody.
    requests = {"cpu": f"{wanted.cpus:g}"} if wanted.cpus else {}
    requests |= limits
    return {name: part for name, part in {"requests": requests, "limits": limits}.items() if part}


def _devices(start: PodStart) -> dict[str, str]:
    """Accelerators: as many as its placement names, else as it spans."""
    count = start.placement.gpus or start.kind.devices(start.options)
    return {start.kind.device or NVIDIA: str(count)} if count else {}


def _volumes(start: PodStart) -> list[Json]:
    found: list[Json] = [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if start.kind.device:
        # Workers of one engine share memory; 64 MB, as containers have, is too little for that.
        found.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if start.made.volume:
        size = math.ceil(getattr(start.options, "disk_gib", 0) * 1024)
        found.append({"name": "kv", "emptyDir": {"sizeLimit": f"{size}Mi"} if size else {}})
    if start.made.files:
        items = [{"key": f"file.{_file(path)}", "path": _file(path)} for path in start.made.files]
        found.append({"name": "files", "secret": {"secretName": start.name, "items": items}})
    return found


def _mounts(start: PodStart) -> list[Json]:
    found: list[Json] = [{"name": "work", "mountPath": FOLDER}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if start.kind.device:
        found.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if start.made.volume:
        found.append({"name": "kv", "mountPath": start.made.volume})
    files = (
        {"name": "files", "mountPath": path, "subPath": _file(path), "readOnly": True} for path in start.made.files
    )
    return [*found, *files]


def _file(path: str) -> str:
    return path.rpartition("/")[2]
