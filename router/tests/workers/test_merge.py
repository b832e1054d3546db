"""Merge instances of the fleet with workers that register themselves."""

import base64
from typing import Any

from router.contract.redis.published import PublishedInstance
from router.tests.conftest import instance
from router.workers.discovery import Worker, merged, workers

ETCD = "http://etcd:2379"


def told(name: str, address: str, **changes: Any) -> PublishedInstance:
    return instance(name, f"http://{address}", connector="neuron", kv={"etcd": ETCD}, **changes)


def found(*given: Worker) -> dict[str, dict[str, Worker]]:
    return {ETCD: {worker.address: worker for worker in given}}


def test_an_entry_that_is_not_registered_gets_no_requests() -> None:
    (one, other) = merged([told("n-0", "a:1"), told("n-1", "b:2")], found(Worker("prefill", "a:1", 7)))
    assert (one.routable, other.routable) == (True, False)
    assert other.reason == "it is not registered in etcd"


def test_a_worker_without_an_entry_joins_with_its_role() -> None:
    (_, added) = merged([told("n-0", "a:1")], found(Worker("prefill", "a:1", 7), Worker("decode", "c:3", 9)))
    assert (added.id, added.url, added.epoch) == ("decode-c:3", "http://c:3", 9)
    assert (added.role, added.connector, added.routable) == ("decode", "neuron", True)


def test_until_etcd_has_answered_the_fleet_is_used_unchanged() -> None:
    entries = [told("n-0", "a:1")]
    assert merged(entries, {ETCD: None}) == entries
    assert merged(entries, {}) == entries


def test_entries_without_an_etcd_are_unchanged() -> None:
    plain = instance("demo-0", "http://x:1")
    assert merged([plain], found()) == [plain]


def test_keys_of_another_format_belong_to_another_owner() -> None:
    keys = ("/workers/decode/h/80", "/workers/cook/h/80", "/workers/decode/h", "/workers/decode/h/x")
    pairs = [{"key": base64.b64encode(key.encode()).decode(), "create_revision": "5"} for key in keys]
    assert workers({"kvs": pairs}) == {"h:80": Worker("decode", "h:80", 5)}
    assert workers({}) == {}
