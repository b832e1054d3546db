"""One dashboard frame: everything the Live page and the wall show, as columns, built from what Redis holds. Pure.

None means unknown and is never written as 0. Times are Unix seconds, latencies ms, KV shares 0–1.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.dashboard import attention, latency, refusals
from controlplane.dashboard.status import KV_SATURATED, ORDER, shown_status
from fleet.kinds import KINDS
from router.contract import sketch
from router.contract.codec import SCHEMA
from router.contract.pools import is_ephemeral
from router.contract.router_status import WINDOW_S
from router.contract.staleness import ROUTER_GONE_S
from router.policy.schema.document import upgrade_if_known
from router.policy.types import CLASSES

Json = Mapping[str, Any]

SIMULATED = frozenset(kind.name for kind in KINDS.values() if kind.simulated)
ALL_POOLS = "*"  # class figures over every pool; pool names have no asterisk
EVENTS_SHOWN = 30
RESTING = ("stopped", "failed", "starting")  # no process: a sample left over is of the one before
STARTED_WINDOW_S = 10  # what a Window's `started_10s` counts over
AVERAGE_S = 60.0  # time constant of the running average of waiting requests


@dataclass(frozen=True, slots=True)
class Inputs:
    """What one frame is built from, decoded."""

    fleets: Mapping[str, Json] = field(default_factory=dict)  # pool -> weir:fleet value
    samples: Mapping[str, Json] = field(default_factory=dict)  # instance -> weir:inst value
    routers: Mapping[str, Json] = field(default_factory=dict)  # router -> weir:router value
    policies: Mapping[str, Json] = field(default_factory=dict)  # pool -> weir:policy value
    events: Sequence[Json] = ()  # newest first
    scaling: Mapping[str, Json] = field(default_factory=dict)  # pool -> weir:scaling value
    nodes: Sequence[Json] = ()  # of the weir:nodes value
    control_at: float | None = None  # when the control worker last built a frame
    unreadable: int = 0  # values that could not be decoded


def build_frame(now: float, inputs: Inputs, previous: Json | None = None, built_by: str = "worker") -> dict[str, Any]:
    """The frame for `now`. `previous`, the frame before, gives rates and since when something needs attention."""
    pools = sorted(pool for pool in inputs.fleets if not is_ephemeral(pool))
    columns = _instances(now, inputs, pools, _by_id(previous))
    routers = _routers(now, inputs.routers)
    frame: dict[str, Any] = {
        "schema": SCHEMA,
        "at": round(now, 3),
        "built_by": built_by,
        "pools": {pool: _pool(inputs.fleets[pool]) for pool in pools},
        "ephemeral_pools": sum(is_ephemeral(pool) for pool in inputs.fleets),
        "counts": _counts(columns["status"]),
        "kv_threshold": KV_SATURATED,
        "instances": columns,
        "classes": _classes(now, inputs.routers, pools),
        "routers": routers,
        "nodes": _nodes(now, inputs.nodes, columns),
        "policies": {pool: _policy(now, pool, inputs) for pool in pools if pool in inputs.policies},
        "scaling": {pool: _scaling(inputs.scaling[pool]) for pool in pools if pool in inputs.scaling},
        "events": list(inputs.events[:EVENTS_SHOWN]),
        "health": _health(now, inputs, columns, routers),
    }
    frame["attention"] = attention.find(now, frame, previous)
    return frame


def _pool(fleet: Json) -> dict[str, Any]:
    instances = fleet.get("instances", ())
    return {
        "model": fleet.get("model"),
        "wanted": len(instances),
        "simulated": any(instance.get("kind") in SIMULATED for instance in instances),
        "policy": fleet.get("policy"),  # as declared; what routers run is in `policies`
        "changed_at": fleet.get("at"),
        "halted": fleet.get("halted") or "",
    }


def _scaling(value: Json) -> dict[str, Any]:
    return {name: value.get(name) for name in ("at", "mode", "replicas", "advised", "why")}


def _counts(statuses: Iterable[str]) -> dict[str, int]:
    counted = Counter(statuses)
    known = {word: counted.pop(word) for word in ORDER if word in counted}
    return known | dict(sorted(counted.items()))


SKETCHES = ("ttft", "tpot", "new_tokens", "reuse_gap")
COLUMNS = (
    "id", "pool", "state", "status", "reason", "age_s", "kv", "kv_blocks", "running", "waiting", "waiting_avg",
    "hit_rate", "tokens_s", "tokens_total", "epoch", "sampled_at", "matches", "node",
)  # fmt: skip


def _instances(now: float, inputs: Inputs, pools: Sequence[str], before: Mapping[str, Json]) -> dict[str, list[Any]]:
    rows = [
        _instance(now, pool, instance, inputs.samples.get(instance["id"]), before.get(instance["id"]))
        for pool in pools
        for instance in inputs.fleets[pool].get("instances", ())
    ]
    rows.sort(key=lambda row: (row["pool"], _natural(row["id"])))
    return {name: [row[name] for row in rows] for name in COLUMNS}


def _instance(now: float, pool: str, instance: Json, sample: Json | None, before: Json | None) -> dict[str, Any]:
    if instance["state"] in RESTING:
        sample = None
    status, why = shown_status(instance["state"], sample, now)
    figures = sample or {}
    waiting = figures.get("waiting")
    return {
        "id": instance["id"],
        "pool": pool,
        "state": instance["state"],
        "status": status,
        "reason": why or instance.get("reason") or "",
        "age_s": None if sample is None else round(max(0.0, now - sample["at"]), 1),
        "kv": _rounded(figures.get("kv_usage"), 3),
        "kv_blocks": figures.get("kv_blocks") or instance.get("kv_blocks"),
        "running": figures.get("running"),
        "waiting": waiting,
        "waiting_avg": _average(waiting, before),
        "hit_rate": _rounded(figures.get("hit_rate"), 3),
        "tokens_s": _tokens_per_second(sample, before),
        "tokens_total": figures.get("generation_tokens_total"),
        "epoch": figures.get("epoch"),
        "sampled_at": figures.get("at"),
        "matches": instance.get("matches", instance["state"] == "ready"),
        "node": instance.get("node") or "",
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _average(waiting: float | None, before: Json | None) -> float | None:
    """What the queue has been like in the last minute: a queue well above it is growing."""
    past = None if before is None else before["waiting_avg"]
    if waiting is None or past is None:
        return waiting if past is None else past
    return round(past + (waiting - past) / AVERAGE_S, 3)


def _tokens_per_second(sample: Json | None, before: Json | None) -> float | None:
    """From two samples of one epoch; the old figure while no newer sample has come, None after a restart."""
    if sample is None or before is None or before["epoch"] != sample.get("epoch"):
        return None
    total, past = sample.get("generation_tokens_total"), before["tokens_total"]
    if total is None or past is None or total < past:
        return None
    elapsed = sample["at"] - before["sampled_at"]
    return before["tokens_s"] if elapsed <= 0 else round((total - past) / elapsed, 1)


def _by_id(previous: Json | None) -> dict[str, Json]:
    if previous is None:
        return {}
    columns = previous["instances"]
    keys = ("waiting_avg", "tokens_s", "tokens_total", "epoch", "sampled_at")
    return {name: {key: columns[key][i] for key in keys} for i, name in enumerate(columns["id"])}


def _natural(name: str) -> tuple[str, int]:
    """demo-2 before demo-10."""
    stem = name.rstrip("0123456789")
    digits = name[len(stem) :]
    return stem, int(digits) if digits else -1


def _alive(now: float, routers: Mapping[str, Json]) -> list[Json]:
    return [router for router in routers.values() if now - router["at"] <= ROUTER_GONE_S]


def _classes(now: float, routers: Mapping[str, Json], pools: Sequence[str]) -> dict[str, dict[str, Any]]:
    alive = _alive(now, routers)
    by_pool = {pool: _class_figures(alive, (pool,)) for pool in pools}
    return {ALL_POOLS: _class_figures(alive, pools), **by_pool} if len(pools) > 1 else by_pool


def _class_figures(routers: Sequence[Json], pools: Sequence[str]) -> dict[str, Any]:
    """Per class; None for a class that no router has said anything about."""
    figures: dict[str, Any] = {}
    for name in CLASSES:
        windows = [
            window
            for router in routers
            for pool in pools
            if (window := router.get("classes", {}).get(pool, {}).get(name)) is not None
        ]
        figures[name] = _window(windows) if routers else None
    return figures


def _window(windows: Sequence[Json]) -> dict[str, Any]:
    """Routers' windows added up: counts over WINDOW_S, rate in requests per second, percentiles in ms, tokens and s."""
    merged = {name: sketch.merge(window.get(name) or {} for window in windows) for name in SKETCHES}
    ttft, tpot = merged["ttft"], merged["tpot"]
    hits = [window.get("hit_share") or {"n": 0, "sum": 0.0} for window in windows]
    asked = sum(hit["n"] for hit in hits)
    return {
        "n": sum(window["n"] for window in windows),
        "rate": round(sum(window["started_10s"] for window in windows) / STARTED_WINDOW_S, 2),
        "errors": sum(window["error"] for window in windows),
        "refused": sum(window["refused"] for window in windows),
        "refused_why": refusals.words(window.get("refusals") or {} for window in windows),
        "cancelled": sum(window["cancelled"] for window in windows),
        "ttft": latency.percentiles(ttft),
        "ttft_n": sketch.count(ttft),
        "tpot": latency.percentiles(tpot),
        "tpot_n": sketch.count(tpot),
        "new_tokens": latency.percentiles(merged["new_tokens"]),
        "reuse_gap": latency.percentiles(merged["reuse_gap"]),
        "hit_share": round(sum(hit["sum"] for hit in hits) / asked, 3) if asked else None,
        "window_s": WINDOW_S,
    }


def _routers(now: float, routers: Mapping[str, Json]) -> dict[str, list[Any]]:
    rows = [routers[name] for name in sorted(routers)]
    ages = [round(max(0.0, now - row["at"]), 1) for row in rows]
    return {
        "id": [row["id"] for row in rows],
        "url": [row.get("url") for row in rows],
        "age_s": ages,
        "gone": [age > ROUTER_GONE_S for age in ages],
        "versions": [{pool: served.get("version") for pool, served in row.get("pools", {}).items()} for row in rows],
        "degraded": [list(row.get("degraded", ())) for row in rows],
    }


def _nodes(now: float, nodes: Sequence[Json], instances: Json) -> dict[str, list[Any]]:
    """`silent_s`: since its last word, None while it reports."""
    there = Counter(instances["node"])
    return {
        "name": [node["name"] for node in nodes],
        "silent_s": [None if node["missed_at"] is None else round(max(0.0, now - node["missed_at"])) for node in nodes],
        "instances": [there[node["name"]] for node in nodes],
    }


def _policy(now: float, pool: str, inputs: Inputs) -> dict[str, Any]:
    live = inputs.policies[pool]
    alive = _alive(now, inputs.routers)
    running = [router.get("pools", {}).get(pool, {}).get("version") for router in alive]
    document = live.get("document") or {}
    return {
        "policy": live.get("policy"),
        "version": live.get("version"),
        "published_at": live.get("published_at"),
        "strategy": upgrade_if_known(document).get("strategy", {}).get("name"),
        "classes": document.get("classes") or {},
        "routers": len(running),
        "acknowledged": sum(version == live.get("version") for version in running),
    }


def _health(now: float, inputs: Inputs, columns: Json, routers: Json) -> dict[str, Any]:
    """Ages by which the page tells a dead worker from a dead router; None where nothing was ever heard."""
    serving = [age for age, state in zip(columns["age_s"], columns["state"], strict=True) if state == "ready"]
    known = [age for age in serving if age is not None]
    return {
        "samples_age_s": min(known) if known else None,
        "samples_expected": len(serving),
        "control_age_s": None if inputs.control_at is None else round(max(0.0, now - inputs.control_at), 1),
        "routers_alive": routers["gone"].count(False),
        "routers_known": len(routers["gone"]),
        "unreadable": inputs.unreadable,
    }
