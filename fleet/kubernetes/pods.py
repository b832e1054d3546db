"""Instances as Pods: the launcher of a node that is a namespace of a cluster. The name of a Pod contains instance and
epoch. The API server rejects a second Pod with that name, so a repeated order starts no second one. Pods of earlier
epochs end before a new one starts, and the fence ends leftovers.
"""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from django.utils import timezone
from msgspec import structs

from fleet.kinds import KINDS
from fleet.kinds.resources import Inventory
from fleet.kinds.wire import KvWire
from fleet.kubernetes import capacity, manifests, pod_settings, status
from fleet.kubernetes.api import Absent, Exists, Forbidden, KubernetesApi, KubernetesError, NotReached
from fleet.kubernetes.capacity import Capacity
from fleet.kubernetes.mirror import Mirror
from fleet.kubernetes.objects import Pod, Resource
from fleet.kubernetes.pod_settings import PodSettings
from fleet.kubernetes.starts import start_of
from fleet.models import Instance, State
from fleet.node import logs
from fleet.node.fencing import PRESENT
from fleet.node.launcher import LaunchFailed, ProcessStatus, ShutdownReport, StartDeferred, StartedInstance

CLEAR_S = 5.0  # time allowed for earlier Pods to end before a start is deferred
WATCH_DELAY_S = 5.0  # time after which the watch must have reported a new Pod
_POLL_S = 0.2
_AT_ONCE = 1  # seconds of grace; 0 would remove the Pod from the server while it still runs
log = logging.getLogger(__name__)


class Pods:
    def __init__(self, api: KubernetesApi, settings: PodSettings) -> None:
        self._api, self._settings = api, settings
        self._mirrors: dict[str, Mirror] = {}  # by node

    @classmethod
    def of(cls, namespace: str, context: str, file: str) -> "Pods":
        """Create the launcher. Raise OSError or ValueError if the file or the client configuration is invalid."""
        settings = pod_settings.read(Path(file).read_text(), namespace) if file else PodSettings(namespace)
        return cls(KubernetesApi(namespace, context), settings)

    def close(self) -> None:
        for mirror in self._mirrors.values():
            mirror.stop()
        self._api.close()

    def refresh(self, node: str) -> None:
        """Record the addresses of new Pods."""
        mirror = self.mirror(node)
        new = Instance.objects.filter(node=node, state=State.LOADING, url="").exclude(pod="")
        for row in new:
            pod = mirror.get(row.pod)
            found = status.located(pod) if pod is not None else None
            if found is not None:
                Instance.objects.filter(pk=row.pk, pod=row.pod).update(url=found[0], wire=found[1].stored())

    def fence(self, node: str) -> list[str]:
        try:
            pods, _ = self._api.list_pods(manifests.selector(node))
        except KubernetesError as error:
            log.warning("node %s could not look for stray Pods: %s", node, error)
            return []
        strays = [pod for pod in pods if not _is_present(pod, node) and status.deletion_of(pod) is None]
        for pod in strays:
            log.warning("deleting Pod %s: its epoch must no longer run on node %s", pod.name, node)
            self._delete(pod.name, _AT_ONCE)
        return [pod.instance for pod in strays]

    def status(self, instance: Instance) -> ProcessStatus:
        mirror, waited_s = self.mirror(instance.node), (timezone.now() - instance.since).total_seconds()
        pod = mirror.get(instance.pod)
        if pod is not None:
            return status.process_status(pod, time.time(), waited_s)
        gone = not mirror.trouble and waited_s >= WATCH_DELAY_S
        return ProcessStatus(False, end_text="its Pod is gone") if gone else ProcessStatus(True)

    def failure_cause(self, instance: Instance) -> str:
        pod = self.mirror(instance.node).get(instance.pod)
        if pod is None:
            return "it was deleted from outside, or with its machine"
        return status.failure_cause(pod, self._keep_log(instance))

    def inventory(self) -> Inventory:
        found, system, gpus_why = Capacity(), None, None
        try:
            system = f"Kubernetes {self._api.version()}, namespace {self._api.namespace}"
            machines, gpus_why = self._machines()
            found = capacity.of_quotas(self._quotas()).over(machines)
        except KubernetesError as error:
            gpus_why = str(error)
        found = capacity.of_file(self._settings.capacity).over(found)
        pods = pod_settings.public_settings(self._settings)
        return Inventory(
            found.cpus, found.memory_bytes, (), found.gpus, gpus_why, system, machines=found.machines, pods=pods
        )

    def live_inventory(self, known: Inventory) -> Inventory:
        """Return the inventory with the reason why Pods cannot be started or watched now; the reason is empty if they
        can.
        """
        return structs.replace(known, trouble=next((mirror.trouble for mirror in self._mirrors.values()), ""))

    def claim(self, instance: Instance) -> int | None:
        born = instance.pool.born
        pods = self._of(instance)
        started = [pod.epoch for pod in pods if pod.born == born]
        latest = max(started, default=0)
        if latest > instance.epoch:
            return latest
        self._clear(instance, [pod for pod in pods if (pod.born, pod.epoch) != _id(instance)])
        return None

    def start(self, instance: Instance) -> StartedInstance:
        start = start_of(instance)
        try:
            pod = self._create(start)
            self._create_secret(start, pod)
        except NotReached as error:
            raise StartDeferred(str(error)) from None
        except Forbidden as error:
            if "exceeded quota" in str(error):
                raise StartDeferred(f"waits for capacity in the namespace: {error}") from None
            raise
        self.mirror(instance.node).note(pod)
        prepared = replace(start.prepared, url="", wire=KvWire(), argv=manifests.shown(start.prepared.argv))
        logs.begin(instance.name, instance.epoch, timezone.now(), prepared.argv)
        return StartedInstance(prepared, f"started as Pod {start.name}", pod=start.name)

    def revoke(self, started: StartedInstance) -> None:
        self._delete(started.pod, _AT_ONCE)

    def signal(self, instance: Instance, kill: bool) -> bool:
        grace_s = _AT_ONCE if kill else KINDS[instance.pool.kind].grace_s
        there = self._delete(instance.pod, grace_s)
        if not there:
            self.mirror(instance.node).forget(instance.pod)
        return there

    def end_all(self, node: str, grace_s: float) -> ShutdownReport:
        """End the node's Pods, including those without a record."""
        running: dict[str, str] = {}  # Pod → instance
        try:
            running = self._running(node)
            for name in running:
                self._api.delete_pod(name, grace_s)
            there = self._after(node, set(running), grace_s + CLEAR_S)
            left = {running[name]: f"its Pod {name} was deleted but is still there" for name in there}
        except KubernetesError as error:
            known = running or dict(Instance.objects.filter(node=node).exclude(pod="").values_list("pod", "name"))
            left = {instance: f"its Pod {name} may still run: {error}" for name, instance in known.items()}
        return ShutdownReport(tuple(sorted(set(running.values()) - left.keys())), left)

    def mirror(self, node: str) -> Mirror:
        if node not in self._mirrors:
            self._mirrors[node] = Mirror(self._api, manifests.selector(node))
            self._mirrors[node].start()
        return self._mirrors[node]

    def _create(self, start: manifests.PodStart) -> Pod:
        """Create the Pod; return it, or the existing one of the same start."""
        try:
            return self._api.create_pod(manifests.pod(start, self._settings))
        except Exists:
            there = self._api.read_pod(start.name)
        if (there.born, there.epoch) != (start.born, start.epoch):
            raise LaunchFailed(f"a Pod {start.name} of another fleet exists: delete it")
        return there

    def _create_secret(self, start: manifests.PodStart, pod: Pod) -> None:
        secret = manifests.secret(start, self._settings, pod.metadata)
        if secret is None:
            return
        try:
            self._api.create_secret(secret)
        except Exists:
            return
        except KubernetesError:
            self._delete(start.name, _AT_ONCE)
            raise

    def _of(self, instance: Instance) -> list[Pod]:
        try:
            found, _ = self._api.list_pods(manifests.selector(instance.node, instance.name))
        except NotReached as error:
            raise StartDeferred(str(error)) from None
        return [pod for pod in found if pod.instance == instance.name]

    def _clear(self, instance: Instance, earlier: Iterable[Pod]) -> None:
        """End earlier Pods. Raise StartDeferred if one is still there after CLEAR_S."""
        names = {pod.name for pod in earlier}
        for name in names:
            self._delete(name, _AT_ONCE)
        end = time.monotonic() + CLEAR_S
        while names:
            left = [pod for pod in self._of(instance) if not status.is_over(pod, time.time())]
            names &= {pod.name for pod in left}
            if names and time.monotonic() > end:
                raise StartDeferred(f"waits for the Pod {min(names)} of an earlier start to end")
            time.sleep(_POLL_S if names else 0)

    def _running(self, node: str) -> dict[str, str]:
        pods, _ = self._api.list_pods(manifests.selector(node))
        running = [pod for pod in pods if not status.is_over(pod, time.time())]
        return {pod.name: pod.instance for pod in running}

    def _after(self, node: str, names: set[str], limit_s: float) -> set[str]:
        """Return the Pods that still run after the time limit has passed."""
        end = time.monotonic() + limit_s
        while (there := names & self._running(node).keys()) and time.monotonic() < end:
            time.sleep(_POLL_S)
        return there

    def _delete(self, name: str, grace_s: float) -> bool:
        try:
            return self._api.delete_pod(name, grace_s)
        except KubernetesError as error:
            log.warning("Pod %s could not be deleted: %s", name, error)
            return True  # it may still exist, so the order is repeated

    def _keep_log(self, instance: Instance) -> list[str]:
        try:
            lines = self._api.log(instance.pod, logs.TAIL)
        except KubernetesError as error:
            return [] if isinstance(error, Absent) else [f"its log cannot be read: {error}"]
        logs.append(instance.name, lines)
        return lines

    def _machines(self) -> tuple[Capacity, str | None]:
        """Return the capacity of the machines, and the reason if it is unknown."""
        try:
            return capacity.of_machines(self._api.nodes()), None
        except Forbidden:
            # A worker may have rights only in its namespace.
            return Capacity(), "no right to list the machines of the cluster, and its file has no capacity"

    def _quotas(self) -> list[Resource]:
        try:
            return self._api.quotas()
        except Forbidden:
            return []


def _id(instance: Instance) -> tuple[str, int]:
    return instance.pool.born, instance.epoch


def _is_present(pod: Pod, node: str) -> bool:
    rows = Instance.objects.select_related("pool").filter(name=pod.instance, node=node, state__in=PRESENT)
    return any(_id(row) == (pod.born, pod.epoch) for row in rows)
