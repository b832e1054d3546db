"""Banners for missing processes, worst first: the problem, and what still works. Pure rules over one frame; pages show
the worst one."""

from collections.abc import Callable, Iterator

from controlplane.common.figures import seconds
from controlplane.live.dashboard.frame.listening import begins_anew
from controlplane.live.dashboard.frame.types import Banner, Frame
from fleet.counted import counted
from router.contract.redis.staleness import WORKER_DOWN_S

ROUTERS = {
    "late": ("warning", "No router reports. Requests may still be served; the numbers of requests are old."),
    "down": ("error", "The router is down: requests are not being served."),
    "none": ("error", "No router is running: requests are not being served."),
}
INACTIVE = "nothing is started, stopped or replaced. Running instances are still used and shown."
READ_ONLY = "The database is read-only: nothing can be changed, started or stopped. Requests are still routed."


def of(frame: Frame) -> list[Banner]:
    return [banner for rule in RULES for banner in rule(frame)]


def _banner(kind: str, level: str, text: str, since: str = "", age_s: float | None = None) -> Banner:
    ago = f"{since} {seconds(age_s)} ago" if age_s is not None else ""
    return {"kind": kind, "level": level, "text": text, "ago": ago}


def _database(frame: Frame) -> Iterator[Banner]:
    if is_read_only(frame):
        yield _banner("database", "error", READ_ONLY)


def is_read_only(frame: Frame) -> bool:
    """Return whether the database refuses writes, which is unknown without the control worker."""
    health = frame["health"]
    age_s = health["control_age_s"]
    return bool(health.get("read_only")) and age_s is not None and age_s <= WORKER_DOWN_S


def _returned(frame: Frame) -> Iterator[Banner]:
    """Yield a banner while reports are awaited; a sender is not judged yet if its silence began during a time without
    frames."""
    health = frame["health"]
    began, ended = health.get("gap", (0.0, 0.0))
    if not health.get("owed") or not frame["pools"]:
        return
    wait = "not everybody has reported yet. What is grey is as last known."
    if begins_anew(health):
        yield _banner("returned", "warning", f"Live state starts over: {wait}")
    elif ended - began > WORKER_DOWN_S:
        yield _banner("returned", "warning", f"Live state was away for {seconds(ended - began)} and is back: {wait}")


def _routers(frame: Frame) -> Iterator[Banner]:
    health = frame["health"]
    if frame["pools"] and health["routers_state"] in ROUTERS and "routers" not in health.get("owed", ()):
        level, text = ROUTERS[health["routers_state"]]
        yield _banner("router", level, text, "last report", health["routers_age_s"])


def _control(frame: Frame) -> Iterator[Banner]:
    health = frame["health"]
    age_s = health["control_age_s"]
    if "control" in health.get("owed", ()) or (age_s is not None and age_s <= WORKER_DOWN_S):
        return
    problem = "has not run" if age_s is None else "is down"
    yield _banner("control", "warning", f"The control worker {problem}: {INACTIVE}", "last seen", age_s)


def _samples(frame: Frame) -> Iterator[Banner]:
    if are_unsampled(frame):
        text = "The node worker is down: no instance is being sampled, so the numbers of instances are old."
        age_s = frame["health"]["samples_age_s"]
        yield _banner("node", "warning", f"{text} Requests are still routed.", "last sample", age_s)


def are_unsampled(frame: Frame) -> bool:
    """Return whether no instance is sampled although one should be."""
    health = frame["health"]
    age_s = health["samples_age_s"]
    if "samples" in health.get("owed", ()) or not health["samples_expected"]:
        return False
    return age_s is None or age_s > WORKER_DOWN_S


def _nodes(frame: Frame) -> Iterator[Banner]:
    columns = frame["nodes"]
    rows = zip(columns["name"], columns["silent_s"], columns["instances"], strict=True)
    silent = [(name, silent_s, there) for name, silent_s, there in rows if silent_s is not None and there]
    if silent and not are_unsampled(frame):
        said = (
            f"Node {name} does not report: the numbers of its {counted(there, 'instance')} are old."
            for name, _, there in silent
        )
        yield _banner("silent-nodes", "warning", " ".join(said), "last report", min(row[1] for row in silent))


RULES: tuple[Callable[[Frame], Iterator[Banner]], ...] = (_database, _returned, _routers, _control, _samples, _nodes)
