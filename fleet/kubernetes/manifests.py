"""The objects that start an instance in a cluster: a Pod, and a Secret. Pure.

The Pod's name contains the epoch, so that a repeated order starts no second Pod. Secret values and files are in a
Secret of the same name, owned by the Pod. The engine listens on the Pod's address, which is known only after
scheduling; its command line contains $(WEIR_POD_IP).
"""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fleet.kinds.kind import Kind
from fleet.kinds.serving import NVIDIA
from fleet.kubernetes.objects import ENGINE, Metadata
from fleet.kubernetes.overlay import Json, merged
from fleet.kubernetes.pod_settings import PodSettings
from fleet.node.prepare import LaunchSite, PreparedStart
from fleet.spec.masking import is_secret
from fleet.spec.sections import Placement

POD_IP = "pod-ip.invalid"  # placeholder for the Pod's address
FOLDER = "/var/lib/weir"  # folder in the container for output of the instance
BASE = "/opt/weir"  # folder in the container for paths of the document that begin with ./
USER = 10001  # user of deploy/Dockerfile; other images run as this user, too
PROBE_S = 5
_IP = "WEIR_POD_IP"
_LABEL_MOST = 63
IN_POD = LaunchSite(host=POD_IP, python="python3", base=BASE, folder=FOLDER)


@dataclass(frozen=True, slots=True)
class PodStart:
    """One start of one instance."""

    instance: str
    pool: str
    node: str
    epoch: int
    born: str  # creation time of its pool, because epochs start over in a new database
    kind: Kind
    options: Any
    placement: Placement
    ports: Mapping[str, int]
    prepared: PreparedStart

    @property
    def name(self) -> str:
        return f"{self.instance}-e{self.epoch}"


def in_image(engine: Mapping[str, object]) -> dict[str, object]:
    """Adapt options to an image: Weir's programs are on its path, and a container sees only its own devices."""
    inside = {name: value for name, value in engine.items() if name not in ("gpus", "cores")}
    if str(inside.get("python", "")).startswith("./"):
        inside["python"] = IN_POD.python
    if str(inside.get("program", "")).startswith("./"):
        inside["program"] = _file(str(inside["program"]))
    return inside


def pod(start: PodStart, settings: PodSettings) -> Json:
    """Return the Pod. Raise LookupError if its kind has no image."""
    metadata = merged(settings.template.get("metadata", {}), _metadata(start, settings))
    spec = merged(_spec(start, settings), settings.template.get("spec", {}))
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def secret(start: PodStart, settings: PodSettings, owner: Metadata | None = None) -> Json | None:
    """Return a Secret of the secret variables and files; None if there are none. `owner`: metadata of the Pod."""
    values = {f"env.{name}": value for name, value in _secrets(start).items()}
    values |= {f"file.{_file(path)}": text for path, text in start.prepared.files.items()}
    if not values:
        return None
    metadata: Json = {"name": start.name, "namespace": settings.namespace, "labels": labels(start)}
    if owner is not None:
        reference = {"apiVersion": "v1", "kind": "Pod", "name": owner.name, "uid": owner.uid}
        metadata["ownerReferences"] = [reference]
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": values}


def shown(argv: Iterable[str]) -> list[str]:
    """Return the command line for display, with the Pod's variable as its address."""
    return [word.replace(POD_IP, f"$({_IP})") for word in argv]


def selector(node: str, instance: str = "") -> str:
    """Return the label selector for the Pods of a node, or of one instance on it."""
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
    """Shorten the text to the length of a label value."""
    if len(text) <= _LABEL_MOST:
        return text
    return f"{text[:50]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _metadata(start: PodStart, settings: PodSettings) -> Json:
    return {
        "name": start.name,
        "namespace": settings.namespace,
        "labels": labels(start),
        "annotations": {
            "weir/instance": start.instance,
            "weir/epoch": str(start.epoch),
            "weir/born": start.born,
            # Facts for routers, completed once the address is known.
            "weir/url": start.prepared.url,
            "weir/wire": json.dumps(start.prepared.wire.stored(), sort_keys=True),
        },
    }


def _spec(start: PodStart, settings: PodSettings) -> Json:
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
        "containers": [_container(start, settings)],
        "volumes": _volumes(start),
    }


def _container(start: PodStart, settings: PodSettings) -> Json:
    kind = start.kind
    found: Json = {
        "name": ENGINE,
        "image": settings.image(kind.name, getattr(start.options, "image", None)),
        "command": [_expanded(word) for word in start.prepared.argv],
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
    """Escape $(NAME), which Kubernetes would replace, everywhere except in the address."""
    return text.replace("$", "$$").replace(POD_IP, f"$({_IP})")


def _environment(start: PodStart) -> list[Json]:
    secrets = _secrets(start)
    plain = {"HOME": FOLDER, "USER": "weir", "PYTHONUNBUFFERED": "1", **start.prepared.environment}
    plain |= {"WEIR_INSTANCE": start.instance, "WEIR_NODE": start.node, "WEIR_EPOCH": str(start.epoch)}
    found: list[Json] = [{"name": _IP, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    found += [{"name": name, "value": _expanded(value)} for name, value in plain.items() if name not in secrets]
    return found + [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": start.name, "key": f"env.{name}"}}} for name in secrets
    ]


def _secrets(start: PodStart) -> dict[str, str]:
    return {name: value for name, value in start.prepared.environment.items() if is_secret(name) and value}


def _probe(kind: Kind, failures: int) -> Json:
    asked = {"path": kind.health_path, "port": "http"}
    return {"httpGet": asked, "periodSeconds": PROBE_S, "timeoutSeconds": 3, "failureThreshold": failures}


def _resources(start: PodStart) -> Json:
    placement = start.placement
    limits: dict[str, str] = _devices(start)
    if placement.memory_gib:
        limits["memory"] = f"{math.ceil(placement.memory_gib * 1024)}Mi"
    # CPUs are requested but not limited, because throttling would slow every request.
    requests = {"cpu": f"{placement.cpus:g}"} if placement.cpus else {}
    requests |= limits
    return {name: part for name, part in {"requests": requests, "limits": limits}.items() if part}


def _devices(start: PodStart) -> dict[str, str]:
    """Return the accelerators: the number in the placement, or else the tensor-parallel size."""
    count = start.placement.gpus or start.kind.devices(start.options, start.prepared.wire.role)
    return {start.kind.device or NVIDIA: str(count)} if count else {}


def _volumes(start: PodStart) -> list[Json]:
    found: list[Json] = [{"name": "work", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if start.kind.device:
        # An engine's workers share memory; a container's default of 64 MB is too little.
        found.append({"name": "shm", "emptyDir": {"medium": "Memory"}})
    if start.prepared.volume:
        size = math.ceil(getattr(start.options, "disk_gib", 0) * 1024)
        found.append({"name": "kv", "emptyDir": {"sizeLimit": f"{size}Mi"} if size else {}})
    if start.prepared.metrics_folder:
        found.append({"name": "metrics", "emptyDir": {}})
    if start.prepared.files:
        items = [{"key": f"file.{_file(path)}", "path": _file(path)} for path in start.prepared.files]
        found.append({"name": "files", "secret": {"secretName": start.name, "items": items}})
    return found


def _mounts(start: PodStart) -> list[Json]:
    found: list[Json] = [{"name": "work", "mountPath": FOLDER}, {"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108
    if start.kind.device:
        found.append({"name": "shm", "mountPath": "/dev/shm"})  # noqa: S108
    if start.prepared.volume:
        found.append({"name": "kv", "mountPath": start.prepared.volume})
    if start.prepared.metrics_folder:
        found.append({"name": "metrics", "mountPath": start.prepared.metrics_folder})
    files = (
        {"name": "files", "mountPath": path, "subPath": _file(path), "readOnly": True} for path in start.prepared.files
    )
    return [*found, *files]


def _file(path: str) -> str:
    return path.rpartition("/")[2]
