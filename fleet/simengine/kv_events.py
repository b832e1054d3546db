"""KV events over ZMQ as vLLM publishes them: frames topic, 8-byte big-endian sequence number and a msgpack batch `[unix
time, [event, …], data-parallel rank]`; missed batches are requested from the replay endpoint.
Batches are kept unpacked, and packed only for a subscriber or a replay: without them, they cost next to nothing.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import zmq

from fleet.engine.blocks import Event, Removed, Stored
from fleet.simengine import generation
from fleet.simengine.adapters import keys_of
from fleet.simengine.arguments import SGLANG, VLLM

TOPIC = "kv"
_SGLANGS_MEDIA = {"CPU": "CPU_PINNED"}
REPLAY_BATCHES = 10_000  # vLLM's buffer_steps
REPLAY_BYTES = 4_000_000  # limit of those batches' size; long prompts carry all their tokens
HIGH_WATER_MARK = 100_000
END = (-1).to_bytes(8, "big", signed=True)


class BlockStored(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None = None
    medium: str
    lora_name: str | None = None
    extra_keys: list[list[str] | None]
    group_idx: int = 0
    kv_cache_spec_kind: str = "full_attention"


class SglangStored(msgspec.Struct, frozen=True, kw_only=True, tag="BlockStored", omit_defaults=True):
    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str
    cache_salt: str | None = None
    lora_name: str | None = None


class SglangRemoved(msgspec.Struct, frozen=True, tag="BlockRemoved"):
    block_hashes: tuple[int, ...]
    medium: str


class BlockRemoved(msgspec.Struct, frozen=True, tag=True):
    block_hashes: tuple[int, ...]
    medium: str
    group_idx: int = 0


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    pass


@dataclass(frozen=True, slots=True)
class EventBatch:
    at: float  # Unix seconds
    events: tuple[tuple[Event, bytes], ...]  # events, each with the tokens of stored blocks
    size: int  # approximate bytes


class Publisher:
    """Sockets bound on the running loop. Raise zmq.ZMQError for a port in use."""

    def __init__(
        self, host: str, events_port: int, replay_port: int, block_size: int, rank: int = 0, dialect: str = VLLM
    ) -> None:
        """Bind the sockets. `rank` is the data-parallel rank in its group; `dialect` is one of DIALECTS."""
        self.rank = rank
        self._mapped = _as_sglang if dialect == SGLANG else _as_vllm
        self._block_size = block_size
        self._context = zmq.Context()
        self._subscriptions = 0
        self._next = 0
        self._buffer: deque[tuple[int, EventBatch]] = deque()
        self._buffered = 0  # bytes of the buffered batches
        # XPUB is a PUB that also reports subscriptions.
        self._events = self._bind(zmq.XPUB, host, events_port, self._count_subscriptions)
        self._replay = self._bind(zmq.ROUTER, host, replay_port, self._serve)

    def source(self) -> dict[str, object]:
        """Return vLLM's KVEventsConfig."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self._events.get_string(zmq.LAST_ENDPOINT),
            "replay_endpoint": self._replay.get_string(zmq.LAST_ENDPOINT),
            "buffer_steps": REPLAY_BATCHES,
            "hwm": HIGH_WATER_MARK,
            "max_queue_size": HIGH_WATER_MARK,
            "topic": TOPIC,
        }

    def publish(self, events: list[Event]) -> None:
        width = self._block_size * generation.BYTES_PER_TOKEN
        pairs = tuple((event, _tokens(event, width)) for event in events)
        size = sum(len(data) + 40 * len(getattr(event, "hashes", ())) + 100 for event, data in pairs)
        batch = EventBatch(time.time(), pairs, size)
        sequence, self._next = self._next, self._next + 1
        self._keep(sequence, batch)
        if self._subscriptions:
            self._send(self._events, [TOPIC.encode(), sequence.to_bytes(8, "big"), self._packed(batch)])
            self._count_subscriptions()  # sending may have consumed the signal of a new subscription

    def close(self) -> None:
        for socket in (self._events, self._replay):
            asyncio.get_running_loop().remove_reader(socket.fileno())
            socket.close(linger=0)
        self._context.term()

    def _bind(self, kind: int, host: str, port: int, on_input: Callable[[], None]) -> "zmq.Socket[bytes]":
        socket = self._context.socket(kind)
        socket.set_hwm(HIGH_WATER_MARK)
        socket.linger = 0
        socket.bind(f"tcp://{host}:{port}")
        asyncio.get_running_loop().add_reader(socket.fileno(), on_input)
        return socket

    def _keep(self, sequence: int, batch: EventBatch) -> None:
        self._buffer.append((sequence, batch))
        self._buffered += batch.size
        while len(self._buffer) > REPLAY_BATCHES or (self._buffered > REPLAY_BYTES and len(self._buffer) > 1):
            self._buffered -= self._buffer.popleft()[1].size

    def _count_subscriptions(self) -> None:
        """Count subscriptions."""
        while _has_input(self._events):
            message = self._events.recv(zmq.NOBLOCK)
            if message[:1] in (b"\0", b"\1"):
                self._subscriptions += 1 if message[:1] == b"\1" else -1

    def _serve(self) -> None:
        """Serve replay requests: [client, empty, first sequence number wanted]."""
        while _has_input(self._replay):
            frames = self._replay.recv_multipart(zmq.NOBLOCK)
            if len(frames) != 3:
                continue
            client, first = frames[0], int.from_bytes(frames[2], "big")
            for sequence, batch in self._buffer:
                if sequence >= first:
                    payload = self._packed(batch)
                    self._send(self._replay, [client, b"", TOPIC.encode(), sequence.to_bytes(8, "big"), payload])
            self._send(self._replay, [client, b"", b"", END, b""])

    @staticmethod
    def _send(socket: "zmq.Socket[bytes]", frames: list[bytes]) -> None:
        try:
            socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:  # a full queue loses messages, as in vLLM: the reader sees the gap and requests a replay
            return

    def _packed(self, batch: EventBatch) -> bytes:
        events = [self._mapped(event, data, self._block_size) for event, data in batch.events]
        return msgspec.msgpack.encode([batch.at, events, self.rank])


def _as_vllm(event: Event, data: bytes, block_size: int) -> BlockStored | BlockRemoved | AllBlocksCleared:
    if isinstance(event, Stored):
        adapter, salt = keys_of(event.content)
        later = [adapter] if adapter else None
        first = [*(later or ()), salt] if salt and event.parent is None else later
        return BlockStored(
            lora_name=adapter or None,
            block_hashes=event.hashes,
            parent_block_hash=event.parent,
            token_ids=generation.to_ids(data),
            block_size=block_size,
            medium=event.medium,
            extra_keys=[first, *[later] * (len(event.hashes) - 1)],
        )
    return BlockRemoved(event.hashes, event.medium) if isinstance(event, Removed) else AllBlocksCleared()


def _as_sglang(event: Event, data: bytes, block_size: int) -> SglangStored | SglangRemoved | AllBlocksCleared:
    """Convert the event to SGLang 0.5.23's form: without groups, and with the salt in every block's event."""
    if isinstance(event, Stored):
        adapter, salt = keys_of(event.content)
        return SglangStored(
            block_hashes=tuple(map(_signed, event.hashes)),
            parent_block_hash=None if event.parent is None else _signed(event.parent),
            token_ids=generation.to_ids(data),
            block_size=block_size,
            lora_id=None,
            medium=_SGLANGS_MEDIA.get(event.medium, event.medium),
            cache_salt=salt or None,
            lora_name=adapter or None,
        )
    if isinstance(event, Removed):
        return SglangRemoved(tuple(map(_signed, event.hashes)), _SGLANGS_MEDIA.get(event.medium, event.medium))
    return AllBlocksCleared()


def _signed(name: int) -> int:
    """Return a block's name in SGLang's form, a signed 64-bit integer."""
    return (name & (1 << 64) - 1) - (1 << 64 if name >> 63 & 1 else 0)


def _has_input(socket: "zmq.Socket[bytes]") -> bool:
    return bool(int(socket.get(zmq.EVENTS)) & zmq.POLLIN)


def _tokens(event: Event, width: int) -> bytes:
    """Return the bytes of a stored event's blocks, copied so that a short event does not keep a long prompt in
    memory."""
    if not isinstance(event, Stored) or not isinstance(event.content, bytes):
        return b""
    return event.content[event.first * width : (event.first + len(event.hashes)) * width]
