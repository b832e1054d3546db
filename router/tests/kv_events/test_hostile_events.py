"""A hostile engine's KV events are refused, counted, and limited in memory and time."""

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import msgpack
import orjson
import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from router.kv_events import batch, feed, inbox, sources, turns
from router.kv_events import sequence as sequences
from router.kv_events.batch import Undecodable, decode
from router.kv_events.inbox import ZmqSubscription
from router.kv_events.sequence import Sequence
from router.kv_events.sources import KvEventSource, NoEvents, parse
from router.tests.kv_events.conftest import Followed, following

# Batches

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
FIELDS = ["type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "medium", "group_idx", "extra_keys"]
KINDS = ["BlockStored", "BlockRemoved", "AllBlocksCleared"]
event = st.one_of(
    junk,
    st.dictionaries(st.sampled_from(FIELDS), junk).flatmap(
        lambda fields: st.sampled_from(KINDS).map(lambda kind: {**fields, "type": kind})
    ),
    st.lists(junk).flatmap(lambda rest: st.sampled_from(KINDS).map(lambda kind: [kind, *rest])),
)


def is_read_or_refused(payload: bytes) -> None:
    try:
        read = decode(payload)
    except Undecodable:
        return
    assert 0 <= read.at <= batch.LATEST
    for one in read.events:
        if isinstance(one, batch.BlocksStored):
            assert 1 <= one.block_size <= batch.LARGEST_BLOCK
            assert all(0 < name < 2**64 for name in one.names)


@given(st.binary())
def test_bytes_of_any_kind_are_a_batch_or_refused(payload: bytes) -> None:
    is_read_or_refused(payload)


@pytest.mark.slow
@given(st.floats() | st.integers(-10, 2**40), st.lists(event) | junk)
def test_msgpack_of_any_kind_is_a_batch_or_refused(at: float, events: object) -> None:
    is_read_or_refused(msgpack.packb([at, events, 0]))


def nested(levels: int, claimed: int) -> bytes:
    """Return nested arrays, each of which claims to have many elements."""
    return (b"\xdd" + struct.pack(">I", claimed)) * levels


@pytest.mark.parametrize(
    "payload",
    [
        nested(1, 2**32 - 1),
        nested(500_000, 1),
        nested(800_000, 2**32 - 1),
        nested(1000, batch.LONGEST_ARRAY),
        b"\xdf\xff\xff\xff\xff" * 100_000,
        b"\xc6\xff\xff\xff\xff" + bytes(1000),
        b"\xc9\x00\xff\xff\xff\x01" + bytes(1000),
        msgpack.packb([1.0, [[]] * batch.LONGEST_ARRAY, 0]) + b"x" * 1_000_000,
        msgpack.packb([float("inf"), [], 0]),
        msgpack.packb([float("nan"), [], 0]),
        msgpack.packb([-1, [], 0]),
        msgpack.packb([1.0, [{"type": "BlockStored", "block_hashes": [1], "block_size": 2**40}], 0]),
        msgpack.packb([1.0, [{"type": "BlockStored", "block_hashes": [1], "block_size": "9" * 4090}], 0]),
        msgpack.packb([1.0, [["BlockStored", [b"x" * 5000], None, [1] * 16, 16]], 0]),
    ],
    ids=lambda payload: f"{len(payload)} bytes",
)
def test_a_bomb_is_refused_quickly(payload: bytes) -> None:
    began = time.process_time()
    with pytest.raises(Undecodable):
        decode(payload)
    assert time.process_time() - began < 1.0


def test_the_largest_batch_of_a_real_engine_is_read() -> None:
    """One step of 131,072 prompt tokens, in blocks of 16, with 32-byte names."""
    names = [number.to_bytes(32, "big") for number in range(8192)]
    tokens = list(range(batch.LONGEST_ARRAY))
    stored = {"type": "BlockStored", "block_hashes": names, "token_ids": tokens, "block_size": 16}
    payload = msgpack.packb([1.0, [stored], 0])
    assert len(payload) < inbox.LARGEST
    (found,) = decode(payload).events
    assert isinstance(found, batch.BlocksStored)
    assert len(found.names) == 8192


# Sequence numbers

steps = st.lists(
    st.one_of(
        st.tuples(st.just("live"), st.integers(0, 2**64 - 1) | st.integers(0, 30), st.integers(0, 3_000_000)),
        st.tuples(st.just("replay"), st.integers(0, 30), st.integers(0, 100)),
        st.tuples(st.just("end"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(steps, st.booleans())
def test_few_batches_are_held_back_whatever_their_numbers(taken: list[tuple[str, int, int]], replays: bool) -> None:
    held = Sequence(lambda payload: None, lambda: None, lambda number: replays)
    for kind, number, size in taken:
        if kind == "live":
            held.live(number, bytes(size))
        elif kind == "replay":
            held.replayed_one(number, bytes(size))
        else:
            held.replay_ended()
        waiting = sum(map(len, held._early.values()))
        assert held._early_bytes == waiting <= sequences.KEPT_BYTES


# Sources of events


@given(junk)
def test_sources_of_any_kind_can_be_followed_or_are_refused(told: Any) -> None:
    for value in (told, [told], [{"endpoint": told}], [{"endpoint": "tcp://*:1", "replay_endpoint": told}]):
        try:
            raw = orjson.dumps(value)
        except (TypeError, ValueError):
            continue
        try:
            found = parse(raw, "http://10.1.1.1:8000")
        except NoEvents:
            continue
        assert found.endpoint.startswith(("tcp://", "ipc:///"))


@pytest.mark.parametrize(
    "endpoint",
    [
        "inproc://x",
        "pgm://eth0;239.192.1.1:5555",
        "tcp://a b:1",
        "tcp://host:1;rm",
        "tcp://host",
        "tcp://host:123456",
        "tcp://" + "h" * 300 + ":1",
        "ipc://relative",
        "ipc:///" + "p" * 200,
        "",
    ],
)
def test_an_address_of_another_kind_is_not_followed(endpoint: str) -> None:
    with pytest.raises(NoEvents, match=r"allowed: tcp://HOST:PORT and ipc:///PATH"):
        parse(orjson.dumps([{"endpoint": endpoint}]), "http://10.1.1.1:8000")


def test_a_long_topic_is_truncated() -> None:
    found = parse(orjson.dumps([{"endpoint": "tcp://*:1", "topic": "t" * 1000}]), "http://10.1.1.1:8000")
    assert len(found.topic) == 256


async def test_addresses_that_arrive_byte_by_byte_are_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.3)

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" ")
            await asyncio.sleep(0.02)

    await refuses(drip, r"no whole answer within 0\.3 s")


async def test_addresses_without_end_are_abandoned() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while not writer.is_closing():
            writer.write(b" " * 65_536)
            await writer.drain()

    await refuses(flood, r"larger than 1048576 bytes")


async def refuses(behaviour: Callable[..., Any], why: str) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await behaviour(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        with pytest.raises(NoEvents, match=why):
            await sources.discover(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


# Publishers


class Publisher:
    """A publisher that sends given messages over ZMQ."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.PUB)
        self.socket.linger = 0
        self.socket.set_hwm(0)
        self.source = KvEventSource(f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}", None, "")
        self.number = 0

    def say(self, payload: bytes, number: bytes | None = None) -> None:
        self.socket.send_multipart([b"kv", number or self.number.to_bytes(8, "big"), payload])
        self.number += 1

    def close(self) -> None:
        self.socket.close()
        self._context.term()


@pytest.fixture
def publisher() -> Any:
    made = Publisher()
    yield made
    made.close()


@pytest.fixture
async def followed(publisher: Publisher) -> AsyncIterator[Followed]:
    async with following("", publisher.source) as made:
        await made.until(lambda: made.feed._events is not None and made.feed._events.connected)
        publisher.say(good(0))
        await made.until(lambda: made.feed.batches or again(publisher))
        yield made


def again(publisher: Publisher) -> None:
    """Send the message again, since a new subscriber misses what was sent before it connected."""
    publisher.number = 0
    publisher.say(good(0))


def good(number: int) -> bytes:
    stored = {"type": "BlockStored", "block_hashes": [number + 1], "token_ids": list(range(16)), "block_size": 16}
    # A repeated batch must not be newer: a feed considers a newer batch with an old number to be from a new process.
    return bytes(msgpack.packb([1000.0 + number, [stored], 0]))


async def test_an_unreadable_batch_costs_the_index_and_nothing_else(publisher: Publisher, followed: Followed) -> None:
    publisher.say(b"\xc1")
    publisher.say(good(1))
    await followed.until(lambda: followed.feed.refused)
    await followed.until(lambda: sum(followed.index.blocks("a")) == 1)
    assert followed.feed.refused == {"KV event batches that cannot be decoded": 1}
    assert (followed.feed.trouble, followed.feed.complete) == ("", False)


async def test_an_engine_that_sends_only_garbage_is_ignored_for_a_while(
    publisher: Publisher, followed: Followed
) -> None:
    for _ in range(feed.MOST_REFUSED + 1):
        publisher.say(nested(1000, 2**31))
    await followed.until(lambda: "its KV events are refused: not a batch of KV events" in followed.feed.trouble)
    assert followed.feed.refused["KV event batches that cannot be decoded"] == feed.MOST_REFUSED + 1
    assert followed.feed._events is None
    assert sum(followed.index.blocks("a")) == 0


@pytest.mark.parametrize(
    "frames",
    [[b"kv"], [b"kv", b"1", b"x"], [b"kv", b"\xff" * 100_000, b"x"], [b"kv"] * 5],
    ids=lambda frames: f"{len(frames)} frames",
)
async def test_malformed_messages_are_counted(publisher: Publisher, followed: Followed, frames: list[bytes]) -> None:
    publisher.socket.send_multipart(frames)
    await followed.until(lambda: followed.feed.refused == {"KV event messages of another form": 1})


async def test_an_engine_whose_message_has_many_frames_is_ignored(publisher: Publisher, followed: Followed) -> None:
    publisher.socket.send_multipart([b"kv"] * 1000)
    await followed.until(lambda: followed.feed.trouble == "its KV events have messages of more than 8 frames")
    assert followed.feed.refused == {"KV events that have messages of more than 8 frames": 1}


async def test_malformed_replies_are_counted(followed: Followed) -> None:
    followed.feed._replayed_frame([b"", b"x"])
    followed.feed._replayed_frame([b"", b"123", b"payload"])
    assert followed.feed.refused == {"KV event messages of another form": 2}


@pytest.mark.slow
async def test_numbers_that_jump_back_restart_the_feed_at_most_once_a_second(
    publisher: Publisher, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    connects = []
    connect = followed.feed._connect
    monkeypatch.setattr(followed.feed, "_connect", lambda source: (connects.append(source), connect(source)))
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        publisher.say(good(1), (2**64 - 1).to_bytes(8, "big"))
        publisher.say(good(2), (0).to_bytes(8, "big"))
        await asyncio.sleep(0.01)
    assert 1 <= len(connects) <= 4


async def test_a_frame_that_is_too_large_ends_the_connection(publisher: Publisher, followed: Followed) -> None:
    publisher.say(bytes(inbox.LARGEST + 1))
    await followed.until(lambda: followed.feed.trouble == "the connection to its events was lost")


async def test_an_engine_with_too_many_blocks_is_not_followed(
    publisher: Publisher, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feed, "MOST_BLOCKS", 3)
    for number in range(1, 5):
        stored = {"type": "BlockStored", "block_hashes": [number], "token_ids": [number] * 16, "block_size": 16}
        publisher.say(bytes(msgpack.packb([time.time(), [stored], 0])))
    await followed.until(lambda: followed.feed.trouble == "its KV events name more than 3 blocks")
    assert followed.feed.refused == {"KV events of more blocks than an engine may have": 1}


async def test_a_flood_is_cut_off_and_leaves_time_for_others(
    publisher: Publisher, followed: Followed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(inbox, "WAITING_BYTES", 4_000_000)
    payload = good(0)
    longest, before = 0.0, time.thread_time()  # other processes may take CPU time
    end = time.monotonic() + 30
    while not followed.feed.refused and time.monotonic() < end:
        for _ in range(500):
            publisher.say(payload)
        await asyncio.sleep(0)
        longest, before = max(longest, time.thread_time() - before), time.thread_time()
    assert followed.feed.refused == {"KV events that came faster than they could be read": 1}
    assert followed.feed.trouble == "its KV events came faster than they could be read"
    assert longest < 0.5


async def test_work_is_done_in_slices_with_pauses(publisher: Publisher, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two milliseconds of work and six of pause: one engine takes at most a quarter of the loop's time."""
    work_s = [0.0]
    for module in (inbox, turns):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: work_s[0]))
    taken_at: list[float] = []

    def take(_: list[bytes]) -> None:
        work_s[0] += 0.001
        taken_at.append(asyncio.get_running_loop().time())

    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    shared = turns.SharedTurns()
    subscription = ZmqSubscription(context, zmq.SUB, publisher.source.endpoint, take, lambda: None, shared)
    try:
        subscription._waiting.extend([([b"x"], 1)] * 30)  # as if all had arrived at once
        subscription._later()
        while len(taken_at) < 30:
            await asyncio.sleep(0.01)
    finally:
        subscription.close()
        context.term()
    assert all(later - first > 0.9 * shared.pause_s for first, later in zip(taken_at, taken_at[3:], strict=False))
