"""The router's knowledge after events were lost, with the publishers and replay sockets of the newest engines."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from router.kv_events import feed as feeds
from router.kv_events.sources import KvEventSource
from router.prefix.blocks import linked
from router.tests.contracts.publishers import publisher
from router.tests.kv_events.conftest import SEED, SIZE, Followed, following
from router.tests.ports import free_ports
from router.tokenize.tokenizer import packed

pytestmark = [pytest.mark.contracts, pytest.mark.parametrize("kind", ["vllm", "sglang"])]
MORE = {"vllm": {"medium": "GPU", "lora_name": None}, "sglang": {}}


class Engine:
    """A released engine's publisher; each batch stores the only block of a prompt."""

    def __init__(self, kind: str, ports: Sequence[int], **options: Any) -> None:
        self.names, self.more = publisher(kind), MORE[kind]
        events, replay = ports
        binds = {"bind": True} if kind == "sglang" else {}
        places = {"endpoint": f"tcp://*:{events}", "replay_endpoint": f"tcp://127.0.0.1:{replay}"}
        self.publisher = self.names["ZmqEventPublisher"](0, **places, topic="kv", **binds, **options)
        self.source = KvEventSource(f"tcp://127.0.0.1:{events}", f"tcp://127.0.0.1:{replay}", "kv")

    def store(self, *prompts: int) -> None:
        for prompt in prompts:
            event = self.names["BlockStored"](
                block_hashes=[prompt + 1],
                token_ids=[prompt] * SIZE,
                parent_block_hash=None,
                block_size=SIZE,
                lora_id=None,
                **self.more,
            )
            self.publisher.publish(self.names["KVEventBatch"](time.time(), [event]))

    async def stored(self, *prompts: int) -> None:
        """Store before anyone is listening."""
        self.store(*prompts)
        async with asyncio.timeout(20):
            while not self.publisher._buffer or self.publisher._buffer[-1][0] < prompts[-1]:
                await asyncio.sleep(0.01)

    def loses(self, lost: Callable[[int], bool], times: int = 1) -> None:
        """Lose the replayed batches with these numbers on the way, as a full queue does; -1 is the end of a replay."""
        self.publisher._replay = Lossy(self.publisher._replay, lost, times)


class Lossy:
    def __init__(self, socket: Any, lost: Callable[[int], bool], times: int) -> None:
        self.socket, self.lost, self.times = socket, lost, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def send_multipart(self, frames: Sequence[bytes]) -> None:
        number = int.from_bytes(frames[-2], "big", signed=True)
        if self.times and self.lost(number):
            self.times -= 1
        else:
            self.socket.send_multipart(frames)


@pytest.fixture(autouse=True)
def promptly(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"CONFIRM_S": 0.2, "RETRY_S": 0.1, "LONGEST_RETRY_S": 0.2, "ANSWER_S": 1.0, "BEHIND_S": 60}
    for name, value in times.items():
        monkeypatch.setattr(feeds, name, value)


@pytest.fixture
def ports() -> list[int]:
    return free_ports(2)


@pytest.fixture
def engine(kind: str, ports: list[int]) -> Iterator[Engine]:
    made = Engine(kind, ports)
    yield made
    made.publisher.shutdown()


def held(followed: Followed, prompts: Sequence[int]) -> list[int]:
    """Return the prompts whose block is in the index."""
    chains = {prompt: linked(packed([prompt] * SIZE), SIZE, SEED, ()) for prompt in prompts}
    return [prompt for prompt, chain in chains.items() if followed.index.match(chain, SIZE)]


async def confirmed(followed: Followed, prompts: Sequence[int], known: Sequence[int]) -> None:
    await followed.until(lambda: followed.feed.confirmed_at and held(followed, prompts) == list(known))


async def test_batches_that_a_replay_loses_on_the_way_are_requested_again(engine: Engine) -> None:
    await engine.stored(*range(10))
    engine.loses(lambda number: number in (3, 7), times=2)
    async with following("", engine.source) as followed:
        await confirmed(followed, range(10), range(10))
        feed = followed.feed
        assert (feed.complete, feed.gaps, feed.purges, feed.trouble) == (True, 1, 0, "")


async def test_a_replay_whose_end_is_lost_is_requested_again(engine: Engine) -> None:
    await engine.stored(*range(3))
    engine.loses(lambda number: number == -1)
    async with following("", engine.source) as followed:
        await confirmed(followed, range(3), range(3))
        assert (followed.feed.complete, followed.feed.purges) == (True, 0)


async def test_a_gap_in_the_replay_buffer_drops_earlier_blocks_and_keeps_later_ones(engine: Engine) -> None:
    await engine.stored(*range(10))
    del engine.publisher._buffer[5]  # its encoding failed, which uses up the number
    async with following("", engine.source) as followed:
        await confirmed(followed, range(10), range(6, 10))
        assert (followed.feed.complete, followed.feed.purges, followed.feed.trouble) == (False, 1, "")
        engine.store(10)
        await confirmed(followed, range(11), range(6, 11))


async def test_only_the_latest_batches_are_known_if_the_buffer_has_dropped_others(kind: str, ports: list[int]) -> None:
    engine = Engine(kind, ports, buffer_steps=4)
    try:
        await engine.stored(*range(10))
        async with following("", engine.source) as followed:
            await confirmed(followed, range(10), range(6, 10))
            assert (followed.feed.complete, followed.feed.purges) == (False, 0)
    finally:
        engine.publisher.shutdown()


async def test_a_live_batch_that_no_replay_contains_any_longer_empties_the_engines_part(
    kind: str, ports: list[int]
) -> None:
    engine = Engine(kind, ports, buffer_steps=2)
    try:
        async with following("", engine.source) as followed:
            await confirmed(followed, (), ())
            await followed.until(lambda: followed.feed._events and followed.feed._events.connected)
            engine.store(0)
            await followed.until(lambda: held(followed, [0]))
            take, subscription = followed.feed._live, followed.feed._events
            assert subscription is not None
            subscription._take = lambda frames: None if 1 <= frames[1][-1] <= 4 else take(frames)
            engine.store(1, 2, 3, 4, 5)
            await followed.until(lambda: held(followed, range(6)) == [4, 5])
            assert (followed.feed.complete, followed.feed.purges) == (False, 1)
    finally:
        engine.publisher.shutdown()


@pytest.mark.parametrize("further", [2, 12])
async def test_after_an_engine_restarts_only_its_new_blocks_are_known(
    kind: str, ports: list[int], further: int
) -> None:
    """Its numbers start at 0 again; they may soon exceed the last number of the earlier process."""
    earlier = Engine(kind, ports)
    await earlier.stored(*range(8))
    async with following("", earlier.source) as followed:
        await confirmed(followed, range(8), range(8))
        earlier.publisher.shutdown()
        again = Engine(kind, ports)
        try:
            again.store(*range(20, 20 + further))
            await confirmed(followed, range(40), range(20, 20 + further))
            assert (followed.feed.complete, followed.feed.purges) == (True, 1)
        finally:
            again.publisher.shutdown()


async def test_batches_lost_by_one_rank_do_not_affect_the_other_ranks(kind: str) -> None:
    ranks = [Engine(kind, free_ports(2)) for _ in range(2)]
    try:
        for rank in ranks:
            await rank.stored(*range(6))
        del ranks[1].publisher._buffer[2]
        async with following("", ranks[0].source) as first, following("", ranks[1].source) as second:
            await confirmed(first, range(6), range(6))
            await confirmed(second, range(6), range(3, 6))
            assert (first.feed.complete, second.feed.complete) == (True, False)
    finally:
        for rank in ranks:
            rank.publisher.shutdown()
