"""Two vLLM behind the router: what happens to them, and what operators see of it."""

import contextlib
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from controlplane.tests.engines.fleet import LONG, PATIENCE_S, Fleet

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]


def test_a_repeated_prompt_is_read_from_the_cache_and_the_page_shows_the_hits(fleet: Fleet) -> None:
    first, usage, headers = fleet.ask(LONG)
    assert fleet.cached(usage) == 0
    again, usage, _ = fleet.ask(LONG)
    assert again == first
    assert fleet.cached(usage) > 1500
    name = headers["x-weir-instance"]
    fleet.until(lambda: (fleet.one(name)["sample"] or {})["cached_by_source"].get("device", 0) > 1500, "the hits", 60)
    assert "Hits, device" in fleet.page(f"/fleet/instances/{name}/")


def test_the_content_of_the_kv_cache_is_visible_while_requests_run(fleet: Fleet) -> None:
    used = lambda: [row["sample"] and row["sample"]["kv_usage"] for row in fleet.instances().values()]  # noqa: E731
    seen = lambda: any(usage and usage > 0.01 for usage in used())  # noqa: E731
    enough = threading.Event()

    def ask() -> None:
        """A request takes some seconds; a busy machine may take no sample meanwhile."""
        while not enough.is_set():
            fleet.ask("usage " + LONG, 2000)

    with ThreadPoolExecutor(1) as clients:
        asking = clients.submit(ask)
        try:
            fleet.until(lambda: seen() or asking.done(), "KV in use", 120)
        finally:
            enough.set()
        asking.result(PATIENCE_S)


def test_a_suspended_engine_is_distinguished_from_a_busy_one_removed_from_routing_and_comes_back(fleet: Fleet) -> None:
    pid = fleet.kill("tiny-0", signal.SIGSTOP)
    try:
        out = fleet.until(lambda: fleet.one("tiny-0")["state"] == "unreachable", "tiny-0 out of routing", 60)
        assert "suspended" in fleet.one("tiny-0")["reason"]
        assert fleet.ask("while one sleeps", 1)[2]["x-weir-instance"] == "tiny-1"
    finally:
        # On a machine so busy that ten seconds have passed, the engine has been replaced instead.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    fleet.note("SIGSTOP of an engine: out of routing", out)
    fleet.note("SIGCONT: in routing again", fleet.until_ready("tiny-0"))


def test_the_engines_outlive_the_celery_worker_and_are_taken_over(fleet: Fleet) -> None:
    pids = {name: row["pid"] for name, row in fleet.instances().items()}
    worker = fleet.weir.children()["control"]
    os.kill(worker, signal.SIGKILL)
    assert fleet.ask("nobody looks after you", 4)[0]
    back = fleet.until(lambda: fleet.weir.children().get("control", worker) != worker, "another worker", 60)
    killed_at = time.time()
    fresh = lambda: all((row["sample"] or {"at": 0})["at"] > killed_at for row in fleet.instances().values())  # noqa: E731
    fleet.note("kill -9 of the Celery worker: watched again", back + fleet.until(fresh, "new samples", 120))
    assert {name: row["pid"] for name, row in fleet.instances().items()} == pids


def test_a_killed_engine_is_replaced_and_its_cache_content_is_forgotten(fleet: Fleet) -> None:
    name = fleet.ask("held by one " + LONG)[2]["x-weir-instance"]
    epoch = fleet.one(name)["epoch"]
    fleet.kill(name)
    out = fleet.until(lambda: fleet.one(name)["state"] != "ready", f"{name} out of routing", 60)
    fleet.note("kill -9 of an engine: out of routing", out)
    assert fleet.ask("the other one answers", 4)[2]["x-weir-instance"] != name
    fleet.note("kill -9 of an engine: replaced", fleet.until(fleet.is_replaced(name, epoch), f"another {name}"))
    fleet.only(name)
    _, usage, _ = fleet.ask("held by one " + LONG)
    assert fleet.cached(usage) == 0
    receipt = fleet.rest("GET", "/receipts?limit=1")[0]
    newest = (receipt["receipts"] if isinstance(receipt, dict) else receipt)[0]
    assert newest["predicted_cached"] == 0
    fleet.everybody()
