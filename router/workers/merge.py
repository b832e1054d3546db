"""A pool's instances with what is registered in the etcd that they name. Pure."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from router.workers.etcd import Worker

Entry = Mapping[str, Any]


def etcd_of(entry: Entry) -> str:
    """The etcd that an entry of the fleet names; empty when it names none."""
    kv = entry.get("kv")
    named = kv.get("etcd") if isinstance(kv, Mapping) else None
    return named if isinstance(named, str) else ""


def merged(entries: list[Entry], registered: Mapping[str, Mapping[str, Worker] | None]) -> list[Entry]:
    """Entries that are not registered take no requests; workers that no entry knows are added.

    `registered`: by the name of an etcd, its workers by address; None while it has never answered.
    """
    made = [_checked(entry, registered.get(etcd_of(entry))) for entry in entries]
    known = {_address(entry) for entry in entries}
    for name in dict.fromkeys(etcd_of(entry) for entry in entries):
        pattern = next(entry for entry in entries if etcd_of(entry) == name)
        for worker in (registered.get(name) or {}).values():
            if worker.address not in known:
                made.append(_entry(pattern, worker))
    return made


def _address(entry: Entry) -> str:
    return urlsplit(str(entry.get("url") or "")).netloc


def _checked(entry: Entry, found: Mapping[str, Worker] | None) -> Entry:
    if found is None or _address(entry) in found or not entry.get("url"):
        return entry
    return {**entry, "routable": False, "reason": "it is not registered in etcd"}


def _entry(pattern: Entry, worker: Worker) -> Entry:
    return {
        **pattern,
        "id": f"{worker.role}-{worker.address}",
        "epoch": worker.epoch,
        "url": f"http://{worker.address}",
        "state": "ready",
        "routable": True,
        "reason": "registered in etcd",
        "role": worker.role,
    }
