"""What a share shows of a frame: the numbers, without names of people, links into the product and other pools. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from controlplane.dashboard.frame.types import Columns, Frame, HistoryRow
from controlplane.dashboard.kept_row import only

Value = TypeVar("Value")


def frame_of(frame: Frame, pool: str) -> Frame:
    """`pool`: empty for all of them."""
    shown: Frame = {
        **frame,
        "events": [{**event, "actor": ""} for event in frame["events"]],
        "attention": [{**item, "href": ""} for item in frame["attention"]],
        "savings": {name: {**saving, "href": ""} for name, saving in frame["savings"].items()},
        "deliveries": [{**delivery, "ended_by": ""} for delivery in frame["deliveries"]],
    }
    return _of_pool(shown, pool) if pool else shown


def _of_pool(frame: Frame, pool: str) -> Frame:
    """Leaves out lists that may name other pools, and everything that concerns several pools."""
    instances = _rows(frame["instances"], [i for i, name in enumerate(frame["instances"]["pool"]) if name == pool])
    return {  # every field by name, so that a new one is not shown by accident
        "schema": frame["schema"],
        "at": frame["at"],
        "built_by": frame["built_by"],
        "kv_threshold": frame["kv_threshold"],
        "pools": _one(frame["pools"], pool),
        "ephemeral_pools": 0,
        "counts": {word: instances["status"].count(word) for word in frame["counts"]},
        "instances": instances,
        "classes": _one(frame["classes"], pool),
        "totals": _one(frame["totals"], pool),
        "slo": _one(frame["slo"], pool),
        "flow": _one(frame["flow"], pool),
        "routers": _rows(frame["routers"], []),
        "nodes": _rows(frame["nodes"], []),
        "policies": _one(frame["policies"], pool),
        "scaling": _one(frame["scaling"], pool),
        "savings": _one(frame["savings"], pool),
        "aliases": _one(frame["aliases"], pool),
        "tiers": _one(frame["tiers"], pool),
        "deliveries": [one for one in frame["deliveries"] if one["pools"] == [pool]],
        "events": [one for one in frame["events"] if one["pools"] == [pool]],
        "attention": [one for one in frame["attention"] if one["pools"] == [pool]],
        "health": {**frame["health"], "late_steps": []},
    }


def history_of(rows: Iterable[HistoryRow], frame: Frame) -> list[HistoryRow]:
    """The rows with the pools and instances of a frame that a share shows."""
    pools, ids = frame["pools"].keys(), set(frame["instances"]["id"])
    shown: list[HistoryRow] = []
    for row in rows:
        names, kv = only(row, ids)
        classes = {name: classes for name, classes in row["classes"].items() if name in pools}
        shown.append({"at": row["at"], "classes": classes, "ids": names, "kv": kv})
    return shown


def _one(by_pool: Mapping[str, Value], pool: str) -> dict[str, Value]:
    return {pool: by_pool[pool]} if pool in by_pool else {}


def _rows(columns: Columns, places: Sequence[int]) -> Columns:
    return {name: [column[i] for i in places] for name, column in columns.items()}
