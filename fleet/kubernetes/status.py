"""The status of a Pod, translated for its instance. Pure."""

from collections.abc import Mapping, Sequence

from fleet.kinds.wire import KvWire
from fleet.kubernetes.manifests import POD_IP
from fleet.kubernetes.objects import ContainerReason, Pod
from fleet.node.launcher import ProcessStatus
from fleet.plan import failure
from router.contract.values.reading import read_json

PATIENCE_S = 60.0  # time for which an image pull or container creation may keep failing
LOST_S = 30.0  # time past its deadline after which its machine counts as lost
_FINAL = ("Failed", "Succeeded")
_PULL = "its image cannot be pulled: correct engine.image, or set imagePullSecrets in the node's template"
_TROUBLE: Mapping[str, str] = {
    "ErrImagePull": _PULL,
    "ImagePullBackOff": _PULL,
    "ErrImageNeverPull": "its image is not on the machine, and pulling is off",
    "InvalidImageName": "its image name is invalid: correct engine.image",
    "CreateContainerConfigError": "its container cannot be created: a referenced object is missing",
    "CreateContainerError": "its container cannot be created",
    "RunContainerError": "its container cannot run",
}
_CAUSES: Mapping[str, str] = {
    "OOMKilled": "the container exceeded its memory limit: raise placement.memory_gib",
    "Evicted": "evicted by its machine",
    "ContainerCannotRun": "its command cannot run in that image: correct engine.image",
    "StartError": "its command cannot run in that image: correct engine.image",
    "NodeShutdown": "its machine was shut down",
    "Terminated": "its machine was shut down",
    "Preempting": "preempted by a Pod of higher priority",
}


def located(pod: Pod) -> tuple[str, KvWire] | None:
    """Return (URL, facts for routers), once the Pod's address is known."""
    address = pod.status.pod_ip
    if not address:
        return None
    address = f"[{address}]" if ":" in address else address
    wire = pod.annotation("weir/wire").replace(POD_IP, address)
    return pod.annotation("weir/url").replace(POD_IP, address), read_json(wire or "{}", KvWire)


def process_status(pod: Pod, at: float, waited_s: float) -> ProcessStatus:
    """Return the status of the Pod in the form of a process's. `at` is in Unix seconds; `waited_s` is the time since
    the start order."""
    if is_over(pod, at):
        return ProcessStatus(False, end_text="its Pod ended")
    if deletion_of(pod) is not None:
        return ProcessStatus(True, suspended_why=f"its Pod is being deleted: {_why_deleted(pod)}")
    if pod.waiting.reason in _TROUBLE and waited_s >= PATIENCE_S:
        return ProcessStatus(False, end_text="its Pod did not start")
    return ProcessStatus(True, waits_for=_waits_for(pod))


def is_over(pod: Pod, at: float) -> bool:
    """Return whether the Pod has ended, or its machine is lost."""
    if pod.status.phase in _FINAL or pod.terminated is not None:
        return True
    deadline = deletion_of(pod)
    return deadline is not None and at - deadline >= LOST_S


def deletion_of(pod: Pod) -> float | None:
    """Return the deadline of the Pod's deletion in Unix seconds; None if it is not being deleted."""
    deadline = pod.metadata.deletion_timestamp
    return deadline.timestamp() if deadline is not None else None


def failure_cause(pod: Pod, log: Sequence[str]) -> str:
    """Return why the Pod ended, with advice."""
    status, ended = pod.status, pod.terminated
    if status.phase == "Failed" and status.reason:
        return _with_cause(status.reason, status.message)
    if ended is not None and ended.reason in _CAUSES:
        return _with_cause(ended.reason, ended.message)
    if ended is not None:
        return f"exit status {ended.exit_code}: {failure.failure_cause(log)}"
    if pod.waiting.reason in _TROUBLE:
        return _trouble(pod.waiting)
    return f"its machine {pod.spec.node_name} does not report its end".replace("  ", " ")


def _with_cause(reason: str, message: str) -> str:
    cause = _CAUSES.get(reason, "")
    detail = f"{reason}{message and f': {message[:300]}'}"
    return f"{cause} ({detail})" if cause else detail


def _trouble(waiting: ContainerReason) -> str:
    reason, message = waiting.reason, waiting.message
    return f"{_TROUBLE[reason]} ({reason}{message and f': {message[:300]}'})"


def _waits_for(pod: Pod) -> str:
    """Return why the Pod does not run yet; empty if it runs."""
    if pod.status.phase != "Pending":
        return ""
    scheduled = pod.condition("PodScheduled")
    if scheduled.status == "False":
        return f"waits for capacity in the cluster ({scheduled.reason}: {scheduled.message[:300]})"
    if pod.waiting.reason in _TROUBLE:
        return _trouble(pod.waiting)
    if pod.engine is None:
        return "its Pod waits for a machine"
    return f"its container is being created ({pod.waiting.reason or 'Pending'}); an image pull may take minutes"


def _why_deleted(pod: Pod) -> str:
    target = pod.condition("DisruptionTarget")
    if target.status == "True":
        return f"{target.reason}: {target.message[:300]}"
    return "requested from outside"
