"""Pods as a source, watched for their addresses, readiness, labels and machines. Needs permission to get, list and
watch Pods."""

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.discovery.answer import SourceAway
from fleet.kinds.external import ports_of
from fleet.kinds.listed import ListedEngine
from fleet.kubernetes.api import KubernetesApi, KubernetesError
from fleet.kubernetes.mirror import Mirror
from fleet.kubernetes.objects import Pod

FIRST_LIST_S = 3.0  # time within which a new watch may list its Pods


@dataclass(slots=True)
class PodsSource:
    mirror: Mirror
    ports: tuple[int, ...]

    @classmethod
    def of(cls, given: Mapping[str, str]) -> "PodsSource":
        """Create the source. Raise SourceAway without credentials for the cluster."""
        try:
            api = KubernetesApi(given["namespace"], given.get("context", ""))
        except KubernetesError as error:
            raise SourceAway(str(error)) from None
        mirror = Mirror(api, given["selector"])
        mirror.start()
        return cls(mirror, ports_of(given.get("port", "8000")))

    def look(self) -> list[ListedEngine]:
        """Return the engines of the Pods. Raise SourceAway if the API server is unreachable or refuses."""
        self.mirror.wait_listed(FIRST_LIST_S)
        if self.mirror.trouble:
            raise SourceAway(self.mirror.trouble)
        return [engine for pod in self.mirror.pods().values() for engine in engines_of(pod, self.ports)]

    def close(self) -> None:
        self.mirror.stop()


def engines_of(pod: Pod, ports: tuple[int, ...]) -> list[ListedEngine]:
    """Return one engine per port, because each data-parallel rank of a Pod may have a separate port. Empty for a Pod
    that is ending or has no address."""
    address = pod.status.pod_ip
    ending = pod.metadata.deletion_timestamp is not None or pod.status.phase in ("Succeeded", "Failed")
    if ending or not address:
        return []
    host = f"[{address}]" if ":" in address else address
    ready = pod.condition("Ready")
    held = "" if ready.status == "True" else f"its Pod is not ready{f': {ready.message}' if ready.message else ''}"
    starts = sum(one.restart_count for one in pod.status.container_statuses or ())
    return [
        ListedEngine(
            key=f"{pod.metadata.uid}:{port}",
            url=f"http://{host}:{port}",
            name=pod.name if len(ports) == 1 else f"{pod.name}:{port}",
            held=held[:300],
            node=pod.spec.node_name,
            labels=pod.metadata.labels or {},
            starts=starts,
        )
        for port in ports
    ]
