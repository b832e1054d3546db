"""Entries of "Needs attention", worst first, each with its reason and start time. Pure rules over one frame.

A rule yields (severity, subject, reason, link); an entry keeps its `since` while subject and rule stay the same.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import quote

from router.contract.redis.staleness import WORKER_LATE_S

Json = Mapping[str, Any]
Found = tuple[int, str, str, str]  # severity (3 act now, 2 soon, 1 look), subject, reason, link

ERROR_SHARE = 0.05  # share of a class's requests in the window
ERRORS_FROM = 20  # minimum number of requests for a share
QUEUE_FROM = 8  # minimum number of waiting requests for "growing"
QUEUE_GROWTH = 1.5  # factor over the instance's average of the last minute
ACK_GRACE_S = 3.0  # time for a router to apply a newly published version
LISTED = 50

DELIVERY_SEVERITY = {"aborted": 3, "rolled_back": 3, "paused": 2, "holding": 2, "waiting": 2, "proposed": 1}
INSTANCE_SEVERITY = {"failed": 3, "unreachable": 3, "offline": 3, "stale": 2, "unseen": 1}


def find(now: float, frame: Json, previous: Json | None) -> list[dict[str, Any]]:
    since = {(item["rule"], item["subject"]): item["since"] for item in (previous or {}).get("attention", ())}
    found = [
        {
            "rule": rule,
            "severity": severity,
            "subject": subject,
            "reason": reason,
            "href": href,
            "since": since.get((rule, subject), round(now, 3)),
        }
        for rule, check in RULES.items()
        for severity, subject, reason, href in check(now, frame)
    ]
    found.sort(key=lambda item: (-item["severity"], item["since"], item["subject"]))
    return found[:LISTED]


def _rows(columns: Json, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(columns[name] for name in names), strict=True)


def instance_link(name: str) -> str:
    return f"/fleet/instances/{quote(name)}/"


def worker_gone(now: float, frame: Json) -> Iterator[Found]:
    health = frame["health"]
    age = health["samples_age_s"]
    if health["samples_expected"] and age is not None and age > WORKER_LATE_S:
        yield 3, "node worker", f"no instance has been sampled for {age:.0f} s: is its Celery worker down?", "/fleet/"
    age = health["control_age_s"]
    if age is not None and age > WORKER_LATE_S:
        yield 3, "control worker", f"has not run for {age:.0f} s: nothing is started, stopped or replaced", "/fleet/"


def node_silent(now: float, frame: Json) -> Iterator[Found]:
    for name, silent_s, there in _rows(frame["nodes"], "name", "silent_s", "instances"):
        if silent_s is None:
            continue
        link = f"/fleet/nodes/{quote(name)}/"
        since = f"the node has not reported for {silent_s:.0f} s"
        if there:
            held = f"{there} instance{'s' if there > 1 else ''} on it with samples of that age"
            yield 3, name, f"{since}: {held}; instances that do not answer are replaced on another node", link
        else:
            yield 1, name, f"{since} and holds no instance: forget it if it is gone for good", link


def router_gone(now: float, frame: Json) -> Iterator[Found]:
    for name, age, gone in _rows(frame["routers"], "id", "age_s", "gone"):
        if gone:
            yield 3, name, f"router has not reported for {age:.0f} s", "/live"
    if frame["pools"] and not frame["routers"]["id"]:
        yield 3, "routers", "no router is running", "/live"


def router_degraded(now: float, frame: Json) -> Iterator[Found]:
    for name, reasons, gone in _rows(frame["routers"], "id", "degraded", "gone"):
        if reasons and not gone:
            yield 2, name, "router is degraded: " + "; ".join(reasons), "/live"


def router_behind(now: float, frame: Json) -> Iterator[Found]:
    for name, versions, gone in _rows(frame["routers"], "id", "versions", "gone"):
        for pool, live in frame["policies"].items():
            if gone or now - (live["published_at"] or 0.0) < ACK_GRACE_S or versions.get(pool) == live["version"]:
                continue
            runs = f"runs v{versions[pool]}" if versions.get(pool) is not None else "runs no version"
            yield 2, name, f"{runs} in pool {pool}; v{live['version']} is live", f"/policies/{live['policy']}/"


def pool_empty(now: float, frame: Json) -> Iterator[Found]:
    ready = {pool for pool, state in _rows(frame["instances"], "pool", "state") if state == "ready"}
    for pool, known in frame["pools"].items():
        if known["wanted"] and pool not in ready:
            yield 3, pool, f"pool has no ready instance (0 of {known['wanted']})", "/fleet/"


def policy_missing(now: float, frame: Json) -> Iterator[Found]:
    for pool, known in frame["pools"].items():
        declared, live = known["policy"], frame["policies"].get(pool)
        if not declared or now - (known["changed_at"] or 0.0) < ACK_GRACE_S:
            continue
        link = f"/fleet/pools/{quote(pool)}/"
        if live is None or live["policy"] != declared:
            runs = "the built-in default" if live is None else f"{live['policy']} v{live['version']}"
            yield 2, pool, f"the pool's policy {declared} has no published version: routers run {runs}", link


def pool_link(name: str) -> str:
    return f"/fleet/pools/{quote(name)}/"


def change_halted(now: float, frame: Json) -> Iterator[Found]:
    for pool, known in frame["pools"].items():
        if known["halted"]:
            yield 3, pool, f"rollout is halted: {known['halted']}", pool_link(pool)


def scaling_advised(now: float, frame: Json) -> Iterator[Found]:
    for pool, said in frame["scaling"].items():
        if said["mode"] == "advisory" and said["advised"] != said["replicas"]:
            reason = f"the autoscaler would scale from {said['replicas']} to {said['advised']}: {said['why']}"
            yield 1, pool, reason, pool_link(pool)


def delivery_waits(now: float, frame: Json) -> Iterator[Found]:
    """Ended ones are in the frame for a few minutes."""
    for line in frame["deliveries"]:
        if line["state"] in DELIVERY_SEVERITY:
            reason = f"{line['word']}: {line['why']}" if line["why"] else line["word"]
            subject = f"{line['policy']} {line['base']} → {line['candidate']}"
            yield DELIVERY_SEVERITY[line["state"]], subject, reason, f"/deliveries/{line['delivery']}/"


def instance_down(now: float, frame: Json) -> Iterator[Found]:
    for name, status, reason in _rows(frame["instances"], "id", "status", "reason"):
        if status in INSTANCE_SEVERITY:
            yield INSTANCE_SEVERITY[status], name, f"{status}: {reason}" if reason else status, instance_link(name)


def instance_saturated(now: float, frame: Json) -> Iterator[Found]:
    for name, status, reason in _rows(frame["instances"], "id", "status", "reason"):
        if status == "saturated":
            yield 2, name, reason, instance_link(name)


def queue_growing(now: float, frame: Json) -> Iterator[Found]:
    for name, waiting, average in _rows(frame["instances"], "id", "waiting", "waiting_avg"):
        if waiting is not None and waiting >= QUEUE_FROM and waiting > QUEUE_GROWTH * (average or 0.0):
            reason = f"queue is growing: {waiting:.0f} waiting, {average:.0f} on average over the last minute"
            yield 2, name, reason, instance_link(name)


def class_failing(now: float, frame: Json) -> Iterator[Found]:
    for pool, classes in frame["classes"].items():
        for name, window in classes.items():
            if pool != "*" and window is not None:
                yield from _shares(pool, name, window)


def _shares(pool: str, name: str, window: Json) -> Iterator[Found]:
    for key, word, severity in (("errors", "failed", 3), ("refused", "were refused", 2)):
        if window["n"] >= ERRORS_FROM and window[key] > ERROR_SHARE * window["n"]:
            share = window[key] / window["n"]
            reason = (
                f"{share * 100:.0f} % of {name} requests {word} in the last {window['window_s']} s (n = {window['n']})"
            )
            yield severity, f"{pool} · {name}", reason, f"/requests/?pool={quote(pool)}&class={name}"


def unreadable(now: float, frame: Json) -> Iterator[Found]:
    count = frame["health"]["unreadable"]
    if count:
        yield 1, "Redis", f"{count} values are unreadable: a process of another release may be running", "/live"


RULES: dict[str, Callable[[float, Json], Iterator[Found]]] = {
    "worker_gone": worker_gone,
    "node_silent": node_silent,
    "router_gone": router_gone,
    "pool_empty": pool_empty,
    "policy_missing": policy_missing,
    "change_halted": change_halted,
    "scaling_advised": scaling_advised,
    "delivery_waits": delivery_waits,
    "instance_down": instance_down,
    "class_failing": class_failing,
    "router_behind": router_behind,
    "router_degraded": router_degraded,
    "instance_saturated": instance_saturated,
    "queue_growing": queue_growing,
    "unreadable": unreadable,
}
