"""A frame is built once a second, by exactly one process."""

import json
import time
from itertools import pairwise
from typing import Any

import orjson
import pytest
import redis

from controlplane.live.dashboard import kept_row
from controlplane.live.dashboard.kept_row import pack
from controlplane.live.dashboard.step import current, latest, read, rows, step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from router.contract.redis import codec, redis_keys
from router.contract.redis.delivery import DeliveryLine, DeliveryLines

NOW = 1_700_000_000.2


def test_one_process_builds_the_frame_of_a_second(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis).write(NOW)
    assert step(live_redis, NOW, "worker") is not None
    assert step(live_redis, NOW + 0.5, "worker") is None
    assert step(live_redis, NOW + 1, "worker") is not None


def test_the_web_process_builds_no_frame_while_a_worker_runs(live_redis: redis.Redis) -> None:
    step(live_redis, NOW, "worker")
    assert step(live_redis, NOW + 1.4, "web") is None
    assert step(live_redis, NOW + 1.6, "web") is not None


def test_the_frame_is_published_stored_as_the_latest_and_added_to_the_history(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=3).write(NOW)
    with live_redis.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(redis_keys.FRAME)
        subscription.get_message(timeout=20)
        text = step(live_redis, NOW, "worker")
        message: Any = subscription.get_message(timeout=20)
    assert message["data"] == text
    frame = latest(live_redis)
    assert frame is not None
    assert frame["instances"]["id"] == ["demo-0", "demo-1", "demo-2"]
    (fields,) = [fields for _, fields in live_redis.xrange(redis_keys.FRAMES)]
    kept = kept_row.unpack(fields, loads=False)
    assert kept is not None
    assert kept_row.names(kept["ids"]) == ("demo-0", "demo-1", "demo-2")


def test_unreadable_values_are_counted_and_left_out(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=2).write(NOW)
    live_redis.set(redis_keys.instance_key("demo-1"), b'{"schema":99}')
    live_redis.set(redis_keys.router_key("router-1"), b"not json")
    live_redis.xadd(redis_keys.EVENTS, {"e": "broken"})
    inputs, _ = read(live_redis, NOW)
    assert (list(inputs.samples), inputs.routers, inputs.unreadable) == (["demo-0"], {}, 2)


@pytest.mark.parametrize(("age_s", "next_at"), [(10.0, NOW + 60), (10.1, None)])
def test_a_delivery_counts_down_only_while_it_is_judged(
    live_redis: redis.Redis, age_s: float, next_at: float | None
) -> None:
    line = DeliveryLine(
        delivery=1, policy="default", pools=("demo",), base="v1", candidate="v2", state="step", word="running", step="",
        next_at=NOW + 60, since=NOW,
    )  # fmt: skip
    live_redis.set(redis_keys.DELIVERIES, codec.encode(DeliveryLines(at=NOW - age_s, lines=(line,))))
    inputs, _ = read(live_redis, NOW)
    assert [one.next_at for one in inputs.deliveries] == [next_at]


def test_an_empty_redis_gives_an_empty_frame(live_redis: redis.Redis) -> None:
    assert step(live_redis, NOW, "web") is not None
    frame = latest(live_redis)
    assert frame is not None
    assert (frame["pools"], frame["counts"], frame["attention"]) == ({}, {}, [])


def test_a_viewer_gets_a_fresh_frame_even_if_none_was_built_before(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis).write(NOW)
    first = current(live_redis, NOW)
    assert first is not None
    assert (first["at"], first["built_by"]) == (NOW, "web")
    again = current(live_redis, NOW + 1)
    assert again is not None
    assert again["at"] == NOW


def test_a_viewer_gets_a_frame_while_another_process_builds_the_first_one(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=3).write(NOW)
    live_redis.set(redis_keys.frame_claim_key(int(NOW)), "worker")
    frame = current(live_redis, NOW)
    assert frame is not None
    assert frame["instances"]["id"] == ["demo-0", "demo-1", "demo-2"]
    assert latest(live_redis) is None


def test_values_that_are_not_numbers_are_written_as_unknown(live_redis: redis.Redis) -> None:
    fleet = FakeFleet(live_redis, size=1)
    fleet.write(NOW)
    broken = {**fleet.sample(0, "demo-0", NOW), "schema": 1, "kv_usage": float("nan")}
    live_redis.set(redis_keys.instance_key("demo-0"), json.dumps(broken))
    text = step(live_redis, NOW, "worker")
    assert text is not None
    assert orjson.loads(text)["instances"]["kv"] == [None]


def test_the_history_is_read_back_oldest_first(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis).write(NOW)
    for second in range(3):
        step(live_redis, NOW + second, "worker")
    live_redis.xadd(redis_keys.FRAMES, {"later": "than this release"})
    kept = rows(live_redis, time.time(), 60)  # entries are stamped by the server's clock
    assert [row["at"] for row in kept] == [NOW, NOW + 1, NOW + 2]


def empty_row(at: float) -> Any:
    return pack({"at": at, "classes": {}, "ids": "", "kv": b""})


@pytest.mark.parametrize("ends", ["now", "then"])
@pytest.mark.parametrize(
    ("seconds", "kept_s", "read", "every"),
    [(590, 700, 590, 1), (900, 950, 450, 2), (3_600, 3_650, 600, 6), (3_600, 600, 100, 6)],
)
def test_a_long_range_reads_no_more_rows_than_its_charts_show(
    live_redis: redis.Redis, seconds: int, kept_s: int, read: int, every: int, ends: str
) -> None:
    with live_redis.pipeline() as pipe:
        for second in range(-kept_s, 1 if ends == "now" else 90):
            pipe.xadd(redis_keys.FRAMES, empty_row(second), id=f"{int((NOW + second) * 1000)}-0")
        pipe.execute()
    kept = [row["at"] for row in rows(live_redis, NOW, seconds, end=None if ends == "now" else NOW)]
    assert (len(kept) // 2 * 2, kept[-1], {later - at for at, later in pairwise(kept)}) == (read, 0, {every})


def test_a_long_range_includes_what_was_stored_after_the_clock_was_read(live_redis: redis.Redis) -> None:
    live_redis.xadd(redis_keys.FRAMES, empty_row(7), id=f"{int((NOW + 2) * 1000)}-0")
    assert [row["at"] for row in rows(live_redis, NOW, 3_600)] == [7]
    assert rows(live_redis, NOW, 3_600, end=NOW) == []


@pytest.mark.parametrize("seconds", [60, 3_600])
def test_loads_are_read_only_if_requested(live_redis: redis.Redis, seconds: int) -> None:
    FakeFleet(live_redis, size=2).write(NOW)
    step(live_redis, NOW, "worker")
    with_loads, without = (rows(live_redis, time.time(), seconds, loads=loads)[0] for loads in (True, False))
    assert with_loads["loads"]["running"]
    assert {**with_loads, "loads": None} == {**without, "loads": None}
    assert "loads" not in without


def test_one_row_in_fifteen_seconds_is_stored_for_the_longest_range(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis, size=1).write(NOW)
    for second in range(32):
        step(live_redis, NOW + second, "worker")
    kept = [kept_row.unpack(fields, loads=False) for _, fields in live_redis.xrange(redis_keys.FRAMES_COARSE)]
    assert [row["at"] - NOW for row in kept if row] == [0, 10, 25]  # NOW is 5 s after a multiple of 15
    assert rows(live_redis, time.time(), 21_600) == [kept[-1]]  # both were written within the same slot
    assert rows(live_redis, time.time(), 60, end=time.time() - 30) == []
