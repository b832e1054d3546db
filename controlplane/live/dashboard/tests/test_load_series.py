"""The charts of an instance, a pool and a node: stored values of frames, summed over the chosen instances."""

from typing import Any

import pytest
import redis
from django.test import Client

from controlplane.live.dashboard import load_series
from controlplane.live.dashboard.kept_row import kv_bytes
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet

NOW = 10_000.0


def row(at: float, kv: dict[str, float | None], **loads: Any) -> dict[str, Any]:
    kept = {"at": at, "classes": {}, "ids": "\n".join(kv), "kv": kv_bytes(kv.values())}
    return {**kept, "loads": loads} if loads else kept


FRAME: Any = {
    "pools": {"demo": {"kv_limit": 0.8}},
    "instances": {"id": ["a", "b", "c"], "pool": ["demo", "demo", "chat"], "node": ["n", "m", "m"]},
    "events": [{"at": NOW, "pools": ["chat"]}, {"at": NOW, "pools": []}],
}


def drawn(of: str, name: str, *rows: dict[str, Any]) -> Any:
    return load_series.series(FRAME, load_series.chosen(FRAME, of, name), rows, NOW, 300)  # type: ignore[arg-type]


def test_requests_are_summed_and_shares_averaged_over_the_instances_of_a_pool() -> None:
    kv = {"a": 0.2, "b": 0.4, "c": 1.0}
    load = drawn("pool", "demo", row(NOW, kv, running=[1, 2, 9], waiting=[0, 3, 9], hits=[0.5, None, 1.0]))["load"]
    assert load == {"kv": [0.3], "kv_highest": [0.4], "running": [3], "waiting": [3], "hits": [0.5]}


def test_unreported_figures_and_those_missing_in_older_rows_are_unknown() -> None:
    load = drawn("instance", "a", row(NOW - 20, {"a": None, "b": 1.0}), row(NOW, {"a": 0.5}))["load"]
    assert load["kv"] == [None, None, 0.5]
    assert load["running"] == [None, None, None]


def test_a_page_has_the_limit_and_the_events_of_its_only_pool() -> None:
    assert drawn("instance", "a")["kv_limit"] == 0.8
    assert len(drawn("instance", "a")["events"]) == 1
    of_two = drawn("node", "m", row(NOW, {"a": 0.1, "b": 0.2, "c": 0.4}))
    assert (of_two["kv_limit"], of_two["ttft"], of_two["load"]["kv_highest"]) == (None, {}, [0.4])


def test_an_unknown_name_is_a_chart_without_values() -> None:
    assert drawn("pool", "gone", row(NOW, {"a": 0.5}))["load"]["kv"] == [None]


def test_the_page_gets_what_is_stored_about_the_fleet(
    vera_client: Client, live_redis: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.live.dashboard.history.SAMPLE_STALE_S", 600.0)  # however slow the machine is
    FakeFleet(live_redis, size=3).write()
    found = vera_client.get("/live/series?of=instance&name=demo-1&range=900").json()
    assert found["bin_s"] == 3
    assert [len(found["load"][key]) for key in ("kv", "running", "hits")] == [1, 1, 1]
    assert 0 < found["load"]["kv"][0] < 1
    assert set(found["ttft"]) == {"warm", "medium", "heavy"}


@pytest.mark.parametrize("query", ["", "?of=fleet&name=x", "?name=demo-1"])
def test_only_instances_pools_and_nodes_have_charts(vera_client: Client, query: str) -> None:
    assert vera_client.get(f"/live/series{query}").status_code == 404


def test_without_redis_the_answer_says_so(vera_client: Client, redis_away: None) -> None:
    answer = vera_client.get("/live/series?of=pool&name=demo")
    assert (answer.status_code, answer.json()) == (503, {"trouble": "redis"})
