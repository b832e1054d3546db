"""KV events over ZMQ, as a subscriber of vLLM's events would read them."""

import struct
import time
from collections.abc import Iterator

import msgpack
import msgspec
import pytest
import zmq

from fleet.engine.blocks import Event, Removed, Stored
from fleet.simengine import generation, kv_events
from fleet.simengine.adapters import content_of
from fleet.tests.simengine.conftest import Sim, StartSim
from router.kv_events.batch import BlocksRemoved, BlocksStored, decode

Batch = tuple[int, list]


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    with zmq.Context() as made:
        yield made


def listen(context: zmq.Context, sim: Sim) -> zmq.Socket:
    """Return a subscribed socket. A subscription takes a moment to arrive, so send requests until an event
    comes.
    """
    socket = context.socket(zmq.SUB)
    socket.linger = 0
    socket.subscribe(b"kv")
    socket.connect(sim.events)
    for attempt in range(200):
        sim.complete(f"are you there {attempt} " * 10, max_tokens=1)
        if socket.poll(50):
            break
    while socket.poll(200):
        socket.recv_multipart()
    return socket


def heard(socket: zmq.Socket, blocks: int) -> list[Batch]:
    """Receive batches until the given number of blocks are stored."""
    batches: list[Batch] = []
    deadline = time.monotonic() + 10
    while sum(len(event.get("block_hashes", ())) for _, batch in batches for event in batch[1]) < blocks:
        assert time.monotonic() < deadline, f"only {batches}"
        if socket.poll(100):
            topic, sequence, payload = socket.recv_multipart()
            assert topic == b"kv"
            batches.append((struct.unpack(">Q", sequence)[0], msgpack.unpackb(payload)))
    return batches


def replay(context: zmq.Context, sim: Sim, first: int) -> list[Batch]:
    with context.socket(zmq.DEALER) as socket:  # a REQ socket would accept only the first answer
        socket.linger = 0
        socket.connect(sim.replay)
        socket.send_multipart([b"", struct.pack(">Q", first)])
        batches: list[Batch] = []
        while True:
            assert socket.poll(5000)
            _, topic, sequence, payload = socket.recv_multipart()
            number = struct.unpack(">q", sequence)[0]
            if number == -1:
                assert (topic, payload) == (b"", b"")
                return batches
            batches.append((number, msgpack.unpackb(payload)))


@pytest.mark.parametrize("parent", [None, -7])
def test_sglangs_format_carries_the_same_content_as_vllms(parent: int | None) -> None:
    content = content_of(b"a" * 128, "adapter", "salt")
    events: list[Event] = [Stored((2**63 + 5, 6), parent, content, 0, "CPU"), Removed((2**63 + 5,), "GPU")]
    vllm, sglang = (
        decode(msgspec.msgpack.encode([1.0, [mapped(event, b"a" * 128, 16) for event in events], 0])).events
        for mapped in (kv_events._as_vllm, kv_events._as_sglang)
    )
    stored, removed = sglang
    assert isinstance(stored, BlocksStored)
    assert isinstance(vllm[0], BlocksStored)
    same = ("tokens", "block_size", "tier", "extras")
    assert [getattr(stored, name) for name in same] == [getattr(vllm[0], name) for name in same]
    assert isinstance(removed, BlocksRemoved)
    assert removed.names == stored.names[:1]


def test_stored_blocks_are_those_of_the_prompts_chain(context: zmq.Context, sim: Sim) -> None:
    with listen(context, sim) as socket:
        prompt = "chain of blocks " * 40
        answer = sim.complete(prompt, max_tokens=33)["choices"][0]["text"]
        batches = heard(socket, 12)
    data = (prompt + answer).encode()
    chain = generation.chain(data, 16)
    events = [event for _, batch in batches for event in batch[1]]
    assert [key for event in events for key in event["block_hashes"]] == chain[:12]
    assert [token for event in events for token in event["token_ids"]] == generation.to_ids(data)[: 12 * 16]
    assert [event["parent_block_hash"] for event in events] == [None, *(e["block_hashes"][-1] for e in events[:-1])]
    for event in events:
        assert (event["type"], event["block_size"], event["medium"]) == ("BlockStored", 16, "GPU")


def test_batches_have_consecutive_numbers_and_timestamps(context: zmq.Context, sim: Sim) -> None:
    with listen(context, sim) as socket:
        for index in range(3):
            sim.complete(f"numbered {index:03d} " * 30, max_tokens=1)
        batches = heard(socket, 18)
    numbers = [number for number, _ in batches]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(abs(batch[0] - time.time()) < 60 and batch[2] == 0 for _, batch in batches)


def test_missed_batches_are_replayed_from_the_requested_number(context: zmq.Context, start_sim: StartSim) -> None:
    sim = start_sim()
    for name in ("one ", "two ", "six "):
        sim.complete(name * 64, max_tokens=1)
    everything = replay(context, sim, 0)
    assert [number for number, _ in everything] == [0, 1, 2]
    assert replay(context, sim, 2) == everything[2:]
    assert replay(context, sim, 9) == []
    stored = [event["block_hashes"] for _, batch in everything for event in batch[1]]
    assert stored == [generation.chain((name * 64).encode(), 16) for name in ("one ", "two ", "six ")]


def test_evicted_blocks_and_a_reset_are_published(context: zmq.Context, start_sim: StartSim) -> None:
    sim = start_sim(kv_blocks=20)
    for name in ("old ", "new "):
        sim.complete(name * 192, max_tokens=1)
    sim.post("/reset_prefix_cache", None)
    events = [event for _, batch in replay(context, sim, 0) for event in batch[1]]
    removed = next(event for event in events if event["type"] == "BlockRemoved")
    old = generation.chain(("old " * 192).encode(), 16)
    assert removed["block_hashes"] == old[: -len(removed["block_hashes"]) - 1 : -1]
    assert events[-1] == {"type": "AllBlocksCleared"}


def test_the_sources_page_lists_the_endpoints(sim: Sim) -> None:
    source = sim.http.get("/kv_event_sources").json()["0"]
    assert (source["enable_kv_cache_events"], source["publisher"], source["topic"]) == (True, "zmq", "kv")
    for endpoint in (source["endpoint"], source["replay_endpoint"]):
        assert 0 < int(endpoint.removeprefix("tcp://127.0.0.1:")) < 65_536


def test_a_malformed_replay_request_is_ignored(context: zmq.Context, sim: Sim) -> None:
    with context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(sim.replay)
        socket.send_multipart([b"", b"a", b"b"])
        socket.send_multipart([b"", struct.pack(">Q", 2**63)])
        assert socket.poll(5000)
        assert socket.recv_multipart()[2] == struct.pack(">q", -1)
