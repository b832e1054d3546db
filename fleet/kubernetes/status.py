"""The status of a Pod, translated for its instance. Pure."""

import datetime as dt
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fleet.kubernetes.manifests import ENGINE, POD_IP
from fleet.node.launcher import ProcessStatus
from fleet.plan import failure

PATIENCE_S = 60.0  # an image pull or container creation that fails for so long has failed
LOST_S = 30.0  # so long past its deadline: its machine is lost
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


def epoch_of(pod: Mapping[str, Any]) -> int:
    """0 for a foreign Pod."""
    text = _annotation(pod, "weir/epoch")
    return int(text) if text.isdecimal() else 0


def instance_of(pod: Mapping[str, Any]) -> str:
    return _annotation(pod, "weir/instance")


def born_of(pod: Mapping[str, Any]) -> str:
    return _annotation(pod, "weir/born")


def located(pod: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """(URL, wire facts for routers), once its address is known."""
    address = str(pod.get("status", {}).get("podIP") or "")
    if not address:
        return None
    address = f"[{address}]" if ":" in address else address
    wire = _annotation(pod, "weir/wire").replace(POD_IP, address)
    return _annotation(pod, "weir/url").replace(POD_IP, address), json.loads(wire or "{}")


def process_status(pod: Mapping[str, Any], at: float, waited_s: float) -> ProcessStatus:
    """`at`: Unix seconds; `waited_s`: since the start order."""
    if is_over(pod, at):
        return ProcessStatus(False, end_text="its Pod ended")
    if deletion_of(pod) is not None:
        return ProcessStatus(True, suspended_why=f"its Pod is being deleted: {_why_deleted(pod)}")
    reason, message = _waiting(pod)
    if reason in _TROUBLE and waited_s >= PATIENCE_S:
        return ProcessStatus(False, end_text="its Pod did not start")
    return ProcessStatus(True, waits_for=_waits_for(pod, reason, message))


def is_over(pod: Mapping[str, Any], at: float) -> bool:
    """It has ended, or its machine is lost."""
    if pod.get("status", {}).get("phase") in _FINAL or _terminated(pod):
        return True
    deadline = deletion_of(pod)
    return deadline is not None and at - deadline >= LOST_S


def deletion_of(pod: Mapping[str, Any]) -> float | None:
    """Deadline of its deletion (Unix seconds); None: it is not being deleted."""
    text = pod["metadata"].get("deletionTimestamp")
    return dt.datetime.fromisoformat(text).timestamp() if text else None


def failure_cause(pod: Mapping[str, Any], log: Sequence[str]) -> str:
    """Why it ended, with advice."""
    status = pod.get("status", {})
    ended, (reason, message) = _terminated(pod), _waiting(pod)
    if status.get("phase") == "Failed" and status.get("reason"):
        return _with_cause(str(status["reason"]), str(status.get("message", "")))
    if ended.get("reason") in _CAUSES:
        return _with_cause(str(ended["reason"]), str(ended.get("message", "")))
    if ended:
        return f"exit status {ended.get('exitCode', '?')}: {failure.failure_cause(log)}"
    if reason in _TROUBLE:
        return f"{_TROUBLE[reason]} ({reason}{message and f': {message[:300]}'})"
    return f"its machine {pod.get('spec', {}).get('nodeName', '')} does not report its end".replace("  ", " ")


def _with_cause(reason: str, message: str) -> str:
    cause = _CAUSES.get(reason, "")
    detail = f"{reason}{message and f': {message[:300]}'}"
    return f"{cause} ({detail})" if cause else detail


def _waits_for(pod: Mapping[str, Any], reason: str, message: str) -> str:
    """Why it does not run yet; empty: it runs."""
    if pod.get("status", {}).get("phase", "Pending") != "Pending":
        return ""
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        return (
            f"waits for capacity in the cluster ({scheduled.get('reason')}: {str(scheduled.get('message', ''))[:300]})"
        )
    if reason in _TROUBLE:
        return f"{_TROUBLE[reason]} ({reason}{message and f': {message[:300]}'})"
    if not _container(pod):
        return "its Pod waits for a machine"
    return f"its container is being created ({reason or 'Pending'}); an image pull may take minutes"


def _why_deleted(pod: Mapping[str, Any]) -> str:
    target = _condition(pod, "DisruptionTarget")
    if target.get("status") == "True":
        return f"{target.get('reason')}: {str(target.get('message', ''))[:300]}"
    return "requested from outside"


def _container(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    found = pod.get("status", {}).get("containerStatuses") or ()
    return next((one for one in found if one.get("name") == ENGINE), {})


def _terminated(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    return _container(pod).get("state", {}).get("terminated") or {}


def _waiting(pod: Mapping[str, Any]) -> tuple[str, str]:
    """(reason, message) of a container that does not run yet."""
    found = _container(pod).get("state", {}).get("waiting") or {}
    return str(found.get("reason", "")), str(found.get("message", ""))


def _condition(pod: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    conditions: Iterator[Mapping[str, Any]] = iter(pod.get("status", {}).get("conditions") or ())
    return next((one for one in conditions if one.get("type") == name), {})


def _annotation(pod: Mapping[str, Any], name: str) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(name, ""))
