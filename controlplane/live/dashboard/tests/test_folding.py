"""The compressed form in which a frame is published."""

import random
from typing import Any

import orjson
import pytest
import redis

from controlplane.live.dashboard.frame import types
from controlplane.live.dashboard.frame.build import SCHEMA, FrameInputs, build_frame
from controlplane.live.dashboard.frame.types import Frame
from controlplane.live.dashboard.step import latest, read, step
from controlplane.live.dashboard.tests.fake_fleet import FakeFleet
from router.contract.redis import redis_keys

NOW = 1_700_000_000.2
POOLS = 10


def frame_of(columns: dict[str, list[Any]]) -> Frame:
    rows = len(next(iter(columns.values())))
    unknown = {name: [None] * rows for name in types.CARRIED}
    return {
        **build_frame(NOW, FrameInputs()),
        "instances": {"id": [f"a-{i}" for i in range(rows)], **unknown, **columns},
    }


def through_redis(frame: Frame) -> dict[str, list[Any]]:
    return types.unfolded(orjson.loads(orjson.dumps(types.folded(frame))))["instances"]


DRAWN = random.Random(7)


@pytest.mark.parametrize(
    "column",
    [
        [],
        ["ready"],
        ["ready"] * 9,
        ["stale", *["ready"] * 9],
        [*["ready"] * 9, "stale"],
        [None, 0.25, None, None, True, None, None, None],
        list(range(types.MOST)) * 3,
        list(range(types.MOST + 1)) * 3,
        [DRAWN.random() for _ in range(50)],
        [DRAWN.choice(["ä", '"', "\\"]) for _ in range(50)],
    ],
)
def test_a_reader_restores_every_column(column: list[Any]) -> None:
    assert through_redis(frame_of({"reason": column}))["reason"] == column


def test_a_column_of_few_values_is_one_letter_per_row_and_the_last_one_repeats() -> None:
    folded = types.folded(frame_of({"status": ["ready", "stale", "ready", "ready", "ready", "ready"]}))
    assert folded["instances"]["status"] == {"of": ["ready", "stale"], "at": "010"}


def test_fields_needed_only_for_the_next_frame_are_not_published_and_are_restored(live_redis: redis.Redis) -> None:
    fleet = FakeFleet(live_redis)
    for second in range(3):
        fleet.write(NOW + second)
        step(live_redis, NOW + second, "worker")
    published, (_, previous) = latest(live_redis), read(live_redis, NOW + 3)
    assert published is not None
    assert previous is not None
    assert not {*types.CARRIED} & {*published["instances"]}
    assert published["instances"]["tokens_s"] == [120.0] * 8
    assert previous["instances"]["sampled_at"] == [NOW + 2] * 8


def test_values_carried_from_another_frame_are_unknown(live_redis: redis.Redis) -> None:
    FakeFleet(live_redis).write(NOW)
    step(live_redis, NOW, "worker")
    live_redis.set(redis_keys.FRAMES_CARRIED, orjson.dumps({"at": NOW - 1, "epoch": [1]}))
    _, previous = read(live_redis, NOW + 1)
    assert previous is not None
    assert previous["instances"]["epoch"] == [None] * 8


def test_the_name_of_the_channel_contains_the_schema_of_the_frame() -> None:
    assert redis_keys.FRAME.endswith(f":{SCHEMA}")


def test_a_frame_of_1000_instances_in_ten_pools_has_at_most_50_kb(live_redis: redis.Redis) -> None:
    fleets = [FakeFleet(live_redis, size=1000 // POOLS, pool=f"pool-{i}", routers=2) for i in range(POOLS)]
    for fleet in fleets:
        fleet.write(NOW)
    text = step(live_redis, NOW, "worker")
    assert text is not None
    assert len(text) < 50_000
