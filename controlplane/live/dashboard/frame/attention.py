"""Entries of "Needs attention", worst first, each with its reason and start time. Pure rules over one frame.

An entry keeps its `since` while subject and rule stay the same.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

from controlplane.common.figures import ms, seconds
from controlplane.live.dashboard.frame import slo
from controlplane.live.dashboard.frame.banners import is_read_only
from controlplane.live.dashboard.frame.listening import begins_anew
from controlplane.live.dashboard.frame.types import AttentionItem, ClassWindow, Columns, Frame, PoolSummary
from fleet.counted import counted, percent
from router.contract.redis.staleness import WORKER_DOWN_S, WORKER_LATE_S


class AttentionEntry(NamedTuple):
    severity: int  # 3: act now, 2: soon, 1: have a look
    subject: str
    reason: str
    href: str
    pools: tuple[str, ...] = ()  # empty if it concerns the whole fleet


ERROR_SHARE = 0.05  # share of a class's requests in the window
ERRORS_FROM = 20  # minimum number of requests for a share
QUEUE_FROM = 8  # minimum number of waiting requests for "growing"
QUEUE_GROWTH = 1.5  # factor over the instance's average of the last minute
ACK_GRACE_S = 3.0  # time for a router to apply a newly published version
LISTED = 50
TYPES = re.compile(r"\b(?:[A-Z][a-z]+){2,}: ")  # names of exceptions, which mean nothing to an operator

DELIVERY_SEVERITY = {"aborted": 3, "rolled_back": 3, "paused": 2, "holding": 2, "waiting": 2, "proposed": 1}
INSTANCE_SEVERITY = {"failed": 3, "unreachable": 3, "offline": 3, "stale": 2, "unseen": 1}


def find(now: float, frame: Frame, previous: Frame | None) -> list[AttentionItem]:
    since = {(item["rule"], item["subject"]): item["since"] for item in (previous["attention"] if previous else ())}
    found: list[AttentionItem] = [
        {
            "rule": rule,
            "severity": entry.severity,
            "subject": entry.subject,
            "reason": entry.reason,
            "href": entry.href,
            "pools": list(entry.pools),
            "since": since.get((rule, entry.subject), round(now, 3)),
        }
        for rule, check in RULES.items()
        for entry in check(now, frame)
    ]
    found.sort(key=lambda item: (-item["severity"], item["since"], item["subject"]))
    return found[:LISTED]


def _rows(columns: Columns, *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(columns[name] for name in names), strict=True)


def instance_link(name: str) -> str:
    return f"/fleet/instances/{quote(name)}/"


def pool_link(name: str) -> str:
    return f"/fleet/pools/{quote(name)}/"


def requests_link(pool: str, name: str, which: str) -> str:
    return f"/requests/?pool={quote(pool)}&class={name}&{which}"


def worker_gone(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    health = frame["health"]
    owed = health.get("owed", ())
    if "samples" not in owed:
        age = health["samples_age_s"] if health["samples_expected"] else None
        yield from _silent("node worker", age, "no instance is sampled")
    if "control" not in owed:
        yield from _silent("control worker", health["control_age_s"], "nothing is started, stopped or replaced")


def _silent(worker: str, age: float | None, effect: str) -> Iterator[AttentionEntry]:
    """Yield an entry for a worker: on a busy machine it may be late; after a longer silence it counts as down."""
    if age is not None and age > WORKER_DOWN_S:
        yield AttentionEntry(3, worker, f"down: no heartbeat for {seconds(age)}; {effect}", "/fleet/")
    elif age is not None and age > WORKER_LATE_S:
        yield AttentionEntry(1, worker, f"late: no heartbeat for {seconds(age)}", "/fleet/")


def step_late(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    """Yield late steps, unless the control worker is missing or cannot write, in which case every step is late."""
    age = frame["health"]["control_age_s"]
    if age is not None and age > WORKER_DOWN_S:
        return
    if is_read_only(frame):
        yield AttentionEntry(3, "database", "read-only; nothing can be changed, started or stopped", "/fleet/nodes/")
        return
    for late in frame["health"]["late_steps"]:
        reason = f"late: last done {seconds(late['age_s'])} ago, due every {seconds(late['every_s'])}"
        error = TYPES.sub("", late["error"])
        yield AttentionEntry(3, late["what"], f"{reason}: {error}" if error else reason, "/fleet/nodes/")


def node_silent(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for name, silent_s, there in _rows(frame["nodes"], "name", "silent_s", "instances"):
        if silent_s is None:
            continue
        link = f"/fleet/nodes/{quote(name)}/"
        since = f"no heartbeat from the node for {seconds(silent_s)}"
        if there:
            held = f"{counted(there, 'instance')} on it with samples of that age"
            yield AttentionEntry(
                3, name, f"{since}: {held}; instances that do not answer are replaced on another node", link
            )
        else:
            yield AttentionEntry(1, name, f"{since}, and it holds no instance: forget it if it is gone for good", link)


def router_gone(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for name, age, gone in _rows(frame["routers"], "id", "age_s", "gone"):
        if gone:
            yield AttentionEntry(3, name, f"no heartbeat from router for {seconds(age)}", "/live")
    if frame["pools"] and not frame["routers"]["id"] and "routers" not in frame["health"].get("owed", ()):
        yield AttentionEntry(3, "routers", "no router is running", "/live")


def router_degraded(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    """Yield degraded routers, unless samples are still awaited, because routers then wait for them, too."""
    awaited = "samples" in frame["health"].get("owed", ())
    for name, reasons, gone in _rows(frame["routers"], "id", "degraded", "gone"):
        if reasons and not gone and not awaited:
            yield AttentionEntry(2, name, "router is degraded: " + "; ".join(reasons), "/live")


def router_behind(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for name, versions, gone in _rows(frame["routers"], "id", "versions", "gone"):
        for pool, live in frame["policies"].items():
            if gone or now - (live["published_at"] or 0.0) < ACK_GRACE_S or versions.get(pool) == live["version"]:
                continue
            runs = f"runs v{versions[pool]}" if versions.get(pool) is not None else "runs no version"
            yield AttentionEntry(
                2, name, f"{runs} in pool {pool}; v{live['version']} is live", f"/policies/{live['policy']}/", (pool,)
            )


def pool_empty(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    ready = {pool for pool, state in _rows(frame["instances"], "pool", "state") if state == "ready"}
    for pool, known in frame["pools"].items():
        if known["wanted"] and pool not in ready and not known.get("at_zero"):
            yield _empty_pool(pool, known)


def _empty_pool(pool: str, known: PoolSummary) -> AttentionEntry:
    if known.get("observed"):
        reason = f"no answer from its {counted(known['wanted'], 'engine')}, which Weir only observes"
        return AttentionEntry(2, pool, reason, pool_link(pool), (pool,))
    return AttentionEntry(3, pool, f"pool has no ready instance (0 of {known['wanted']})", pool_link(pool), (pool,))


def policy_missing(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for pool, known in frame["pools"].items():
        declared, live = known["policy"], frame["policies"].get(pool)
        if known.get("observed") or not declared or now - (known["changed_at"] or 0.0) < ACK_GRACE_S:
            continue
        link = pool_link(pool)
        if live is None and begins_anew(frame["health"]):
            continue
        if live is None or live["policy"] != declared:
            runs = "the built-in default" if live is None else f"{live['policy']} v{live['version']}"
            yield AttentionEntry(
                2, pool, f"the pool's policy {declared} has no published version: routers run {runs}", link, (pool,)
            )


def change_halted(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for pool, known in frame["pools"].items():
        if known["halted"]:
            yield AttentionEntry(3, pool, f"rollout is halted: {known['halted']}", pool_link(pool), (pool,))


def scaling_advised(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for pool, said in frame["scaling"].items():
        if said["mode"] == "advisory" and said["advised_size"] != said["size"]:
            reason = f"the autoscaler would scale from {said['size']} to {said['advised_size']}: {said['why']}"
            yield AttentionEntry(1, pool, reason, pool_link(pool), (pool,))


def delivery_waits(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    """Yield deliveries that wait; ended deliveries stay in the frame for a few minutes."""
    for line in frame["deliveries"]:
        if line["state"] in DELIVERY_SEVERITY:
            by = f" by {line['ended_by']}" if line["ended_by"] else ""
            only = f"{line['pools'][0]}: " if len(line["pools"]) == 1 else ""
            why = line["why"].removeprefix(only)  # the entry already names the pool
            reason = f"{line['word']}{by}: {why}" if why else f"{line['word']}{by}"
            subject = f"{line['policy']} {line['base']} → {line['candidate']}"
            severity = 1 if by else DELIVERY_SEVERITY[line["state"]]  # the person who ended the delivery already knows
            link = f"/deliveries/{line['delivery']}/"
            yield AttentionEntry(severity, subject, reason, link, tuple(line["pools"]))


def instance_down(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    """Yield instances that are down, except those of an observed pool without any ready engine, which `pool_empty`
    covers."""
    silent = {entry.subject for entry in pool_empty(now, frame) if frame["pools"][entry.subject].get("observed")}
    unsampled = "samples" in frame["health"].get("owed", ())
    for name, pool, status, reason in _rows(frame["instances"], "id", "pool", "status", "reason"):
        if status == "unseen" and unsampled:
            continue
        if status in INSTANCE_SEVERITY and pool not in silent:
            text = f"{status}: {reason}" if reason else status
            yield AttentionEntry(INSTANCE_SEVERITY[status], name, text, instance_link(name), (pool,))


def instance_saturated(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for name, pool, status, reason in _rows(frame["instances"], "id", "pool", "status", "reason"):
        if status == "saturated":
            yield AttentionEntry(2, name, reason, instance_link(name), (pool,))


def queue_growing(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for name, pool, waiting, average in _rows(frame["instances"], "id", "pool", "waiting", "waiting_avg"):
        if waiting is not None and waiting >= QUEUE_FROM and waiting > QUEUE_GROWTH * (average or 0.0):
            reason = f"queue is growing: {waiting:.0f} waiting, {average:.0f} on average over the last minute"
            yield AttentionEntry(2, name, reason, instance_link(name), (pool,))


def class_failing(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for pool, classes in frame["classes"].items():
        for name, window in classes.items():
            if pool != "*" and window is not None:
                yield from _shares(pool, name, window)


def _shares(pool: str, name: str, window: ClassWindow) -> Iterator[AttentionEntry]:
    for count, outcome, word, severity in (
        (window["errors"], "error", "failed", 3),
        (window["refused"], "refused", "were refused", 2),
    ):
        n = window["n"] - window["client_errors"]
        if n >= ERRORS_FROM and count > ERROR_SHARE * n:
            reason = f"{percent(count / n)} of {name} requests {word} in the last {window['window_s']} s (n = {n})"
            link = requests_link(pool, name, f"outcome={outcome}")
            yield AttentionEntry(severity, f"{pool} · {name}", reason, link, (pool,))


def slo_missed(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    for pool, classes in frame["slo"].items():
        for name, miss in classes.items():
            if miss["listed"]:
                limit, window = frame["pools"][pool]["slo"][name], frame["classes"][pool].get(name)
                reason = _slo_reason(window, limit)
                slow = requests_link(pool, name, "slower_than_slo=true&sort=ttft")
                yield AttentionEntry(2, f"{pool} · {name}", reason, slow, (pool,))


def _slo_reason(window: ClassWindow | None, limit: float) -> str:
    """Describe the SLO miss with the window of its verdict, like the class's figures on every page."""
    if window is None or window["ttft_n"] < slo.LOW_N:
        return f"TTFT p90 was above SLO {ms(limit)}; too few requests since to tell"
    p90 = (
        f"TTFT p90 {ms(window['ttft'][1], limit)} over {window['window_s']} s, SLO {ms(limit)} (n = {window['ttft_n']})"
    )
    return p90 if slo.missed(window, limit) else f"{p90}: met again, for less than {slo.HOLD_S:.0f} s"


def unreadable(now: float, frame: Frame) -> Iterator[AttentionEntry]:
    count = frame["health"]["unreadable"]
    if count:
        yield AttentionEntry(
            1, "Redis", f"{count} values are unreadable: a process of another release may be running", "/live"
        )


RULES: dict[str, Callable[[float, Frame], Iterator[AttentionEntry]]] = {
    rule.__name__: rule
    for rule in (
        *(worker_gone, step_late, node_silent, router_gone, pool_empty, policy_missing),
        *(change_halted, scaling_advised, delivery_waits, instance_down, class_failing, slo_missed),
        *(router_behind, router_degraded, instance_saturated, queue_growing, unreadable),
    )
}
