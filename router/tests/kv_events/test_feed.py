"""A feed follows real simulated engines over real ZMQ."""

import asyncio
from collections.abc import Callable

import httpx
import msgpack
import pytest
import zmq

from router.kv_events import feed as feeds
from router.kv_events.batch import decode
from router.kv_events.feed import Feed
from router.kv_events.feeds import Feeds
from router.kv_events.sources import WHOLE, NoEvents, discover
from router.kv_events.turns import SharedTurns
from router.prefix.exact.index import ExactIndex
from router.tests.kv_events.conftest import Sim, following

pytestmark = pytest.mark.usefixtures("quick")

PROMPT = "sixteen tokens of four bytes each, so one block holds 64 bytes. " * 8  # 8 blocks


async def test_blocks_that_an_engine_stores_are_found_by_their_prompt(sim: Sim) -> None:
    async with following(sim.url) as followed:
        await followed.until(lambda: not followed.feed.trouble)
        await sim.ask(PROMPT)
        await followed.until(lambda: followed.held(PROMPT) == 128)
        assert followed.held(PROMPT[:256] + "something else " * 30) == 64
        assert (followed.feed.complete, followed.feed.block_size, followed.feed.trouble) == (True, 16, "")


async def test_batches_stored_before_the_subscription_are_replayed(sim: Sim) -> None:
    for number in range(5):
        await sim.ask(f"{number}" * 64 + PROMPT)
    async with following(sim.url) as followed:
        await followed.until(lambda: followed.feed.confirmed_at)
        assert [followed.held(f"{number}" * 64 + PROMPT) for number in range(5)] == [144] * 5
        assert followed.feed.complete
        assert followed.feed.replayed == 5


async def test_evicted_blocks_leave_the_index(start_sim: Callable[..., Sim]) -> None:
    sim = start_sim(**{"kv-blocks": 24})
    async with following(sim.url) as followed:
        for number in range(6):
            await sim.ask(f"{number}" * 64 + PROMPT)
        await followed.until(lambda: followed.held("5" * 64 + PROMPT) == 144)
        assert followed.held("0" * 64 + PROMPT) == 0
        assert sum(followed.index.blocks("a")) <= 24


async def test_blocks_copied_to_another_tier_outlive_the_device_whether_events_name_a_group_or_not() -> None:
    for group in ({}, {"group_idx": 0}):
        with zmq.Context() as context:
            feed = Feed("a", lambda: discover(""), index := ExactIndex(seed=1), context)
            gpu = {"block_hashes": [11, 12], "medium": "GPU", "group_idx": 0}
            cpu = {"block_hashes": [11, 12], "medium": "CPU", **group}
            without = {"token_ids": [], "block_size": 0, "parent_block_hash": None}
            seen = []
            for event in (
                {"type": "BlockStored", **gpu, "token_ids": list(range(32)), "block_size": 16},
                {"type": "BlockStored", **cpu, **without},
                {"type": "BlockRemoved", **gpu},
                {"type": "BlockRemoved", **cpu},
            ):
                feed._tell(decode(msgpack.packb([1.0, [event]])))
                seen.append(index.blocks("a"))
            assert seen == [(2, 0, 0), (2, 2, 0), (0, 2, 0), (0, 0, 0)]


@pytest.mark.parametrize(
    ("size", "left_out", "parts"), [(32, 0, (32,)), (2, 0, (2,)), (32, 1, ()), (1, 0, ()), (48, 0, ())]
)
def test_windows_of_smaller_blocks_are_followed_by_parts_if_these_are_few_and_all_named(
    size: int, left_out: int, parts: tuple[int, ...]
) -> None:
    with zmq.Context() as context:
        feed = Feed("a", lambda: discover(""), ExactIndex(seed=1), context)
        full = {"block_hashes": [1], "block_size": 128, "group_idx": 0, "kv_cache_spec_kind": "full_attention"}
        names = [*range(2, 128 // size + 1), 1][left_out:]
        window = {"block_hashes": names, "block_size": size, "group_idx": 1, "kv_cache_spec_kind": "sliding_window"}
        alike = {"type": "BlockStored", "parent_block_hash": None, "medium": "GPU"}
        for event in (
            {**alike, **full, "token_ids": [1] * 128},
            {**alike, **window, "token_ids": [1] * (128 // size * size), "kv_cache_spec_sliding_window": 40},
        ):
            feed._tell(decode(msgpack.packb([1.0, [event]])))
        assert feed.parts == parts
        assert feed._index.held_by("a") == 1 + (128 // size if parts else 1)


async def test_a_reset_of_the_cache_empties_its_part(sim: Sim) -> None:
    async with following(sim.url) as followed:
        await sim.ask(PROMPT)
        await followed.until(lambda: followed.held(PROMPT))
        async with httpx.AsyncClient(base_url=sim.url) as client:
            await client.post("/reset_prefix_cache")
        await sim.ask("something else " * 40)
        await followed.until(lambda: followed.held("something else " * 40))
        assert followed.held(PROMPT) == 0
        assert (followed.feed.complete, followed.feed.purges) == (True, 1)


async def test_a_batch_that_was_lost_in_transit_is_requested_again(sim: Sim) -> None:
    async with following(sim.url) as followed:
        await followed.until(lambda: not followed.feed.trouble)
        live, dropped = followed.feed._live, []

        def drop_two(frames: list[bytes]) -> None:
            if len(dropped) < 2:
                dropped.append(frames)
            else:
                live(frames)

        assert followed.feed._events is not None
        followed.feed._events._take = drop_two
        for number in range(3):
            await sim.ask(f"{number}" * 64 + PROMPT)
        await followed.until(lambda: followed.held("2" * 64 + PROMPT) == 144)
        assert [followed.held(f"{number}" * 64 + PROMPT) for number in range(2)] == [144, 144]
        assert followed.feed.complete


async def test_a_lost_last_batch_is_detected_by_asking(sim: Sim) -> None:
    async with following(sim.url) as followed:
        await followed.until(lambda: not followed.feed.trouble)
        assert followed.feed._events is not None
        followed.feed._events._take = lambda frames: None
        await sim.ask(PROMPT)
        await followed.until(lambda: followed.held(PROMPT) == 128)


async def test_a_gap_without_a_replay_endpoint_empties_the_engines_part(sim: Sim) -> None:
    source = await discover(sim.url)
    await sim.ask("before " * 40)
    without = type(source)(source.endpoint, None, source.topic)
    async with following(sim.url, without) as followed:
        await followed.until(lambda: followed.feed._events is not None and followed.feed._events.connected)
        number = 0
        while not followed.feed.batches:  # the subscription takes a moment to arrive
            number += 1
            await sim.ask(f"{number:08}" * 8 + PROMPT)
            await asyncio.sleep(0.02)
        assert not followed.feed.complete
        assert followed.held(f"{number:08}" * 8 + PROMPT) == 144
        assert followed.held("before " * 40) == 0


async def test_an_event_that_fails_in_the_index_empties_the_engines_part(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with following(sim.url) as followed:
        await sim.ask("before " * 40)
        await followed.until(lambda: followed.held("before " * 40))
        with monkeypatch.context() as broken:
            broken.setattr(followed.index, "store", lambda *event: {}[event])
            await sim.ask(PROMPT)
            await followed.until(lambda: not followed.feed.complete)
        assert followed.held("before " * 40) == 0
        await sim.ask("after " * 40)
        await followed.until(lambda: followed.held("after " * 40))


async def test_a_replay_endpoint_that_does_not_answer_is_not_awaited(sim: Sim, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "ANSWER_S", 0.2)
    source = await discover(sim.url)
    await sim.ask("before " * 40)
    silent = type(source)(source.endpoint, "tcp://127.0.0.1:9", source.topic)
    async with following(sim.url, silent) as followed:
        number = 0
        while not followed.feed.batches:
            number += 1
            await sim.ask(f"{number:08}" * 8 + PROMPT)
            await asyncio.sleep(0.02)
        assert not followed.feed.complete
        assert followed.held("before " * 40) == 0


async def test_a_feed_is_not_trusted_before_it_has_subscribed(sim: Sim) -> None:
    source = await discover(sim.url)
    await sim.ask(PROMPT)
    unheard = type(source)("tcp://127.0.0.1:9", source.replay, source.topic)
    async with following(sim.url, unheard) as followed:
        await followed.until(lambda: followed.held(PROMPT) == 128 and not followed.feed._sequence.asking)
        assert followed.feed.trouble == "the replay of its earlier events is not complete yet"


async def test_an_engine_that_dies_empties_its_part_and_is_followed_again(start_sim: Callable[..., Sim]) -> None:
    sim = start_sim()
    async with following(sim.url) as followed:
        await sim.ask(PROMPT)
        await followed.until(lambda: followed.held(PROMPT))
        sim.kill()
        await followed.until(lambda: followed.feed.trouble and followed.held(PROMPT) == 0)
        again = start_sim(port=sim.port)
        await followed.until(lambda: not followed.feed.trouble)
        assert followed.held(PROMPT) == 0
        await again.ask(PROMPT)
        await followed.until(lambda: followed.held(PROMPT) == 128)


async def test_an_engine_without_events_is_reported_as_such(start_sim: Callable[..., Sim]) -> None:
    async with following("http://127.0.0.1:9") as followed:
        await followed.until(lambda: "/kv_event_sources does not answer" in followed.feed.trouble)
    with pytest.raises(NoEvents, match="no connection"):
        await discover("http://127.0.0.1:9")


async def test_events_that_are_read_late_are_not_trusted(sim: Sim) -> None:
    async with following(sim.url) as followed:
        await sim.ask(PROMPT)
        await followed.until(lambda: followed.held(PROMPT) and not followed.feed.trouble)
        assert followed.feed.event_at is not None
        followed.feed._measure_delay(followed.feed.event_at + 3.0)
        followed.feed._measure_delay(followed.feed.event_at + 90.0)
        assert "behind" in followed.feed.trouble
        await followed.until(lambda: not followed.feed.trouble)  # the feed asks again, and no batch is missing


async def test_a_process_has_enough_sockets_for_the_engines_of_a_large_pool() -> None:
    every = Feeds(SharedTurns())
    every.follow("a", "tcp://127.0.0.1:1", WHOLE, ExactIndex(seed=1))
    assert every._context is not None
    assert every._context.get(zmq.MAX_SOCKETS) >= 6 * 1_024
    await every.close()
